//! Dry runs of eviction: how many units it would take.
//!
//! Ranks of one model hold different byte counts for the same tokens. Each rank counts its need in units,
//! which are the same on all, and all evict the largest count.

use hashbrown::HashMap;

use crate::evict::need::Need;
use crate::ids::NodeId;
use crate::index::PrefixIndex;
use crate::ledger::{Amount, Sequences};
use crate::radix::arena::Arena;
use crate::trees::ends::entry;

impl PrefixIndex {
    /// The number of units that [`evict`](Self::evict) would take for `need`. O(units counted and nodes
    /// evicted with them).
    pub fn count_units(&self, need: Need) -> u64 {
        let arena = &self.trees.arena;
        let mut dry_run = DryRun::default();
        let mut units = 0;
        let mut order = self.trees.order.iter(arena);
        while !dry_run.reaches(need, units) {
            let Some(id) = order.next() else { break };
            if self.trees.checkpointed(id) {
                dry_run.remove_checkpoint(arena, id);
            } else {
                dry_run.remove_leaf(arena, id);
            }
            units += 1;
        }
        units
    }

    /// The number of units that [`evict_idle`](Self::evict_idle) would take. O(units counted).
    pub fn count_idle(&self, stamp: u64) -> u64 {
        let arena = &self.trees.arena;
        self.trees.order.iter(arena).take_while(|id| arena[*id].placement.stamp <= stamp).count() as u64
    }
}

/// What the dry run has evicted so far.
#[derive(Default)]
struct DryRun {
    amount: Amount,
    sequences: Sequences,
    nodes: HashMap<NodeId, Removed>,
}

/// What the dry run has removed from a node so far.
#[derive(Clone, Copy, Default)]
struct Removed {
    checkpoint: bool,
    children: usize,
    /// Children that had the end of a stored sequence at or below them.
    ended: usize,
}

impl DryRun {
    fn reaches(&self, need: Need, units: u64) -> bool {
        self.amount.nbytes >= need.nbytes
            && self.amount.buffers >= need.buffers
            && self.amount.tokens >= need.tokens
            && self.sequences.all >= need.sequences
            && self.sequences.entries >= need.entries
            && units >= need.units
    }

    /// Removes a node whose children are gone, in a tree of full-attention layers.
    fn remove_leaf(&mut self, arena: &Arena, id: NodeId) {
        let node = &arena[id];
        self.amount += node.amount();
        if node.ends.is_none() {
            return;
        }
        self.sequences.all += node.ends().len() as u64;
        self.sequences.entries += 1;
        let mut at = id;
        // The nodes above whose only end below was this one have none left. The next one up that has an
        // end of its own gets the entry.
        while !arena[at].is_root() {
            at = arena[at].parent;
            let removed = self.nodes.entry(at).or_default();
            removed.ended += 1;
            let ended = arena[at].children.ended() - removed.ended;
            if entry(&arena[at], false, ended).is_some() {
                self.sequences.entries -= 1;
            }
            if ended > 0 || arena[at].ends.is_some() {
                return;
            }
        }
    }

    /// Removes a checkpoint and the KV that nothing else needs.
    fn remove_checkpoint(&mut self, arena: &Arena, id: NodeId) {
        let node = &arena[id];
        self.amount +=
            node.checkpoint.as_ref().map_or_else(Amount::default, |checkpoint| checkpoint.amount());
        self.sequences.all += node.ends().len() as u64;
        self.sequences.entries += node.ends().len() as u64;
        self.nodes.entry(id).or_default().checkpoint = true;
        let mut at = id;
        while self.is_unneeded(arena, at) {
            self.amount += arena[at].amount();
            at = arena[at].parent;
            self.nodes.entry(at).or_default().children += 1;
        }
    }

    fn is_unneeded(&self, arena: &Arena, id: NodeId) -> bool {
        let (node, removed) = (&arena[id], self.nodes.get(&id).copied().unwrap_or_default());
        (node.checkpoint.is_none() || removed.checkpoint)
            && node.is_free(node.children.len() - removed.children)
    }
}
