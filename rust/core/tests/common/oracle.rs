//! What an index must do, in lists and linear scans.
//!
//! A segment is the whole tuple of tokens from the first to its last, and where it starts; a
//! checkpoint is the tuple that it stands after; a lease is the tuple that it covers. Who hangs
//! on whom, what is held, leased, dead or due is found by comparing tuples, each time anew.

mod lookup;
mod store;

use kvcache_core::{Amount, CheckpointId, LabelAmount, LayoutId, LeaseId, Limits, Need, SegmentId, TreeStats};

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

/// Where tuples can match each other.
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
    /// Not known where the index was asked for bookkeeping only.
    id: Option<SegmentId>,
    bytes_per_token: u64,
    buffers: u64,
    label: u16,
}

impl Segment {
    fn size(&self) -> Size {
        let tokens = (self.path.len() - self.start) as u64;
        [tokens * self.bytes_per_token, self.buffers, tokens, 1, 0]
    }
}

#[derive(Clone, Debug)]
struct Checkpoint {
    path: Path,
    id: CheckpointId,
    nbytes: u64,
    buffers: u64,
    trimmable: bool,
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

/// A segment or a checkpoint in the order of use.
#[derive(Debug)]
struct Unit {
    place: Place,
    path: Path,
    stamp: u64,
}

/// What left.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    pub(crate) segments: Vec<Option<SegmentId>>,
    pub(crate) checkpoints: Vec<CheckpointId>,
    pub(crate) size: Size,
    pub(crate) units: u64,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    limits: Limits,
    /// In the order in which they came to be.
    trees: Vec<Tree>,
    /// Oldest first; what a lease covers is not in it.
    recency: Vec<Unit>,
    leases: Vec<Lease>,
    plans: Vec<store::Open>,
    stores: u64,
    stamp: u64,
    /// Contents of media spans in the order in which stores first brought them.
    contents: Vec<(u8, usize)>,
}

