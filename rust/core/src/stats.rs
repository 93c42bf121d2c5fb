//! Figures, as they stand now.

use crate::ids::LayoutId;
use crate::index::PrefixIndex;
use crate::ledger::LabelAmount;
use crate::policy::Ranked;
use crate::store::{Draft, Pending};

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
    /// Distinct ends of stores that are fully present.
    pub sequences: u64,
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
    /// Units of the LRU order.
    pub units: u64,
    /// Namespaces with at least one tree.
    pub namespaces: u64,
    /// Heap bytes of the index itself.
    pub index_bytes: u64,
}

impl PrefixIndex {
    /// O(trees and open plans).
    pub fn stats(&self) -> Stats {
        let namespaces: Vec<&str> = self.trees.forest.namespaces().collect();
        let mut trees = TreeStats::default();
        for namespace in &namespaces {
            trees += self.namespace_stats(namespace);
        }
        Stats {
            trees,
            leased_bytes: self.trees.ledger.leased().nbytes,
            reserved_bytes: self.trees.ledger.reserved().nbytes,
            units: self.trees.lru.len() as u64,
            namespaces: namespaces.len() as u64,
            index_bytes: self.index_bytes() as u64,
        }
    }

    /// O(layouts of the namespace). All zero where nothing is stored.
    pub fn namespace_stats(&self, namespace: &str) -> TreeStats {
        let mut sum = TreeStats::default();
        for id in self.trees.forest.of(namespace) {
            let tree = self.trees.forest.get(*id);
            sum += TreeStats {
                nbytes: tree.held.nbytes,
                ntokens: tree.held.tokens,
                buffers: tree.held.buffers,
                nodes: tree.nodes,
                segments: tree.held.segments,
                checkpoints: tree.held.checkpoints,
                sequences: tree.sequences,
            };
        }
        sum
    }

    /// Namespaces that hold something, in no particular order.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.trees.forest.namespaces()
    }

    /// Ends of stores that are fully present, over all trees. O(1).
    pub fn sequences(&self) -> u64 {
        self.trees.ledger.labels().iter().map(|label| label.sequences).sum()
    }

    /// What each label's stores hold.
    pub fn labels(&self) -> &[LabelAmount] {
        self.trees.ledger.labels()
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

    /// Bytes that leases keep. O(1).
    pub fn leased_bytes(&self) -> u64 {
        self.trees.ledger.leased().nbytes
    }

    /// Units that could be evicted now. O(1).
    pub fn units(&self) -> u64 {
        self.trees.lru.len() as u64
    }

    /// Bytes held. O(1).
    pub fn nbytes(&self) -> u64 {
        self.trees.ledger.held().nbytes
    }

    /// Tokens held. O(1).
    pub fn ntokens(&self) -> u64 {
        self.trees.ledger.held().tokens
    }

    fn index_bytes(&self) -> usize {
        let plans: usize = self.plans.values().map(Pending::heap_bytes).sum();
        let drafts: usize = self.drafts.values().map(Draft::heap_bytes).sum();
        self.trees.arena.bytes()
            + self.trees.forest.bytes()
            + self.trees.ledger.bytes()
            + self.leases.bytes()
            + self.trees.ranked.as_ref().map_or(0, Ranked::bytes)
            + self.media.bytes()
            + self.plans.allocation_size()
            + self.drafts.allocation_size()
            + plans
            + drafts
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
    }
}
