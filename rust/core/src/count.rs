//! How many units an eviction would take, without evicting.
//!
//! Ranks of one model hold different bytes under the same tokens. Each counts what it needs in
//! units of the LRU order, which is the same everywhere, and all evict the largest count.

use hashbrown::HashMap;

use crate::evict::Need;
use crate::ids::NodeId;
use crate::index::PrefixIndex;
use crate::ledger::Amount;
use crate::radix::edit::{checkpoint_amount, segment_amount};

impl PrefixIndex {
    /// The number of units that [`evict`](Self::evict) would take for `need`; sequences are not
    /// looked at. O(units counted and nodes that go with them).
    pub fn count_units(&self, need: Need) -> u64 {
        let mut gone = Gone::default();
        let mut units = 0;
        let reached = |gone: &Gone, units: u64| {
            gone.amount.nbytes >= need.nbytes
                && gone.amount.buffers >= need.buffers
                && gone.amount.tokens >= need.tokens
                && units >= need.units
        };
        let mut order = self.trees.lru.iter(&self.trees.arena);
        while !reached(&gone, units) {
            let Some(id) = order.next() else { break };
            self.count_unit(id, &mut gone);
            units += 1;
        }
        units
    }

    /// The number of units last used at or before `stamp`. O(units counted).
    pub fn count_idle(&self, stamp: u64) -> u64 {
        let arena = &self.trees.arena;
        self.trees.lru.iter(arena).take_while(|id| arena[*id].links.stamp <= stamp).count() as u64
    }

    fn count_unit(&self, id: NodeId, gone: &mut Gone) {
        let arena = &self.trees.arena;
        if !self.trees.checkpointed(id) {
            gone.amount += segment_amount(&arena[id]);
            return;
        }
        if let Some(checkpoint) = &arena[id].checkpoint {
            gone.amount += checkpoint_amount(checkpoint);
        }
        gone.at(id).checkpoint = true;
        let mut at = id;
        while self.unneeded(at, gone) {
            gone.amount += segment_amount(&arena[at]);
            at = arena[at].parent;
            gone.at(at).children += 1;
        }
    }

    /// Whether nothing that is still there needs the node's KV, as in `prune`.
    fn unneeded(&self, id: NodeId, gone: &Gone) -> bool {
        let node = &self.trees.arena[id];
        let lost = gone.nodes.get(&id).copied().unwrap_or_default();
        let checkpoint = node.checkpoint.is_some() && !lost.checkpoint;
        !node.is_root() && node.children.len() == lost.children && !checkpoint && node.leases == 0
    }
}

/// What would be gone by now.
#[derive(Default)]
struct Gone {
    amount: Amount,
    nodes: HashMap<NodeId, Lost>,
}

/// What a node would have lost by now.
#[derive(Clone, Copy, Default)]
struct Lost {
    checkpoint: bool,
    children: usize,
}

impl Gone {
    fn at(&mut self, id: NodeId) -> &mut Lost {
        self.nodes.entry(id).or_default()
    }
}
