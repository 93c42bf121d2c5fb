//! Eviction: the shortest run of the LRU order that is enough.
//!
//! The unit is a leaf's segment in a tree of span layers, and a checkpoint with the KV that it
//! alone made usable in a tree with checkpoints. Amortised O(1) a unit.

use crate::ids::{CheckpointId, LayoutId, NodeId, SegmentId, TreeId};
use crate::index::PrefixIndex;
use crate::ledger::Amount;

/// What left the index: the caller drops the arrays under these ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Segments, in the order in which they went.
    pub segments: Vec<SegmentId>,
    /// Checkpoints, likewise.
    pub checkpoints: Vec<CheckpointId>,
    /// What the ledger lost with them. A segment that a split replaced counts nothing: its halves
    /// hold the same tokens.
    pub amount: Amount,
    /// Units of the LRU order.
    pub units: u64,
}

impl Dropped {
    /// Whether nothing left.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.checkpoints.is_empty()
    }

    /// Appends what another step dropped.
    pub fn extend(&mut self, other: Self) {
        self.segments.extend(other.segments);
        self.checkpoints.extend(other.checkpoints);
        self.amount += other.amount;
        self.units += other.units;
    }
}

/// How much must go; all figures must be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes.
    pub nbytes: u64,
    /// Arrays.
    pub buffers: u64,
    /// Tokens of KV.
    pub tokens: u64,
    /// Units of the LRU order.
    pub units: u64,
    /// Ends of stores.
    pub sequences: u64,
}

impl PrefixIndex {
    /// Evicts the shortest run of the LRU order that reaches `need`, or all that no lease holds.
    pub fn evict(&mut self, need: Need) -> Dropped {
        let sequences = self.sequences();
        // Ranks rely on the count; debug builds hold every eviction of every test against it.
        let counted = cfg!(debug_assertions).then(|| self.count_units(need));
        let dropped = self.evict_while(
            |index| index.trees.lru.oldest(),
            |index, gone| {
                gone.amount.nbytes < need.nbytes
                    || gone.amount.buffers < need.buffers
                    || gone.amount.tokens < need.tokens
                    || gone.units < need.units
                    || sequences - index.sequences() < need.sequences
            },
        );
        debug_assert!(need.sequences > 0 || counted.is_none_or(|counted| counted == dropped.units));
        dropped
    }

    /// Evicts units last used at or before `stamp`.
    pub fn evict_idle(&mut self, stamp: u64) -> Dropped {
        let idle = |index: &Self| {
            let oldest = index.trees.lru.oldest();
            oldest.filter(|id| index.trees.arena[*id].links.stamp <= stamp)
        };
        self.evict_while(idle, |_, _| true)
    }

    /// Makes room for `nbytes` and `buffers` under the limits. `None`, and nothing evicted, where
    /// leases and reservations leave too little.
    pub fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Dropped> {
        self.room().holds(nbytes, buffers).then(|| self.evict(self.over(nbytes, buffers)))
    }

    /// Takes room for arrays that are neither held nor a store's, such as a copy that is about to
    /// replace its original. Only what is free is taken: nothing is evicted. O(1).
    pub fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> bool {
        if self.over(nbytes, buffers) != Need::default() {
            return false;
        }
        let amount = Amount { nbytes, buffers, ..Amount::default() };
        self.transient += amount;
        self.trees.ledger.reserve(amount);
        true
    }

    /// Gives room of [`Self::reserve_bytes`] back, at most what was taken. O(1).
    pub fn unreserve_bytes(&mut self, nbytes: u64, buffers: u64) {
        let (nbytes, buffers) = (nbytes.min(self.transient.nbytes), buffers.min(self.transient.buffers));
        let amount = Amount { nbytes, buffers, ..Amount::default() };
        self.transient -= amount;
        self.trees.ledger.unreserve(amount);
    }

    /// Whether evicting all that no lease holds would make that room.
    pub fn holds(&self, nbytes: u64, buffers: u64) -> bool {
        self.room().holds(nbytes, buffers)
    }

    /// By how much `nbytes` and `buffers` more would be over the limits.
    pub fn over(&self, nbytes: u64, buffers: u64) -> Need {
        let (held, reserved) = (self.trees.ledger.held(), self.trees.ledger.reserved());
        let over = |held: u64, reserved: u64, more: u64, limit: u64| {
            held.saturating_add(reserved).saturating_add(more).saturating_sub(limit)
        };
        Need {
            nbytes: over(held.nbytes, reserved.nbytes, nbytes, self.limits.max_bytes),
            buffers: over(held.buffers, reserved.buffers, buffers, self.limits.max_buffers),
            ..Need::default()
        }
    }

    /// What could be held beside all leases and reservations, if everything else went.
    pub(crate) fn room(&self) -> Room {
        let (leased, reserved) = (self.trees.ledger.leased(), self.trees.ledger.reserved());
        Room {
            nbytes: self.limits.max_bytes.saturating_sub(leased.nbytes + reserved.nbytes),
            buffers: self.limits.max_buffers.saturating_sub(leased.buffers + reserved.buffers),
        }
    }

    fn evict_while(
        &mut self,
        next: impl Fn(&Self) -> Option<NodeId>,
        mut more: impl FnMut(&Self, &Dropped) -> bool,
    ) -> Dropped {
        let mut dropped = Dropped::default();
        while more(self, &dropped) {
            let Some(next) = next(self) else { break };
            self.evict_unit(next, &mut dropped);
        }
        dropped
    }

    fn evict_unit(&mut self, id: NodeId, dropped: &mut Dropped) {
        let tree = self.trees.arena[id].tree;
        if self.trees.checkpointed(id) {
            self.trees.remove_checkpoint(id, dropped);
            self.trees.prune(id, dropped);
        } else {
            self.trees.remove_leaf(id, dropped);
        }
        dropped.units += 1;
        self.trees.remove_if_empty(tree);
    }

    /// Drops all of a namespace, leased or not: its leases are void. O(nodes and leases dropped).
    pub fn drop_namespace(&mut self, namespace: &str) -> Dropped {
        let trees = self.trees.forest.of(namespace).to_vec();
        self.drop_trees(&trees)
    }

    /// Drops everything, leased or not: all leases are void. O(nodes and leases).
    pub fn clear(&mut self) -> Dropped {
        let trees: Vec<TreeId> = self.trees.forest.iter().map(|(id, _)| id).collect();
        self.drop_trees(&trees)
    }

    fn drop_trees(&mut self, trees: &[TreeId]) -> Dropped {
        let mut dropped = Dropped::default();
        for &tree in trees {
            self.leases.void(&mut self.trees, tree);
            self.trees.empty_tree(tree, &mut dropped);
            self.trees.forest.remove(&mut self.trees.arena, tree);
        }
        dropped
    }

    /// The layouts that a namespace has trees of, oldest first.
    pub fn layouts(&self, namespace: &str) -> Vec<LayoutId> {
        let mut layouts = Vec::new();
        for id in self.trees.forest.of(namespace) {
            let layout = self.trees.forest.get(*id).layout;
            if !layouts.contains(&layout) {
                layouts.push(layout);
            }
        }
        layouts
    }
}

/// Free room under both limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) nbytes: u64,
    pub(crate) buffers: u64,
}

impl Room {
    pub(crate) fn holds(&self, nbytes: u64, buffers: u64) -> bool {
        nbytes <= self.nbytes && buffers <= self.buffers
    }
}
