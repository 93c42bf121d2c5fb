//! Media spans: their contents are interned, and a match never ends inside one.
//!
//! All tokens of a span carry the same key: the media bit and the interned id of the span's
//! identity, which is (content digest, length). Since the length is part of the identity, a run of
//! equal keys divides into whole spans in only one way.

use std::sync::Arc;

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use crate::error::Error;
use crate::keys::hash::{ContentHash, PathHash, PathHasher};
use crate::keys::query::{Cuts, Query};
use crate::keys::token::{MEDIA_BIT, UNKNOWN_MEDIA, check_tokens};
use crate::tables::shrink;
use crate::work::visit;

/// Tokens `[start, start + length)` are placeholders for the content with this digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    /// First token.
    pub start: usize,
    /// Length in tokens.
    pub length: usize,
    /// Content digest, covering everything that affects the content's embedding.
    pub digest: &'a [u8],
}

/// Owned keys with media ids filled in. The ids stay valid for as long as this value lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaKeys {
    keys: Box<[u32]>,
    cuts: Cuts,
    ids: Vec<Arc<u32>>,
}

impl MediaKeys {
    /// The query for these keys.
    pub fn query(&self) -> Query<'_> {
        Query::checked(&self.keys, &self.cuts)
    }
}

/// How often nodes and stores in flight use each content: once per run of its keys.
#[derive(Debug, Default)]
pub(crate) struct MediaUses(HashMap<u32, u32>);

/// The media keys among `keys`, one per run of equal keys.
fn runs(keys: &[u32]) -> impl Iterator<Item = u32> {
    keys.chunk_by(|a, b| a == b).map(|run| run[0]).filter(|key| key & MEDIA_BIT != 0)
}

impl MediaUses {
    /// Counts the uses in `keys`. O(len).
    pub(crate) fn hold(&mut self, keys: &[u32]) {
        for key in runs(keys) {
            *self.0.entry(key).or_default() += 1;
        }
    }

    /// Takes the uses in `keys` off the counts. O(len).
    pub(crate) fn release(&mut self, keys: &[u32]) {
        for key in runs(keys) {
            if let Entry::Occupied(mut uses) = self.0.entry(key) {
                *uses.get_mut() -= 1;
                if *uses.get() == 0 {
                    uses.remove();
                }
            }
        }
        shrink(&mut self.0);
    }

    fn used(&self, key: u32) -> bool {
        self.0.contains_key(&key)
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.0.allocation_size()
    }
}

impl PartialEq for MediaUses {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

type Identity = (Box<[u8]>, u32);

/// Contents by identity. Its size is bounded by what is in use: once the table has doubled since the last
/// sweep, the next sweep frees ids that neither a [`MediaUses`] nor a caller's [`MediaKeys`] holds.
#[derive(Debug, Default)]
pub(crate) struct MediaTable {
    /// Reference-counted, because the index cannot search for keys that a caller holds.
    ids: HashMap<Identity, Arc<u32>>,
    /// Heap bytes held by the entries.
    heap_bytes: usize,
    /// By id. Those of free ids are meaningless.
    hashes: Vec<ContentHash>,
    free: Vec<u32>,
    sweep_at: usize,
}

const FIRST_SWEEP: usize = 64;

impl MediaTable {
    /// Bytes on the heap. O(1).
    pub(crate) fn bytes(&self) -> usize {
        self.ids.allocation_size()
            + self.free.capacity() * size_of::<u32>()
            + self.hashes.capacity() * size_of::<ContentHash>()
            + self.heap_bytes
    }

    /// All media keys in use.
    pub(crate) fn known(&self) -> HashSet<u32> {
        self.ids.values().map(|id| **id | MEDIA_BIT).collect()
    }

    /// The content of a media key in use.
    pub(crate) fn content(&self, key: u32) -> ContentHash {
        self.hashes[(key & !MEDIA_BIT) as usize]
    }

    pub(crate) fn wants_sweep(&self) -> bool {
        self.ids.len() >= self.sweep_at.max(FIRST_SWEEP)
    }

    /// Frees every id that neither the index nor a caller uses. O(ids).
    pub(crate) fn sweep(&mut self, uses: &MediaUses) {
        let Self { ids, heap_bytes, free, .. } = self;
        ids.retain(|(digest, _), id| {
            visit();
            let keep = Arc::strong_count(id) > 1 || uses.used(**id | MEDIA_BIT);
            if !keep {
                free.push(**id);
                *heap_bytes -= entry_bytes(digest);
            }
            keep
        });
        shrink(ids);
        if ids.is_empty() {
            *free = Vec::new();
            self.hashes = Vec::new();
        }
        // Sorted, not in hash-table order: ranks that make the same calls must issue the same ids.
        free.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        self.sweep_at = self.ids.len() * 2;
    }

