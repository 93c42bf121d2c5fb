//! Statistics.

use crate::ids::LayoutId;
use crate::index::PrefixIndex;
use crate::ledger::{Amount, LabelAmount, Sequences};
use crate::order::policy::EvictionPolicy;
use crate::store::in_flight::Draft;
use crate::trees::Trees;

/// Statistics of all trees, or of one namespace's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Bytes of KV and checkpoints.
    pub nbytes: u64,
    /// Tokens of KV; a shared prefix counts once.
    pub ntokens: u64,
    /// Arrays.
    pub buffers: u64,
    /// Nodes, not counting roots.
    pub nodes: u64,
    /// Segments.
    pub segments: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Distinct stored sequences that are fully present, counting nested ones separately.
    pub sequences: u64,
    /// Those that no other stored sequence covers: in a tree of full-attention layers those that no
    /// other extends, in a tree with checkpoints all of them.
    pub entries: u64,
}

/// Statistics of the whole index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sums over all trees.
    pub trees: TreeStats,
    /// Leased bytes.
    pub leased_bytes: u64,
    /// Bytes reserved for stores in flight and by `reserve_bytes`.
    pub reserved_bytes: u64,
    /// Units that an eviction can take now.
    pub units: u64,
    /// Namespaces with at least one tree.
    pub namespaces: u64,
    /// Heap bytes of the index itself.
    pub index_bytes: u64,
}

impl PrefixIndex {
    /// Statistics of the whole index. O(1).
    pub fn stats(&self) -> Stats {
        let Trees { arena, forest, ledger, .. } = &self.trees;
        Stats {
            // Roots are not counted as nodes.
            trees: tree_stats(ledger.held(), (arena.len() - forest.len()) as u64, ledger.sequences()),
            leased_bytes: self.leased_bytes(),
            reserved_bytes: self.reserved_bytes(),
            units: self.units(),
            namespaces: forest.names() as u64,
            index_bytes: self.index_bytes() as u64,
        }
    }

    /// Statistics of a namespace, all zero if it holds nothing. O(layouts of the namespace).
    pub fn namespace_stats(&self, namespace: &str) -> TreeStats {
        let mut sum = TreeStats::default();
        for id in self.trees.forest.of(namespace) {
            let tree = self.trees.forest.get(*id);
            sum += tree_stats(tree.held, tree.nodes, tree.sequences);
        }
        sum
    }

    /// Namespaces that hold something, in no particular order.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.trees.forest.namespaces()
    }

    /// Distinct stored sequences that are fully present, counting nested ones separately. O(1).
    pub fn sequences(&self) -> u64 {
        self.trees.ledger.sequences().all
    }

    /// Stored sequences that no other one covers. O(1).
    pub fn entries(&self) -> u64 {
        self.trees.ledger.sequences().entries
    }

    /// What the stores under each label hold.
    pub fn labels(&self) -> &[LabelAmount] {
        self.trees.ledger.labels()
    }

    /// The layouts for which a namespace has trees, oldest first.
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

    /// The distinct layouts that a tree, a draft or a plan refers to. O(trees and open plans).
    pub fn live_layouts(&self) -> Vec<LayoutId> {
        let trees = self.trees.forest.iter().map(|(_, tree)| tree.layout);
        let plans = self.plans.values().map(|plan| plan.draft.layout());
        let drafts = self.drafts.values().map(Draft::layout);
        let mut layouts: Vec<LayoutId> = trees.chain(plans).chain(drafts).collect();
        layouts.sort_unstable();
        layouts.dedup();
        layouts
    }

    /// Bytes held. O(1).
    pub fn nbytes(&self) -> u64 {
        self.trees.ledger.held().nbytes
    }

    /// Tokens held. O(1).
    pub fn ntokens(&self) -> u64 {
        self.trees.ledger.held().tokens
    }

    /// Units that an eviction can take now. O(1).
    pub fn units(&self) -> u64 {
        self.trees.order.len() as u64
    }

    /// Leased bytes. O(1).
    pub fn leased_bytes(&self) -> u64 {
        self.trees.ledger.leased().nbytes
    }

    /// Bytes reserved for stores in flight and by `reserve_bytes`. O(1).
    pub fn reserved_bytes(&self) -> u64 {
        self.trees.ledger.reserved().nbytes
    }

    fn index_bytes(&self) -> usize {
        self.trees.arena.bytes()
            + self.trees.forest.bytes()
            + self.trees.ledger.bytes()
            + self.leases.bytes()
            + self.trees.contents.bytes()
            + self.trees.media.bytes()
            + self.plans.bytes()
            + self.drafts.bytes()
    }
}

fn tree_stats(held: Amount, nodes: u64, sequences: Sequences) -> TreeStats {
    TreeStats {
        nbytes: held.nbytes,
        ntokens: held.tokens,
        buffers: held.buffers,
        nodes,
        segments: held.segments,
        checkpoints: held.checkpoints,
        sequences: sequences.all,
        entries: sequences.entries,
    }
}

impl std::ops::AddAssign for TreeStats {
    fn add_assign(&mut self, other: Self) {
        self.nbytes += other.nbytes;
        self.ntokens += other.ntokens;
        self.buffers += other.buffers;
        self.nodes += other.nodes;
        self.segments += other.segments;
        self.checkpoints += other.checkpoints;
        self.sequences += other.sequences;
        self.entries += other.entries;
    }
}
