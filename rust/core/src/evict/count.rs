//! A dry run of evictions: how many units they would take.
//!
//! Ranks of one model hold different bytes under the same tokens. Each counts what it needs in units,
//! which are the same everywhere, and all evict the largest count.

use hashbrown::HashMap;

use crate::evict::need::Need;
use crate::ids::NodeId;
use crate::index::PrefixIndex;
use crate::ledger::{Amount, Sequences};
use crate::radix::arena::Arena;
use crate::trees::ends::entry;

impl PrefixIndex {
    /// The number of units that [`evict`](Self::evict) would take for `need`. O(units counted and nodes
    /// that are evicted with them).
    pub fn count_units(&self, need: Need) -> u64 {
        let arena = &self.trees.arena;
        let mut gone = Gone::default();
        let mut units = 0;
        let mut order = self.trees.order.iter(arena);
        while !gone.reaches(need, units) {
            let Some(id) = order.next() else { break };
            if self.trees.checkpointed(id) {
                gone.remove_checkpoint(arena, id);
            } else {
                gone.remove_leaf(arena, id);
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

/// What would be gone by now.
#[derive(Default)]
struct Gone {
    amount: Amount,
    sequences: Sequences,
    nodes: HashMap<NodeId, Lost>,
}

/// What a node would have lost by now.
#[derive(Clone, Copy, Default)]
struct Lost {
    checkpoint: bool,
    children: usize,
    /// Children that lead to the end of a stored sequence.
    ended: usize,
}

impl Gone {
    fn reaches(&self, need: Need, units: u64) -> bool {
        self.amount.nbytes >= need.nbytes
            && self.amount.buffers >= need.buffers
            && self.amount.tokens >= need.tokens
            && self.sequences.all >= need.sequences
            && self.sequences.entries >= need.entries
            && units >= need.units
    }

    /// A node of a tree of full-attention layers, whose children are gone.
    fn remove_leaf(&mut self, arena: &Arena, id: NodeId) {
        let node = &arena[id];
        self.amount += node.amount();
        if node.ends.is_none() {
            return;
        }
        self.sequences.all += node.ends().len() as u64;
        self.sequences.entries += 1;
        let mut at = id;
        // The nodes above that led to an end here alone do not any longer; the next one that has an end
        // of its own then has the entry.
        while !arena[at].is_root() {
            at = arena[at].parent;
            let lost = self.nodes.entry(at).or_default();
            lost.ended += 1;
            let ended = arena[at].children.ended() - lost.ended;
            if entry(&arena[at], false, ended).is_some() {
                self.sequences.entries -= 1;
            }
            if ended > 0 || arena[at].ends.is_some() {
                return;
            }
        }
    }

    /// A checkpoint, and the KV that nothing else needs.
    fn remove_checkpoint(&mut self, arena: &Arena, id: NodeId) {
        let node = &arena[id];
        self.amount += node.checkpoint.as_ref().map_or_else(Amount::default, |one| one.amount());
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
        let (node, lost) = (&arena[id], self.nodes.get(&id).copied().unwrap_or_default());
        (node.checkpoint.is_none() || lost.checkpoint) && node.is_free(node.children.len() - lost.children)
    }
}