impl Oracle {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            trees: Vec::new(),
            recency: Vec::new(),
            leases: Vec::new(),
            plans: Vec::new(),
            stores: 0,
            stamp: 0,
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
        let found = self.trees.iter().position(|tree| tree.place == *place);
        let at = found.unwrap_or(self.trees.len());
        if found.is_none() {
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

    /// Everything that eviction must leave alone.
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
        self.plans.iter().map(|open| open.cost).fold(Size::default(), plus)
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

    pub(crate) fn figures(&self, namespace: &str) -> TreeStats {
        let mut figures = TreeStats::default();
        for tree in self.trees.iter().filter(|tree| tree.place.namespace == namespace) {
            let [nbytes, buffers, tokens, segments, checkpoints] = tree.size();
            figures.nbytes += nbytes;
            figures.buffers += buffers;
            figures.ntokens += tokens;
            figures.segments += segments;
            figures.nodes += segments;
            figures.checkpoints += checkpoints;
            figures.sequences += tree.ends.len() as u64;
        }
        figures
    }

    pub(crate) fn label(&self, label: u16) -> LabelAmount {
        let mut sum = LabelAmount::default();
        for tree in &self.trees {
            let of = |one: &&Segment| one.label == label;
            sum.sequences += tree.ends.iter().filter(|end| end.1 == label).count() as u64;
            sum.nbytes += tree.segments.iter().filter(of).map(|one| one.size()[0]).sum::<u64>();
            // A checkpoint counts under the label of the segment that it stands after.
            for checkpoint in &tree.checkpoints {
                let on = |one: &Segment| one.path == checkpoint.path && one.label == label;
                sum.nbytes += if tree.segments.iter().any(on) { checkpoint.nbytes } else { 0 };
            }
        }
        sum
    }

    /// All ids that a holder of arrays must have now.
    pub(crate) fn ids(&self) -> (Vec<Option<SegmentId>>, Vec<CheckpointId>) {
        let segments = self.trees.iter().flat_map(|tree| &tree.segments).map(|one| one.id);
        let checkpoints = self.trees.iter().flat_map(|tree| &tree.checkpoints).map(|one| one.id);
        (segments.collect(), checkpoints.collect())
    }

    fn unlist(&mut self, place: &Place, path: &[Token]) {
        self.recency.retain(|unit| unit.place != *place || unit.path != path);
    }

    /// The most recently used from now on.
    fn push(&mut self, place: &Place, path: &[Token]) {
        self.unlist(place, path);
        self.recency.push(Unit { place: place.clone(), path: path.to_vec(), stamp: self.stamp });
    }

    /// Refreshes all segments up to `path`, leaf first, except what a lease covers.
    fn touch_path(&mut self, place: &Place, path: &[Token]) {
        let mut paths: Vec<Path> = self
            .tree(place)
            .map_or(&[][..], |tree| &tree.segments)
            .iter()
            .map(|one| one.path.clone())
            .filter(|one| path.starts_with(one) && !self.covered(place, one))
            .collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
        paths.iter().for_each(|path| self.push(place, path));
    }

    fn touch_checkpoint(&mut self, place: &Place, path: &[Token]) {
        if !self.checkpoint_leased(place, path) {
            self.push(place, path);
        }
    }

    pub(crate) fn evict(&mut self, need: &Need) -> Gone {
        let before = self.sequences();
        self.evict_while(|oracle, gone| {
            gone.size[0] < need.nbytes
                || gone.size[1] < need.buffers
                || gone.size[2] < need.tokens
                || gone.units < need.units
                || before - oracle.sequences() < need.sequences
        })
    }

    pub(crate) fn evict_idle(&mut self, stamp: u64) -> Gone {
        self.evict_while(|oracle, _| oracle.recency[0].stamp <= stamp)
    }

    pub(crate) fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Gone> {
        if !self.fits(nbytes, buffers, self.leased()) {
            return None;
        }
        Some(self.evict_while(|oracle, _| !oracle.fits(nbytes, buffers, oracle.held())))
    }

    /// Whether this much more can be held beside `kept` and what open plans were promised.
    fn fits(&self, nbytes: u64, buffers: u64, kept: Size) -> bool {
        let reserved = self.reserved();
        kept[0] + reserved[0] + nbytes <= self.limits.max_bytes
            && kept[1] + reserved[1] + buffers <= self.limits.max_buffers
    }

    fn evict_while(&mut self, more: impl Fn(&Self, &Gone) -> bool) -> Gone {
        let mut gone = Gone::default();
        while !self.recency.is_empty() && more(self, &gone) {
            let Unit { place, path, .. } = self.recency.remove(0);
            gone.units += 1;
            if place.checkpointed {
                self.remove_checkpoint(&place, &path, &mut gone);
            } else {
                self.remove_segments(&place, &mut gone, |one| one.path == path);
            }
            self.settle(&mut gone);
        }
        gone
    }

    fn remove_checkpoint(&mut self, place: &Place, path: &[Token], gone: &mut Gone) {
        self.unlist(place, path);
        for checkpoint in self.tree_mut(place).checkpoints.extract_if(.., |one| one.path == path) {
            gone.size = plus(gone.size, checkpoint.size());
            gone.checkpoints.push(checkpoint.id);
        }
    }

    fn remove_segments(&mut self, place: &Place, gone: &mut Gone, which: impl Fn(&Segment) -> bool) {
        let removed: Vec<Segment> = self.tree_mut(place).segments.extract_if(.., |one| which(one)).collect();
        for segment in removed {
            self.remove_checkpoint(place, &segment.path, gone);
            self.unlist(place, &segment.path);
            gone.size = plus(gone.size, segment.size());
            gone.segments.push(segment.id);
        }
    }

    /// Takes away what nothing needs any more: KV behind the last checkpoint or lease, ends of
    /// stores that are not fully present, empty trees.
    fn settle(&mut self, gone: &mut Gone) {
        for at in 0..self.trees.len() {
            let place = self.trees[at].place.clone();
            if place.checkpointed {
                let ends: Vec<Path> = self.trees[at].checkpoints.iter().map(|one| one.path.clone()).collect();
                let leases: Vec<Path> =
                    self.leases.iter().filter(|one| one.place == place).map(|one| one.path.clone()).collect();
                self.remove_segments(&place, gone, |one| {
                    !ends.iter().chain(&leases).any(|path| path.starts_with(&one.path))
                });
            }
            let Tree { segments, checkpoints, ends, .. } = &mut self.trees[at];
            ends.retain(|(path, _)| {
                let present = segments.iter().any(|one| one.path.starts_with(path));
                present && (!place.checkpointed || checkpoints.iter().any(|one| one.path == *path))
            });
        }
        self.trees.retain(|tree| !tree.segments.is_empty());
    }

    pub(crate) fn drop_namespace(&mut self, namespace: &str) -> Gone {
        self.drop_trees(|place| place.namespace == namespace)
    }

    pub(crate) fn clear(&mut self) -> Gone {
        self.drop_trees(|_| true)
    }

    fn drop_trees(&mut self, which: impl Fn(&Place) -> bool) -> Gone {
        let mut gone = Gone::default();
        self.leases.retain(|lease| !which(&lease.place));
        for tree in self.trees.extract_if(.., |tree| which(&tree.place)) {
            gone.size = plus(gone.size, tree.size());
            gone.segments.extend(tree.segments.iter().map(|one| one.id));
            gone.checkpoints.extend(tree.checkpoints.iter().map(|one| one.id));
            let units =
                if tree.place.checkpointed { tree.checkpoints.len() } else { tree.segments.len() };
            gone.units += units as u64;
        }
        self.recency.retain(|unit| !which(&unit.place));
        gone
    }
}

impl Tree {
    fn size(&self) -> Size {
        let segments = self.segments.iter().map(Segment::size);
        segments.chain(self.checkpoints.iter().map(Checkpoint::size)).fold(Size::default(), plus)
    }
}