    /// Builds keys for `tokens` with `spans` filled in. With `intern`, new contents get an id; without,
    /// they get a key that equals no stored key.
    pub(crate) fn keys(
        &mut self,
        tokens: &[u32],
        spans: &[Span<'_>],
        intern: bool,
    ) -> Result<MediaKeys, Error> {
        let mut cuts = Vec::with_capacity(spans.len());
        let mut free_from = 0;
        for (index, span) in spans.iter().enumerate() {
            let end = span.start.checked_add(span.length).filter(|end| *end <= tokens.len());
            let (Some(end), true, true) = (end, span.start >= free_from, span.length > 0) else {
                return Err(Error::InvalidSpan {
                    index,
                    start: span.start,
                    length: span.length,
                    tokens: tokens.len(),
                });
            };
            // Tokens inside spans are placeholders of any value, so only those between spans are checked.
            check_tokens(&tokens[free_from..span.start], free_from)?;
            cuts.push((span.start as u32, end as u32));
            free_from = end;
        }
        check_tokens(&tokens[free_from..], free_from)?;
        let mut keys: Box<[u32]> = tokens.into();
        let mut ids = Vec::with_capacity(spans.len());
        for (span, &(start, end)) in spans.iter().zip(&cuts) {
            let id = self.id((span.digest.into(), end - start), intern);
            let key = id.as_ref().map_or(UNKNOWN_MEDIA, |id| **id | MEDIA_BIT);
            keys[start as usize..end as usize].fill(key);
            ids.extend(id);
        }
        Ok(MediaKeys { keys, cuts: Cuts::new(cuts), ids })
    }

    fn id(&mut self, identity: Identity, intern: bool) -> Option<Arc<u32>> {
        if !intern || self.ids.contains_key(&identity) {
            return self.ids.get(&identity).cloned();
        }
        let hash = ContentHash::new(&identity.0, identity.1);
        let id = if let Some(id) = self.free.pop() {
            self.hashes[id as usize] = hash;
            id
        } else {
            self.hashes.push(hash);
            self.hashes.len() as u32 - 1
        };
        let id = Arc::new(id);
        self.heap_bytes += entry_bytes(&identity.0);
        self.ids.insert(identity, Arc::clone(&id));
        Some(id)
    }
}

/// The hash of a prompt's path, computed without an index. O(n).
///
/// # Errors
/// See [`PrefixIndex::media_keys`](crate::PrefixIndex::media_keys).
pub fn path_hash(mut before: PathHasher, tokens: &[u32], spans: &[Span<'_>]) -> Result<PathHash, Error> {
    let mut table = MediaTable::default();
    let keys = table.keys(tokens, spans, true)?;
    before.extend(&keys.keys, |key| table.content(key));
    Ok(before.hash())
}

fn entry_bytes(digest: &[u8]) -> usize {
    // An `Arc` stores two counters next to the id.
    digest.len() + size_of::<(usize, usize, u32)>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_digest_and_length() {
        let mut table = MediaTable::default();
        let tokens = vec![7; 30];
        let span = |start, length, digest| Span { start, length, digest };
        let a = table.keys(&tokens, &[span(0, 10, b"a".as_slice())], true).unwrap();
        let longer = table.keys(&tokens, &[span(0, 11, b"a".as_slice())], true).unwrap();
        let again = table.keys(&tokens, &[span(0, 10, b"a".as_slice())], false).unwrap();
        assert_eq!(a, again);
        assert_ne!(a.keys[0], longer.keys[0]);
        let unknown = table.keys(&tokens, &[span(0, 10, b"b".as_slice())], false).unwrap();
        assert_eq!(unknown.keys[0], UNKNOWN_MEDIA);
        assert_eq!(table.ids.len(), 2);
    }

    #[test]
    fn ids_of_unused_contents_are_reused() {
        let mut table = MediaTable::default();
        for round in 0_u32..1000 {
            let digest = round.to_le_bytes();
            let span = Span { start: 0, length: 1, digest: &digest };
            let keys = table.keys(&[0], &[span], true).unwrap();
            if table.wants_sweep() {
                let mut uses = MediaUses::default();
                uses.hold(&keys.keys);
                table.sweep(&uses);
            }
        }
        assert!(table.ids.len() <= FIRST_SWEEP, "{}", table.ids.len());
    }

    #[test]
    fn spans_out_of_order_overlapping_empty_or_outside_are_refused() {
        let mut table = MediaTable::default();
        for spans in [vec![(5, 2), (0, 2)], vec![(0, 5), (4, 2)], vec![(3, 0)], vec![(8, 3)]] {
            let spans: Vec<_> =
                spans.iter().map(|&(start, length)| Span { start, length, digest: b"x" }).collect();
            let refused = table.keys(&[1; 10], &spans, true);
            assert!(matches!(refused, Err(Error::InvalidSpan { .. })), "{spans:?}");
        }
        assert_eq!(table.ids.len(), 0);
    }
}
