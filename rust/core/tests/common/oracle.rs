//! What an index must do, as lists and linear scans.
//!
//! A segment is the tuple of all tokens from the prompt's first to the segment's last, and where it starts; a
//! checkpoint is the tuple of tokens before it; a lease is the tuple it covers. Everything else (children,
//! what is held, leased, useless or due for eviction) is recomputed each time by comparing tuples.

mod commit;
mod evict;
mod fit;
mod join;
mod lookup;
mod store;

use kvcache_core::{Amount, CheckpointId, LabelAmount, LayoutId, LeaseId, Limits, SegmentId, TreeStats};

use super::prompt::Token;
pub(crate) use store::Expected;

type Path = Vec<Token>;

/// Bytes, buffers, tokens, segments, checkpoints.
pub(crate) type Size = [u64; 5];

pub(crate) fn size(amount: Amount) -> Size {
    let Amount { nbytes, buffers, tokens, segments, checkpoints } = amount;
    [nbytes, buffers, tokens, segments, checkpoints]
}

fn plus(sum: Size, other: Size) -> Size {
    std::array::from_fn(|at| sum[at] + other[at])
}

/// A tree: only tuples in the same place can match.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    namespace: String,
    layout: u64,
    checkpointed: bool,
}

#[derive(Clone, Debug)]
struct Segment {
    path: Path,
    start: usize,
    /// `None` for a segment from `insert`, which returns no ids.
    id: Option<SegmentId>,
    bytes_per_token: u64,
    buffers: u64,
    /// Number of parts, of `buffers` arrays each.
    parts: u64,
    /// The label of each token.
    labels: Vec<u16>,
}

impl Segment {
    fn size(&self) -> Size {
        let tokens = self.labels.len() as u64;
        [tokens * self.bytes_per_token, self.buffers * self.parts, tokens, 1, 0]
    }
}

#[derive(Clone, Debug)]
struct Checkpoint {
    path: Path,
    id: CheckpointId,
    nbytes: u64,
    buffers: u64,
    trimmable: bool,
    /// The sequence number of the last store whose prompt ends here.
    prompt: u64,
}

impl Checkpoint {
    fn size(&self) -> Size {
        [self.nbytes, self.buffers, 0, 0, 1]
    }
}

#[derive(Debug)]
struct Tree {
    place: Place,
    segments: Vec<Segment>,
    checkpoints: Vec<Checkpoint>,
    ends: Vec<(Path, u16)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Holder {
    Caller(LeaseId),
    Store(u64),
}

#[derive(Debug)]
struct Lease {
    holder: Holder,
    place: Place,
    path: Path,
    checkpoint: Option<Path>,
}

/// A segment or a checkpoint in the recency list.
#[derive(Debug)]
struct Unit {
    place: Place,
    path: Path,
    stamp: u64,
}

/// What left the index.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    pub(crate) segments: Vec<Option<SegmentId>>,
    pub(crate) checkpoints: Vec<CheckpointId>,
    pub(crate) size: Size,
    pub(crate) units: u64,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    limits: Limits,
    /// In order of creation.
    trees: Vec<Tree>,
    /// Oldest first, without leased units.
    recency: Vec<Unit>,
    leases: Vec<Lease>,
    drafts: Vec<store::Open>,
    plans: Vec<store::Open>,
    stores: u64,
    prompts: u64,
    stamp: u64,
    /// Segments joined in the last call, with the ids they replace.
    joined: Vec<(Place, Path, Vec<Option<SegmentId>>)>,
    /// Room reserved outside of stores.
    transient: Vec<Size>,
    /// Media contents in the order in which they were first stored.
    contents: Vec<(u8, usize)>,
}

