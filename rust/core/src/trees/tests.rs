//! Path hashes in a tree that splits, joins, evicts and refills.

use proptest::prelude::*;

use crate::evict::Need;
use crate::index::{Limits, PrefixIndex};
use crate::keys::hash::{ContentHash, HashKey, PathHash, PathHasher};
use crate::keys::media::{Span, path_hash};
use crate::keys::query::Query;
use crate::radix::walk::walk;

/// The hash of a prompt's first tokens, computed from the tokens alone.
fn expected(namespace: &str, tokens: &[u32]) -> PathHash {
    let mut hasher = PathHasher::new(&HashKey::default(), namespace, &0_u64.to_le_bytes());
    hasher.extend(tokens, |_| unreachable!("there are no media"));
    hasher.hash()
}

fn prompts() -> impl Strategy<Value = Vec<(bool, Vec<u32>, u64)>> {
    let prompt = prop::collection::vec(0_u32..2, 1..40);
    prop::collection::vec((any::<bool>(), prompt, 0_u64..3), 1..40)
}

proptest! {
    #[test]
    fn path_hashes_do_not_depend_on_history(prompts in prompts(), segment_tokens in 1_usize..20) {
        let mut index = PrefixIndex::new(Limits { segment_tokens, ..Limits::default() });
        for (second, tokens, evicted) in &prompts {
            let namespace = if *second { "b" } else { "a" };
            index.insert(namespace, &Query::tokens(tokens), 1, 0).unwrap();
            let tree = index.trees.forest.of(namespace)[0];
            let root = index.trees.forest.get(tree).root;
            let mut at = walk(&index.trees.arena, root, &Query::tokens(tokens)).unwrap().node;
            while at != root {
                let end = index.trees.arena[at].end as usize;
                if end <= tokens.len() {
                    prop_assert_eq!(index.trees.path_hash(at), expected(namespace, &tokens[..end]));
                }
                at = index.trees.arena[at].parent;
            }
            index.evict(Need { units: *evicted, ..Need::default() });
        }
    }
}

/// Media are hashed by content: another index, in which the content has another id, gives the same hash.
#[test]
fn a_content_has_the_same_hash_under_another_id() {
    let hash = |before: &[&[u8]]| {
        let mut index = PrefixIndex::new(Limits::default());
        for digest in before {
            let keys = index.media_keys(&[0], &[Span { start: 0, length: 1, digest }], true).unwrap();
            index.insert("others", &keys.query(), 1, 0).unwrap();
        }
        let span = [Span { start: 1, length: 2, digest: b"image" }];
        let keys = index.media_keys(&[5, 0, 0, 6], &span, true).unwrap();
        index.insert("", &keys.query(), 1, 0).unwrap();
        let root = index.trees.forest.get(index.trees.forest.of("")[0]).root;
        let node = walk(&index.trees.arena, root, &keys.query()).unwrap().node;
        index.trees.path_hash(node)
    };
    let mut hasher = PathHasher::new(&HashKey::default(), "", &0_u64.to_le_bytes());
    hasher.extend(&[5, 1 << 31, 1 << 31, 6], |_| ContentHash::new(b"image", 2));
    assert_eq!(hash(&[]), hasher.hash());
    let before = PathHasher::new(&HashKey::default(), "", &0_u64.to_le_bytes());
    let span = [Span { start: 1, length: 2, digest: b"image" }];
    assert_eq!(path_hash(before, &[5, 0, 0, 6], &span), Ok(hasher.hash()));
    assert_eq!(hash(&[b"one", b"two"]), hasher.hash());
}
