//! [`PrefixIndex`]: the façade.

use crate::error::Error;
use crate::ids::IdSource;
use crate::lease::Leases;
use crate::ledger::Amount;
use crate::media::{MediaKeys, MediaTable, Span};
use crate::radix::edit::Trees;
use crate::store::{Draft, Pending, UnderWay};

/// What an index may hold, and its grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all segments and checkpoints, at every moment.
    pub max_bytes: u64,
    /// Arrays, at every moment.
    pub max_buffers: u64,
    /// Tokens of a node at most.
    pub segment_tokens: usize,
    /// Checkpoints along one unbranched path.
    pub max_checkpoints: usize,
}

impl Default for Limits {
    fn default() -> Self {
        // Half the range, so that sums of two never overflow.
        let unlimited = u64::MAX / 2;
        Self { max_bytes: unlimited, max_buffers: unlimited, segment_tokens: 1024, max_checkpoints: 8 }
    }
}

/// A prefix tree over token keys with LRU order and byte ledger.
///
/// Use [`insert`](Self::insert) and [`match_prefix`](Self::match_prefix) for bookkeeping alone:
/// routing, scheduling, simulation. A cache that holds arrays stores in two steps
/// ([`plan`](Self::plan), [`commit`](Self::commit)) and fetches under a lease
/// ([`acquire`](Self::acquire), [`release`](Self::release)).
///
/// Not for: concurrent use without a lock around it, or tokens beyond 31 bits.
#[derive(Debug, Default)]
pub struct PrefixIndex {
    pub(crate) trees: Trees,
    pub(crate) leases: Leases,
    pub(crate) drafts: UnderWay<Draft>,
    pub(crate) plans: UnderWay<Pending>,
    pub(crate) media: MediaTable,
    pub(crate) ids: IdSource,
    pub(crate) limits: Limits,
    pub(crate) segment_tokens: usize,
    pub(crate) max_checkpoints: usize,
    /// Room taken by [`reserve_bytes`](Self::reserve_bytes).
    pub(crate) transient: Amount,
    /// How many stores said where their prompt ends.
    pub(crate) prompts: u64,
    /// The latest time a caller gave.
    pub(crate) stamp: u64,
}

impl PrefixIndex {
    /// An empty index. A grain or a number of checkpoints of 0 counts as 1.
    pub fn new(limits: Limits) -> Self {
        let half = u64::MAX / 2;
        Self {
            limits: Limits {
                max_bytes: limits.max_bytes.min(half),
                max_buffers: limits.max_buffers.min(half),
                ..limits
            },
            segment_tokens: limits.segment_tokens.max(1),
            max_checkpoints: limits.max_checkpoints.max(1),
            ..Self::default()
        }
    }

    /// Takes the caller's time; time that runs backwards stands still.
    pub(crate) fn tick(&mut self, stamp: u64) -> u64 {
        self.stamp = self.stamp.max(stamp);
        self.stamp
    }

    /// Keys for tokens of which `spans` stand for media. With `intern` for a store, without for a
    /// lookup. Valid until they are dropped, regardless of later changes to the index. Amortised O(n).
    ///
    /// # Errors
    /// An invalid token outside the spans, or spans that overlap, are out of order or outside.
    pub fn media_keys(
        &mut self,
        tokens: &[u32],
        spans: &[Span<'_>],
        intern: bool,
    ) -> Result<MediaKeys, Error> {
        if intern && self.media.wants_sweep() {
            self.media.sweep(&self.trees.media);
        }
        self.media.keys(tokens, spans, intern)
    }
}
