//! What an eviction policy is: both sides of its contract, method by method.

use crate::ids::NodeId;
use crate::keys::hash::PathHash;
use crate::radix::arena::Arena;

/// When a unit was used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    /// The caller's time. It never runs backwards.
    pub(crate) stamp: u64,
}

/// Why a unit leaves its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It was the victim.
    Evicted,
    /// A lease holds it. It is inserted again, under the same node, when the last lease ends.
    Leased,
    /// It was taken, dropped, thinned out, or joined with another.
    Removed,
}

/// Decides which unit is evicted next.
///
/// What a policy keeps for each unit is its [`Placement`](crate::radix::node::Placement) in the node, or
/// a table of its own; a node's id may be used again once the unit has left for another reason than a
/// lease. Ranks of one model do the same in the same order and must evict the same: a policy decides by
/// what it is told here alone, never by bytes, addresses, a clock or the order of a hash table. What it
/// draws at random comes from a seed.
pub(crate) trait EvictionPolicy {
    /// Decides as [`Self::picker`] says, one unit after the other.
    type Picker: VictimPicker;

    /// A unit came to be, or its last lease ended: it is in the policy from now on.
    ///
    /// Caller guarantees: `unit` is live and not in the policy. `fingerprint` is given if
    /// [`Self::wants_fingerprints`]. The units of one path are inserted from the leaf up.
    /// Must: take amortised O(1) or O(log units).
    fn insert(&mut self, arena: &mut Arena, unit: NodeId, used: Use, fingerprint: Option<PathHash>);

    /// A unit was used: matched, or stored again.
    ///
    /// Caller guarantees: `unit` is in the policy. The units of one path are touched from the leaf up.
    /// Must: take amortised O(1) or O(log units).
    fn touch(&mut self, arena: &mut Arena, unit: NodeId, used: Use);

    /// A unit leaves.
    ///
    /// Caller guarantees: `unit` is in the policy, and its node still live.
    /// Must: keep nothing that names the node, unless `leaving` is [`Leaving::Leased`].
    fn remove(&mut self, arena: &mut Arena, unit: NodeId, leaving: Leaving);

    /// A node was split: `upper` is new and holds the first tokens, `lower` keeps its id and the rest.
    ///
    /// Caller guarantees: neither is in the policy, since the store that splits leases both; both are
    /// inserted when that lease ends.
    /// Must: let both inherit what is known about `lower`, if it keeps such a thing.
    fn fork(&mut self, _arena: &mut Arena, _upper: NodeId, _lower: NodeId) {}

    /// A call that uses or stores something begins, at this time of the caller's.
    ///
    /// Caller guarantees: times never run backwards.
    /// Must: take amortised O(1).
    fn tick(&mut self, _stamp: u64) {}

    /// Whether [`Self::insert`] is to be given the hash of the path up to the unit's last token, by which
    /// a unit is known again after it has left. It costs O(tokens before the unit).
    fn wants_fingerprints(&self) -> bool {
        false
    }

    /// The order in which units would be evicted now, without evicting them.
    ///
    /// Caller guarantees: the policy is not changed while the picker is used.
    /// Must: give what as many evictions would take, in the same order. Debug builds hold every eviction
    /// against it.
    fn picker(&self) -> Self::Picker;

    /// The unit to evict next; `None` if there is none.
    ///
    /// Caller guarantees: it evicts that unit, or changes nothing.
    /// Must: return a unit that is in the policy; in a tree of full-attention layers one without children.
    fn victim(&self, arena: &Arena) -> Option<NodeId> {
        self.picker().pick(arena)
    }

    /// Units in the policy. Must: take O(1).
    fn len(&self) -> usize;
}

/// A dry run of evictions.
pub(crate) trait VictimPicker {
    /// The next victim; `None` once every unit was picked.
    ///
    /// Caller guarantees: neither the arena nor the policy has changed since the picker was made.
    /// Must: return each unit once, and in a tree of full-attention layers a node after its children.
    fn pick(&mut self, arena: &Arena) -> Option<NodeId>;
}
