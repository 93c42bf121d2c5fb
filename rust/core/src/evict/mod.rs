//! Eviction: removes the policy's victims one by one until enough is free. Also drops whole namespaces.
//!
//! A unit is a leaf's segment in a tree of full-attention layers; in a tree with checkpoints it is a
//! checkpoint and the KV that only it makes usable. Amortised O(1) per unit with the LRU policy.

mod count;
mod need;
mod retention;
mod room;

use crate::dropped::Dropped;
use crate::ids::{NodeId, TreeId};
use crate::index::PrefixIndex;
use crate::order::policy::{EvictionPolicy, Removal};

pub use need::Need;
pub(crate) use need::Room;

impl PrefixIndex {
    /// Evicts units in eviction order until `need` is met or only leased units are left.
    pub fn evict(&mut self, need: Need) -> Dropped {
        let before = self.trees.ledger.sequences();
        // Ranks rely on the count, so debug builds check it against every eviction.
        let counted = cfg!(debug_assertions).then(|| self.count_units(need));
        let dropped = self.evict_while(
            |_, _| true,
            |index, dropped| {
                let now = index.trees.ledger.sequences();
                dropped.amount.nbytes < need.nbytes
                    || dropped.amount.buffers < need.buffers
                    || dropped.amount.tokens < need.tokens
                    || dropped.units < need.units
                    || before.all - now.all < need.sequences
                    || before.entries - now.entries < need.entries
            },
        );
        debug_assert!(counted.is_none_or(|counted| counted == dropped.units));
        dropped
    }

    /// Evicts units in eviction order for as long as the next one was last used at or before `stamp`.
    pub fn evict_idle(&mut self, stamp: u64) -> Dropped {
        self.evict_while(|index, id| index.trees.arena[id].placement.stamp <= stamp, |_, _| true)
    }

    /// Evicts the policy's victims while `more` is true and `accept` agrees to the next one.
    fn evict_while(
        &mut self,
        accept: impl Fn(&Self, NodeId) -> bool,
        mut more: impl FnMut(&Self, &Dropped) -> bool,
    ) -> Dropped {
        let mut dropped = Dropped::default();
        while more(self, &dropped) {
            let victim = self.trees.order.victim(&self.trees.arena);
            let Some(victim) = victim.filter(|id| accept(self, *id)) else { break };
            self.evict_unit(victim, &mut dropped);
        }
        dropped
    }

    fn evict_unit(&mut self, id: NodeId, dropped: &mut Dropped) {
        let tree = self.trees.arena[id].tree;
        self.trees.unlist(id, Removal::Evicted);
        if self.trees.checkpointed(id) {
            self.trees.remove_checkpoint(id, dropped);
            self.trees.prune(id, dropped);
        } else {
            self.trees.remove_leaf(id, dropped);
        }
        dropped.units += 1;
        self.trees.remove_if_empty(tree);
    }

    /// Drops a namespace, leased or not; its leases become void. O(nodes and leases dropped).
    pub fn drop_namespace(&mut self, namespace: &str) -> Dropped {
        let trees = self.trees.forest.of(namespace).to_vec();
        self.drop_trees(&trees)
    }

    /// Drops everything, leased or not; all leases become void. O(nodes and leases).
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
}
