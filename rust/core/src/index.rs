//! [`PrefixIndex`]: its parts, and where to find each of its methods.
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
use crate::store::in_flight::{Draft, InFlight, Pending};
use crate::trees::Trees;

/// Limits on what an index may hold, its granularity and its eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of all segments and checkpoints. Never exceeded.
    pub max_bytes: u64,
    /// Maximum number of arrays. Never exceeded.
    pub max_buffers: u64,
    /// Maximum tokens per node.
    pub segment_tokens: usize,
    /// Maximum checkpoints along one unbranched path.
    pub max_checkpoints: usize,
    /// Decides which unit to evict next.
    pub policy: Policy,
}

impl Default for Limits {
    fn default() -> Self {
        // Half the range, so that the sum of two never overflows.
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
/// Not suitable for concurrent use without an external lock, or for token ids beyond 31 bits.
#[derive(Debug, Default)]
pub struct PrefixIndex {
    pub(crate) trees: Trees,
    pub(crate) leases: Leases,
    pub(crate) drafts: InFlight<Draft>,
    pub(crate) plans: InFlight<Pending>,
    pub(crate) ids: IdSource,
    pub(crate) limits: Limits,
    pub(crate) segment_tokens: usize,
    pub(crate) max_checkpoints: usize,
    /// Room taken by [`reserve_bytes`](Self::reserve_bytes).
    pub(crate) transient: Amount,
    /// How many stores gave the end of their prompt.
    pub(crate) prompts: u64,
    /// The latest stamp passed by the caller.
    pub(crate) stamp: u64,
}

impl PrefixIndex {
    /// Creates an empty index. `segment_tokens` and `max_checkpoints` are at least 1.
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

    /// Advances to the caller's stamp, and returns the current one: a stamp never runs backwards.
    pub(crate) fn tick(&mut self, stamp: u64) -> u64 {
        self.stamp = self.stamp.max(stamp);
        self.trees.order.tick(self.stamp);
        self.stamp
    }

    /// Builds keys for `tokens`, in which `spans` are placeholders for media. Pass `intern` for a store,
    /// not for a lookup. The keys stay valid until dropped, regardless of later changes to the index.
    /// Amortised O(n).
    ///
    /// # Errors
    /// An invalid token outside the spans, or a span that is out of order, overlapping or out of range.
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
