//! Path hashes against a naive implementation, which hashes one buffer with all bytes.

use proptest::prelude::*;

use super::{ContentHash, HashKey, PathHash, PathHasher};
use crate::keys::token::MEDIA_BIT;

fn content(key: u32) -> ContentHash {
    ContentHash::new(&key.to_le_bytes(), 7)
}

/// Hashes all bytes in one call.
fn naive(key: &HashKey, namespace: &str, layout: &[u8], keys: &[u32]) -> PathHash {
    let mut bytes = Vec::new();
    for part in [namespace.as_bytes(), layout] {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part);
    }
    for key in keys {
        if key & MEDIA_BIT == 0 {
            bytes.extend(key.to_le_bytes());
        } else {
            bytes.extend([0xff; 4]);
            bytes.extend(content(*key).0);
        }
    }
    let hash = blake3::keyed_hash(&key.0, &bytes);
    PathHash(hash.as_bytes()[..16].try_into().unwrap())
}

fn hash(namespace: &str, layout: &[u8], keys: &[u32]) -> PathHash {
    let mut hasher = PathHasher::new(&HashKey::default(), namespace, layout);
    hasher.extend(keys, content);
    hasher.hash()
}

fn keys() -> impl Strategy<Value = Vec<u32>> {
    let key = prop_oneof![9 => 0_u32..5, 1 => 0x7fff_ff00_u32..0x8000_0000, 2 => MEDIA_BIT..MEDIA_BIT + 3];
    prop::collection::vec(key, 0..700)
}

proptest! {
    /// The path may be extended in any pieces, with a hash taken after each.
    #[test]
    fn a_hash_does_not_depend_on_the_cuts(keys in keys(), cuts in prop::collection::vec(0_usize..700, 0..9)) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(keys.len())).collect();
        cuts.extend([0, keys.len()]);
        cuts.sort_unstable();
        let mut hasher = PathHasher::new(&HashKey::default(), "a", b"layout");
        for cut in cuts.windows(2) {
            hasher = hasher.clone();
            hasher.extend(&keys[cut[0]..cut[1]], content);
            prop_assert_eq!(hasher.hash(), naive(&HashKey::default(), "a", b"layout", &keys[..cut[1]]));
        }
    }
}

/// Every part of a path contributes to its hash.
#[test]
fn paths_that_differ_have_different_hashes() {
    let media = MEDIA_BIT | 1;
    let of = |namespace: &str, layout: &[u8], keys: &[u32]| hash(namespace, layout, keys);
    let all = [
        of("", b"", &[]),
        of("a", b"", &[]),
        of("", b"a", &[]),
        of("a\0", b"", &[]),
        of("a", b"b", &[]),
        of("ab", b"", &[]),
        of("", b"", &[0]),
        of("", b"", &[0, 0]),
        of("", b"", &[1]),
        of("", b"", &[media]),
        of("", b"", &[media, media]),
        of("", b"", &[MEDIA_BIT | 2]),
        naive(&HashKey([1; 32]), "", b"", &[]),
    ];
    for (at, hash) in all.iter().enumerate() {
        assert!(!all[..at].contains(hash), "{at}");
    }
}

/// Other processes find records and events by these hashes, so they must never change.
#[test]
fn hashes_never_change() {
    assert_eq!(hash("", b"", &[]).to_string(), "92bc9676fbcfc07a351238fb272374f0");
    assert_eq!(
        hash("tenant", b"layout", &[1, 2, MEDIA_BIT | 3, 4]).to_string(),
        "dda1f3709f4d85521a46ce5a23145b07"
    );
}