impl Oracle {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            trees: Vec::new(),
            recency: Vec::new(),
            leases: Vec::new(),
            drafts: Vec::new(),
            plans: Vec::new(),
            stores: 0,
            prompts: 0,
            stamp: 0,
            joined: Vec::new(),
            transient: Vec::new(),
            contents: Vec::new(),
        }
    }

    fn tick(&mut self, stamp: u64) {
        self.stamp = self.stamp.max(stamp);
    }

    fn tree(&self, place: &Place) -> Option<&Tree> {
        self.trees.iter().find(|tree| tree.place == *place)
    }

    fn tree_mut(&mut self, place: &Place) -> &mut Tree {
        let existing = self.trees.iter().position(|tree| tree.place == *place);
        let at = existing.unwrap_or(self.trees.len());
        if existing.is_none() {
            let place = place.clone();
            self.trees.push(Tree { place, segments: vec![], checkpoints: vec![], ends: vec![] });
        }
        &mut self.trees[at]
    }

    fn covered(&self, place: &Place, path: &[Token]) -> bool {
        self.leases.iter().any(|lease| lease.place == *place && lease.path.starts_with(path))
    }

    fn checkpoint_leased(&self, place: &Place, path: &[Token]) -> bool {
        self.leases.iter().any(|lease| lease.place == *place && lease.checkpoint.as_deref() == Some(path))
    }

    /// The size of everything that is protected from eviction.
    fn leased(&self) -> Size {
        let mut sum = Size::default();
        for tree in &self.trees {
            let segments = tree.segments.iter().filter(|one| self.covered(&tree.place, &one.path));
            let held = |one: &&Checkpoint| self.checkpoint_leased(&tree.place, &one.path);
            sum = segments.map(Segment::size).fold(sum, plus);
            sum = tree.checkpoints.iter().filter(held).map(Checkpoint::size).fold(sum, plus);
        }
        sum
    }

    pub(crate) fn reserved(&self) -> Size {
        let promised = self.plans.iter().map(|open| open.cost);
        promised.chain(self.transient.iter().copied()).fold(Size::default(), plus)
    }

    pub(crate) fn leased_bytes(&self) -> u64 {
        self.leased()[0]
    }

    pub(crate) fn held(&self) -> Size {
        self.trees.iter().map(Tree::size).fold(Size::default(), plus)
    }

    pub(crate) fn units(&self) -> u64 {
        self.recency.len() as u64
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    fn sequences(&self) -> u64 {
        self.trees.iter().map(|tree| tree.ends.len() as u64).sum()
    }

    fn entries(&self) -> u64 {
        self.trees.iter().map(|tree| tree.entries().count() as u64).sum()
    }

    pub(crate) fn namespaces(&self) -> Vec<String> {
        let mut names: Vec<String> = self.trees.iter().map(|tree| tree.place.namespace.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    pub(crate) fn layouts(&self, namespace: &str) -> Vec<LayoutId> {
        let mut layouts = Vec::new();
        for tree in self.trees.iter().filter(|tree| tree.place.namespace == namespace) {
            let layout = LayoutId(tree.place.layout);
            if !layouts.contains(&layout) {
                layouts.push(layout);
            }
        }
        layouts
    }

    pub(crate) fn stats(&self, namespace: &str) -> TreeStats {
        let mut stats = TreeStats::default();
        for tree in self.trees.iter().filter(|tree| tree.place.namespace == namespace) {
            let [nbytes, buffers, tokens, segments, checkpoints] = tree.size();
            stats.nbytes += nbytes;
            stats.buffers += buffers;
            stats.ntokens += tokens;
            stats.segments += segments;
            stats.nodes += segments;
            stats.checkpoints += checkpoints;
            stats.sequences += tree.ends.len() as u64;
            stats.entries += tree.entries().count() as u64;
        }
        stats
    }

    pub(crate) fn label(&self, label: u16) -> LabelAmount {
        let mut sum = LabelAmount::default();
        for tree in &self.trees {
            sum.sequences += tree.ends.iter().filter(|end| end.1 == label).count() as u64;
            sum.entries += tree.entries().filter(|end| end.1 == label).count() as u64;
            for segment in &tree.segments {
                let tokens = segment.labels.iter().filter(|one| **one == label).count() as u64;
                sum.ntokens += tokens;
                sum.nbytes += tokens * segment.bytes_per_token;
            }
            // A checkpoint counts under the label of the token before it.
            for checkpoint in &tree.checkpoints {
                let on = |one: &Segment| one.path == checkpoint.path && one.labels.last() == Some(&label);
                sum.nbytes += if tree.segments.iter().any(on) { checkpoint.nbytes } else { 0 };
            }
        }
        sum
    }

    /// All ids that the holder of the arrays must have.
    pub(crate) fn ids(&self) -> (Vec<Option<SegmentId>>, Vec<CheckpointId>) {
        let segments = self.trees.iter().flat_map(|tree| &tree.segments).map(|one| one.id);
        let checkpoints = self.trees.iter().flat_map(|tree| &tree.checkpoints).map(|one| one.id);
        (segments.collect(), checkpoints.collect())
    }
}

impl Tree {
    /// The ends that no other store extends; in a tree with checkpoints, all ends.
    fn entries(&self) -> impl Iterator<Item = &(Path, u16)> {
        let extends = |longer: &Path, path: &Path| longer.len() > path.len() && longer.starts_with(path);
        let covered = move |path: &Path| self.ends.iter().any(|(longer, _)| extends(longer, path));
        self.ends.iter().filter(move |(path, _)| self.place.checkpointed || !covered(path))
    }

    fn size(&self) -> Size {
        let segments = self.segments.iter().map(Segment::size);
        segments.chain(self.checkpoints.iter().map(Checkpoint::size)).fold(Size::default(), plus)
    }
}
