//! [`PrefixIndex`]: what it consists of, and where each of its methods is.
//!
//! | methods | file |
//! |---|---|
//! | `new`, `media_keys` | here |
//! | `match_prefix`, `acquire`, `take`, `takeable`, `release`, `compacted` | `lookup/` |
//! | `plan`, `draft` | `store/draft.rs` |
//! | `settle`, `promise` | `store/promise.rs` |
//! | `commit`, `abort` | `store/commit.rs` |
//! | `insert` | `store/insert.rs` |
//! | `evict`, `evict_idle`, `drop_namespace`, `clear` | `evict/mod.rs` |
//! | `make_room`, `reserve_bytes`, `unreserve_bytes`, `holds`, `over`, `free_bytes` | `evict/room.rs` |
//! | `count_units`, `count_idle` | `evict/count.rs` |
//! | `stats`, `namespace_stats`, `labels`, `namespaces`, `layouts`, `live_layouts` | `inspect/stats.rs` |
//! | `nbytes`, `ntokens`, `sequences`, `entries`, `units`, `leased_bytes`, `reserved_bytes` | `inspect/stats.rs` |
//! | `outline` | `inspect/outline.rs` |
//! | `validate` | `inspect/check.rs` |

use crate::error::Error;
use crate::ids::IdSource;
use crate::keys::media::{MediaKeys, Span};
use crate::lease::Leases;
use crate::ledger::Amount;
use crate::order::policy::EvictionPolicy;
use crate::order::{Order, Policy};
use crate::store::under_way::{Draft, Pending, UnderWay};
use crate::trees::Trees;

/// What an index may hold, its grain and its eviction policy.
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
    /// Which unit is evicted next.
    pub policy: Policy,
}

impl Default for Limits {
    fn default() -> Self {
        // Half the range, so that sums of two never overflow.
        let unlimited = u64::MAX / 2;
        Self {
            max_bytes: unlimited,
            max_buffers: unlimited,
            segment_tokens: 1024,
            max_checkpoints: 8,
            policy: Policy::Lru,
        }
    }
}

/// A prefix tree over token keys with an eviction policy and a byte ledger.
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
            trees: Trees { order: Order::new(limits.policy), ..Trees::default() },
            ..Self::default()
        }
    }

    /// Takes the caller's time; time that runs backwards stands still.
    pub(crate) fn tick(&mut self, stamp: u64) -> u64 {
        self.stamp = self.stamp.max(stamp);
        self.trees.order.tick(self.stamp);
        self.stamp
    }

    /// Keys for tokens of which `spans` are placeholders for media. With `intern` for a store, without
    /// for a lookup. Valid until they are dropped, regardless of later changes to the index. Amortised
    /// O(n).
    ///
    /// # Errors
    /// An invalid token outside the spans, or spans that overlap, are out of order or outside.
    pub fn media_keys(
        &mut self,
        tokens: &[u32],
        spans: &[Span<'_>],
        intern: bool,
    ) -> Result<MediaKeys, Error> {
        if intern && self.trees.contents.wants_sweep() {
            self.trees.contents.sweep(&self.trees.media);
        }
        self.trees.contents.keys(tokens, spans, intern)
    }
}
