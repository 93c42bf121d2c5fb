//! Named cases: images, adapters, tenants. Numbers are those of REPORTS.md.

mod common;

use kvcache_core::{Error, Limits, PrefixIndex, Reason};

use common::engine::{Engine, limits, run, span};
use common::index::{Index, Store, media_keys};
use common::prompt::{Part, Prompt};

/// Ten text tokens, a span of ten tokens, ten text tokens.
fn with_image(digest: u8) -> Prompt {
    run(0, 10).then(&Prompt::media(digest, 10)).then(&run(20, 30))
}

/// 77, 81: other content under the same placeholders, none, or at another place, is a mismatch at
/// the span's first token; and a match never ends inside one.
#[test]
fn an_image_matches_itself_at_its_place_only() {
    let mut engine = Engine::new(limits());
    engine.put(&with_image(b'A'));
    assert_eq!(engine.get(&with_image(b'A')), 29);
    assert_eq!(engine.get(&with_image(b'B')), 10);
    assert_eq!(engine.get(&run(0, 30)), 10, "no media where the cache has some");
    let later = run(0, 11).then(&Prompt::media(b'A', 10)).then(&run(20, 30));
    assert_eq!(engine.get(&later), 10, "one token later");
    let longer = run(0, 10).then(&Prompt::media(b'A', 11)).then(&run(20, 30));
    assert_eq!(engine.get(&longer), 10, "the length belongs to the identity");
    let cut = engine.index.lookup("", &with_image(b'A'), 15, None).unwrap();
    assert_eq!((cut.length, cut.matched), (10, 30), "the limit falls inside the image");

    let mut engine = Engine::new(limits());
    engine.put(&run(0, 30));
    assert_eq!(engine.get(&with_image(b'B')), 10, "media where the cache has none");
}

/// 77: the same where eviction left half an image.
#[test]
fn half_an_image_is_not_served() {
    let mut engine = Engine::new(Limits { segment_tokens: 5, ..limits() });
    engine.put(&with_image(b'A'));
    engine.evict_units(3);
    assert_eq!(engine.index.ntokens(), 15);
    assert_eq!(engine.get(&with_image(b'A')), 10);
    assert_eq!(engine.put(&with_image(b'A')), 30);
    assert_eq!(engine.get(&with_image(b'A')), 29);
}

/// 79: the identity is the caller's content hash; nothing else of a file plays a part.
#[test]
fn other_content_is_another_image() {
    let mut engine = Engine::new(limits());
    let frame = |digest| Prompt::media(digest, 4).then(&run(0, 4));
    engine.put(&frame(1));
    assert_eq!(engine.get(&frame(1)), 7);
    let other = engine.fetch("", &frame(2));
    assert_eq!((other.length, other.reason), (0, Reason::Media));
}

/// 80: text before a new image stays reusable.
#[test]
fn a_new_image_keeps_the_text_before_it() {
    let mut engine = Engine::new(limits());
    engine.put(&run(0, 1000).then(&Prompt::media(b'A', 50)).then(&run(0, 10)));
    assert_eq!(engine.get(&run(0, 1000).then(&Prompt::media(b'B', 50))), 1000);
}

/// 25, 77: what is cut to fit is cut before an image, and a store that would keep nothing more
/// than is held leaves the other branch alone.
#[test]
fn a_store_that_does_not_fit_is_cut_before_an_image() {
    let mut engine = Engine::new(Limits { max_bytes: 15, ..limits() });
    assert_eq!(engine.put(&with_image(b'A')), 10);

    let mut engine = Engine::new(Limits { max_bytes: 12, ..limits() });
    let text = run(0, 12);
    engine.put(&text);
    let (length, evicted) = engine.store(&span("", &with_image(b'A')));
    assert_eq!((length, evicted.is_empty()), (0, true));
    assert_eq!(engine.index.ntokens(), 12);
    assert_eq!(engine.get(&text), 11, "nothing was gained, nothing may be lost");
}

/// 82: an adapter's weights belong to the namespace.
/// 84: tenants never see each other's tokens; figures and drops are by namespace.
#[test]
fn namespaces_never_mix() {
    let mut engine = Engine::new(limits());
    let prompt = run(0, 100);
    engine.store(&span("m lora@v1", &prompt));
    let other = engine.fetch("m lora@v2", &prompt);
    assert_eq!((other.length, other.matched, other.reason), (0, 0, Reason::NoEntry));

    engine.store(&span("m lora@v2", &prompt.then(&run(100, 150))));
    let figures = |engine: &Engine, name| engine.index.namespace_stats(name).ntokens;
    assert_eq!((figures(&engine, "m lora@v1"), figures(&engine, "m lora@v2")), (100, 150));
    let dropped = engine.index.drop_namespace("m lora@v1");
    assert_eq!((dropped.segments.len(), dropped.amount.tokens), (1, 100));
    assert_eq!((figures(&engine, "m lora@v1"), figures(&engine, "m lora@v2")), (0, 150));
    assert_eq!(engine.fetch("m lora@v1", &prompt).length, 0);
    assert_eq!(engine.fetch("m lora@v2", &prompt).length, 99);
}

/// Different contents that no tree holds, enough for forgotten ones to be swept out.
fn many_images(index: &mut PrefixIndex) {
    for digest in 0..=u8::MAX {
        for length in 1..3 {
            media_keys(index, &Prompt::media(digest, length), true).unwrap();
        }
    }
}

/// 77, 81: a key that a caller still holds never comes to mean another image, however many came
/// and went since it was made.
#[test]
fn a_key_in_use_keeps_its_meaning() {
    let image = |digest| Prompt(vec![Part::Media(digest, 9), Part::Text(1)]);
    let mut index = PrefixIndex::new(limits());
    let held = media_keys(&mut index, &image(7), true).unwrap();
    many_images(&mut index);
    let query = held.query();
    let inserted = index.insert("", &query, 1, 0).unwrap();
    assert_eq!(inserted.length, 10);
    drop(held);
    many_images(&mut index);
    for digest in 0..=u8::MAX {
        let found = index.lookup("", &image(digest), 10, None).unwrap();
        assert_eq!(found.length, if digest == 7 { 10 } else { 0 }, "image {digest}");
    }
}

/// What was looked up under contents that were not known then has no key to be stored under.
#[test]
fn unknown_content_is_not_stored() {
    let mut index = PrefixIndex::new(limits());
    let prompt = with_image(b'A');
    let looked_up = media_keys(&mut index, &prompt, false).unwrap();
    let refused = index.insert("", &looked_up.query(), 1, 0);
    assert_eq!(refused, Err(Error::InvalidToken { position: 10, key: u32::MAX }));
    let store: Store = span("", &prompt);
    Index::plan(&mut index, &store, 0).unwrap();
    assert_eq!(index.lookup("", &with_image(b'B'), 29, None).unwrap().length, 0);
}

/// Ranks that make the same calls number contents alike, also after forgotten ones were swept
/// out: which of several checkpoints serves may depend on it.
#[test]
fn ranks_number_contents_alike() {
    let mut ranks = [PrefixIndex::new(limits()), PrefixIndex::new(limits())];
    ranks.iter_mut().for_each(many_images);
    let all = Prompt((0..100).map(|digest| Part::Media(digest, 5)).collect());
    let [left, right] = ranks.each_mut().map(|rank| media_keys(rank, &all, true).unwrap());
    assert!(left == right, "the keys differ");
}
