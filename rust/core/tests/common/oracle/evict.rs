//! The order of use, and what leaves by it.

use kvcache_core::Need;

use super::{Gone, Oracle, Path, Place, Segment, Size, Tree, Unit, plus};
use crate::common::prompt::Token;

impl Oracle {
    pub(super) fn unlist(&mut self, place: &Place, path: &[Token]) {
        self.recency.retain(|unit| unit.place != *place || unit.path != path);
    }

    /// The most recently used from now on.
    pub(super) fn push(&mut self, place: &Place, path: &[Token]) {
        self.unlist(place, path);
        self.recency.push(Unit { place: place.clone(), path: path.to_vec(), stamp: self.stamp });
    }

    /// Refreshes all segments up to `path`, leaf first, except what a lease covers.
    pub(super) fn touch_path(&mut self, place: &Place, path: &[Token]) {
        let mut paths: Vec<Path> = self
            .tree(place)
            .map_or(&[][..], |tree| &tree.segments)
            .iter()
            .map(|one| one.path.clone())
            .filter(|one| path.starts_with(one) && !self.covered(place, one))
            .collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
        for path in paths {
            self.push(place, &path);
        }
    }

    pub(super) fn touch_checkpoint(&mut self, place: &Place, path: &[Token]) {
        if !self.checkpoint_leased(place, path) {
            self.push(place, path);
        }
    }

    pub(crate) fn evict(&mut self, need: &Need) -> Gone {
        let (sequences, entries) = (self.sequences(), self.entries());
        self.evict_while(|oracle, gone| {
            gone.size[0] < need.nbytes
                || gone.size[1] < need.buffers
                || gone.size[2] < need.tokens
                || gone.units < need.units
                || sequences - oracle.sequences() < need.sequences
                || entries - oracle.entries() < need.entries
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
    pub(super) fn fits(&self, nbytes: u64, buffers: u64, kept: Size) -> bool {
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
            self.clean_up(&mut gone);
        }
        gone
    }

    pub(super) fn remove_checkpoint(&mut self, place: &Place, path: &[Token], gone: &mut Gone) {
        self.unlist(place, path);
        for checkpoint in self.tree_mut(place).checkpoints.extract_if(.., |one| one.path == path) {
            gone.size = plus(gone.size, checkpoint.size());
            gone.checkpoints.push(checkpoint.id);
        }
    }

    pub(super) fn remove_segments(
        &mut self,
        place: &Place,
        gone: &mut Gone,
        which: impl Fn(&Segment) -> bool,
    ) {
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
    pub(super) fn clean_up(&mut self, gone: &mut Gone) {
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
            let units = if tree.place.checkpointed { tree.checkpoints.len() } else { tree.segments.len() };
            gone.units += units as u64;
        }
        self.recency.retain(|unit| !which(&unit.place));
        gone
    }
}
