//! Content names: golden values, and equality if and only if all inputs are equal.

use kvcache_disk::{
    Digest,
    name::{Identity, Kind, Media, Name, NameError, Namer},
};

use crate::make::identity;

fn prompt() -> Vec<u32> {
    (0..3000).map(|i| i * 7919 % 150_000).collect()
}

fn spans() -> Vec<Media> {
    vec![
        Media { start: 10, length: 20, digest: Digest([1; 32]) },
        Media { start: 1000, length: 100, digest: Digest([2; 32]) },
    ]
}

/// Names must not change without a new version of the format. For a new version, `KVCACHE_BLESS=1` writes the
/// golden file.
#[test]
fn golden() {
    let namer = Namer::new(identity("model@1"), None);
    let hashes = namer.hashes(&prompt(), &spans(), &[0, 1024, 2048, 3000]).unwrap();
    let name = namer.name(Kind::Segment, hashes[1], 1024, hashes[2]);
    let keyed = Namer::new(identity("model@1"), Some(b"secret"));
    let actual = [
        namer.space().to_string(),
        namer.layout().to_string(),
        hashes[0].to_string(),
        name.tail(),
        namer.name(Kind::Checkpoint, hashes[2], 952, hashes[3]).tail(),
        keyed.hashes(&prompt(), &spans(), &[3000]).unwrap()[0].to_string(),
    ];
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/names.txt");
    if std::env::var_os("KVCACHE_BLESS").is_some() {
        std::fs::write(path, actual.join("\n") + "\n").unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    let golden: Vec<&str> = golden.lines().collect();
    assert_eq!(actual.as_slice(), golden);
    assert_eq!(name.path().to_str().unwrap(), name.to_string());
}

#[test]
fn hashes_do_not_depend_on_the_cuts_or_on_what_follows() {
    let (namer, tokens, media) = (Namer::new(identity("m"), None), prompt(), spans());
    let all: Vec<usize> = (0..=tokens.len()).collect();
    let each = namer.hashes(&tokens, &media, &all).unwrap();
    for cuts in [vec![0, 3000], vec![5, 15, 29, 30, 31, 1000, 1001], vec![7, 7, 7], vec![2047, 2048, 2049]] {
        let expected: Vec<Digest> = cuts.iter().map(|&cut| each[cut]).collect();
        assert_eq!(namer.hashes(&tokens, &media, &cuts).unwrap(), expected);
    }
    let fewer = namer.hashes(&tokens[..30], &media[..1], &[10, 11, 30]).unwrap();
    assert_eq!(fewer, [each[10], each[11], each[30]]);
    let distinct: std::collections::HashSet<_> = each.iter().collect();
    assert_eq!(distinct.len(), each.len());
}

#[test]
fn hashes_depend_on_everything_that_kv_depends_on() {
    let tokens = prompt();
    let of = |identity: Identity, secret: Option<&[u8]>, tokens: &[u32], media: &[Media]| {
        Namer::new(identity, secret).hashes(tokens, media, &[100]).unwrap()[0]
    };
    let base = identity("m");
    let mut other_tokens = tokens.clone();
    other_tokens[0] += 1;
    let span = |start, length, byte| vec![Media { start, length, digest: Digest([byte; 32]) }];
    let mut last_byte = span(10, 5, 1);
    last_byte[0].digest.0[31] = 2;
    let hashes = [
        of(base.clone(), None, &tokens, &[]),
        of(base.clone(), Some(b"a"), &tokens, &[]),
        of(base.clone(), Some(b"b"), &tokens, &[]),
        of(base.clone(), Some(b""), &tokens, &[]),
        of(Identity { namespace: "n".into(), ..base.clone() }, None, &tokens, &[]),
        of(Identity { layout: "other".into(), ..base.clone() }, None, &tokens, &[]),
        of(Identity { rank: 1, ranks: 2, ..base.clone() }, None, &tokens, &[]),
        of(Identity { rank: 0, ranks: 2, ..base.clone() }, None, &tokens, &[]),
        of(Identity { segment_tokens: 1024, ..base.clone() }, None, &tokens, &[]),
        of(base.clone(), None, &other_tokens, &[]),
        of(base.clone(), None, &tokens, &span(10, 5, 1)),
        of(base.clone(), None, &tokens, &span(11, 5, 1)),
        of(base.clone(), None, &tokens, &span(10, 6, 1)),
        of(base.clone(), None, &tokens, &last_byte),
        of(base, None, &tokens, &span(99, 5, 1)),
    ];
    let distinct: std::collections::HashSet<_> = hashes.iter().collect();
    assert_eq!(distinct.len(), hashes.len());
}

#[test]
fn similar_namespaces_have_separate_folders() {
    let names = ["a/b", "a_b", "a", "A", "a\0", " a", "../a", "a\u{301}", "\u{e1}"];
    let spaces: std::collections::HashSet<_> =
        names.iter().map(|name| Namer::new(identity(name), None).space()).collect();
    assert_eq!(spaces.len(), names.len());
}

#[test]
fn invalid_prompts_are_rejected() {
    let (namer, tokens) = (Namer::new(identity("m"), None), prompt());
    let span = |start, length| Media { start, length, digest: Digest([0; 32]) };
    assert_eq!(namer.hashes(&[1, 1 << 31], &[], &[]), Err(NameError::Token { position: 1 }));
    assert_eq!(namer.hashes(&tokens, &[], &[5, 4]), Err(NameError::Boundary { index: 1 }));
    assert_eq!(namer.hashes(&tokens, &[], &[3001]), Err(NameError::Boundary { index: 0 }));
    for bad in [span(0, 0), span(2999, 2), span(usize::MAX, 2), span(1, usize::MAX)] {
        assert_eq!(namer.hashes(&tokens, &[bad], &[0]), Err(NameError::Media { index: 0 }));
    }
    assert_eq!(namer.hashes(&tokens, &[span(5, 5), span(9, 1)], &[]), Err(NameError::Media { index: 1 }));
}

#[test]
fn a_name_has_one_spelling() {
    let digest = |byte| Digest([byte; 32]);
    for kind in [Kind::Segment, Kind::Checkpoint] {
        let name = Name {
            space: digest(1),
            layout: digest(2),
            start: digest(0xAB),
            length: 17,
            end: digest(4),
            kind,
        };
        let tail = name.tail();
        assert_eq!(Name::parse(digest(1), digest(2), &tail), Some(name));
        let capital = tail.to_uppercase().replace(".KV", ".kv").replace(".CP", ".cp");
        for bad in [
            tail.replace("/17-", "/017-"),
            tail.replace("/17-", "/+17-"),
            tail.replace("/17-", "/0-"),
            tail.replace("/17-", "/99999999999-"),
            tail.replace(".kv", ".kv.tmp"),
            capital,
            tail.replace('/', ""),
            String::new(),
        ] {
            assert_eq!(Name::parse(digest(1), digest(2), &bad), None, "{bad}");
        }
    }
}
