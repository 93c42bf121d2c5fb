//! Figures, as they stand now.

use crate::ids::LayoutId;
use crate::index::PrefixIndex;
use crate::ledger::{Amount, LabelAmount, Sequences};
use crate::order::policy::EvictionPolicy;
use crate::store::under_way::Draft;
use crate::trees::Trees;

/// Figures of all trees, or of one namespace's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeStats {
    /// Bytes of KV and checkpoints.
    pub nbytes: u64,
    /// Tokens of KV; a shared prefix counts once.
    pub ntokens: u64,
    /// Arrays.
    pub buffers: u64,
    /// Nodes, roots aside.
    pub nodes: u64,
    /// Segments.
    pub segments: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Distinct ends of stores that are fully present, nested ones each.
    pub sequences: u64,
    /// Those that no other stored sequence covers: in a tree of full-attention layers those that none
    /// extends, in a tree with checkpoints all.
    pub entries: u64,
}

/// Figures of the whole index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sums over all trees.
    pub trees: TreeStats,
    /// Bytes that leases keep.
    pub leased_bytes: u64,
    /// Bytes promised to stores that have not ended.
    pub reserved_bytes: u64,
    /// Units of eviction.
    pub units: u64,
    /// Namespaces with at least one tree.
    pub namespaces: u64,
    /// Heap bytes of the index itself.
    pub index_bytes: u64,
}

impl PrefixIndex {
    /// O(1).
    pub fn stats(&self) -> Stats {
        let Trees { arena, forest, ledger, .. } = &self.trees;
        Stats {
            // A tree's root is no node of its own.
            trees: tree_stats(ledger.held(), (arena.len() - forest.len()) as u64, ledger.sequences()),
            leased_bytes: self.leased_bytes(),
            reserved_bytes: self.reserved_bytes(),
            units: self.units(),
            namespaces: forest.names() as u64,
            index_bytes: self.index_bytes() as u64,
        }
    }

    /// O(layouts of the namespace). All zero where nothing is stored.
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

    /// Distinct ends of stores that are fully present, over all trees, nested ones each. O(1).
    pub fn sequences(&self) -> u64 {
        self.trees.ledger.sequences().all
    }

    /// Those of them that no other stored sequence covers. O(1).
    pub fn entries(&self) -> u64 {
        self.trees.ledger.sequences().entries
    }

    /// What each label's stores hold.
    pub fn labels(&self) -> &[LabelAmount] {
        self.trees.ledger.labels()
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

    /// The layouts that a tree, a draft or a plan refers to, each once. O(trees and open plans).
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

    /// Bytes that leases keep. O(1).
    pub fn leased_bytes(&self) -> u64 {
        self.trees.ledger.leased().nbytes
    }

    /// Bytes promised to what is under way. O(1).
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
