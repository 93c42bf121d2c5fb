//! The eviction policy trait, with both sides of its contract method by method.

use crate::ids::NodeId;
use crate::keys::hash::PathHash;
use crate::radix::arena::Arena;

/// When a unit was used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// The caller's stamp. It never runs backwards.
    pub(crate) stamp: u64,
}

/// Why a unit leaves the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// It was evicted.
    Evicted,
    /// It is leased. It is inserted again, under the same node, when its last lease ends.
    Leased,
    /// It was taken, dropped, thinned out, or joined with another.
    Removed,
}

/// Decides which unit to evict next.
///
/// A policy keeps its per-unit state in the node's [`Placement`](crate::radix::node::Placement), or in a
/// table of its own. A node id may be reused once its unit has left for any reason but a lease.
///
/// Ranks of one model make the same calls in the same order and must evict the same units. So a policy
/// decides only by the arguments it receives here, never by bytes, addresses, a clock or hash-table
/// order, and seeds any random choice.
pub(crate) trait EvictionPolicy {
    /// Lists victims without evicting them: see [`Self::picker`].
    type Picker: VictimPicker;

    /// Adds a unit that is new or whose last lease has ended.
    ///
    /// Caller guarantees: `unit` is live and not in the policy. `fingerprint` is `Some` if
    /// [`Self::wants_fingerprints`]. The units of one path are inserted from the leaf up.
    /// Must: take amortised O(1) or O(log units).
    fn insert(&mut self, arena: &mut Arena, unit: NodeId, used: Use, fingerprint: Option<PathHash>);

    /// Records a use of a unit: a match, or another store of it.
    ///
    /// Caller guarantees: `unit` is in the policy. The units of one path are touched from the leaf up.
    /// Must: take amortised O(1) or O(log units).
    fn touch(&mut self, arena: &mut Arena, unit: NodeId, used: Use);

    /// Removes a unit.
    ///
    /// Caller guarantees: `unit` is in the policy, and its node is still live.
    /// Must: keep no reference to the node, unless `removal` is [`Removal::Leased`].
    fn remove(&mut self, arena: &mut Arena, unit: NodeId, removal: Removal);

    /// Reports a split: `upper` is new and holds the first tokens, `lower` keeps its id and the rest.
    ///
    /// Caller guarantees: neither is in the policy, since the store that splits the node leases both; both
    /// are inserted when that lease ends.
    /// Must: copy any history of `lower` to `upper`, if the policy keeps one.
    fn fork(&mut self, _arena: &mut Arena, _upper: NodeId, _lower: NodeId) {}

    /// Starts a call that uses or stores something, at the caller's `stamp`.
    ///
    /// Caller guarantees: stamps never run backwards.
    /// Must: take amortised O(1).
    fn tick(&mut self, _stamp: u64) {}

    /// Whether [`Self::insert`] needs the hash of the path up to the unit's last token, which identifies a
    /// unit that returns after it has left. The hash costs O(tokens before the unit).
    fn wants_fingerprints(&self) -> bool {
        false
    }

    /// Lists units in the order in which they would be evicted, without evicting them.
    ///
    /// Caller guarantees: the policy does not change while the picker is in use.
    /// Must: yield exactly the units that evictions would remove, in the same order. Debug builds check
    /// every eviction against it.
    fn picker(&self) -> Self::Picker;

    /// The unit to evict next; `None` if there is none.
    ///
    /// Caller guarantees: it evicts that unit or leaves the policy unchanged.
    /// Must: return a unit that is in the policy and, in a tree of full-attention layers, is a leaf.
    fn victim(&self, arena: &Arena) -> Option<NodeId> {
        self.picker().pick(arena)
    }

    /// The number of units in the policy. Must: take O(1).
    fn len(&self) -> usize;
}

/// A dry run of eviction.
pub(crate) trait VictimPicker {
    /// The next victim; `None` after the last unit.
    ///
    /// Caller guarantees: neither the arena nor the policy has changed since the picker was created.
    /// Must: return each unit once and, in a tree of full-attention layers, a node after its children.
    fn pick(&mut self, arena: &Arena) -> Option<NodeId>;
}
