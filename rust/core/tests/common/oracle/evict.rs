//! The recency list, and what eviction removes.

use kvcache_core::Need;

use super::{Oracle, Path, Place, Removed, Segment, Size, Tree, Unit, plus};
use crate::common::prompt::Token;

impl Oracle {
    pub(super) fn unlist(&mut self, place: &Place, path: &[Token]) {
        self.recency.retain(|unit| unit.place != *place || unit.path != path);
    }

    /// Makes a unit the most recently used.
    pub(super) fn push(&mut self, place: &Place, path: &[Token]) {
        self.unlist(place, path);
        self.recency.push(Unit { place: place.clone(), path: path.to_vec(), stamp: self.stamp });
    }

    /// Refreshes all segments up to `path`, leaf first, except leased ones.
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

    pub(crate) fn evict(&mut self, need: &Need) -> Removed {
        let (sequences, entries) = (self.sequences(), self.entries());
        self.evict_while(|oracle, removed| {
            removed.size[0] < need.nbytes
                || removed.size[1] < need.buffers
                || removed.size[2] < need.tokens
                || removed.units < need.units
                || sequences - oracle.sequences() < need.sequences
                || entries - oracle.entries() < need.entries
        })
    }

    pub(crate) fn evict_idle(&mut self, stamp: u64) -> Removed {
        self.evict_while(|oracle, _| oracle.recency[0].stamp <= stamp)
    }

    pub(crate) fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Removed> {
        if !self.fits(nbytes, buffers, self.leased()) {
            return None;
        }
        Some(self.evict_while(|oracle, _| !oracle.fits(nbytes, buffers, oracle.held())))
    }

    /// Whether this much more fits in addition to `kept` and all reservations.
    pub(super) fn fits(&self, nbytes: u64, buffers: u64, kept: Size) -> bool {
        let reserved = self.reserved();
        kept[0] + reserved[0] + nbytes <= self.limits.max_bytes
            && kept[1] + reserved[1] + buffers <= self.limits.max_buffers
    }

    fn evict_while(&mut self, more: impl Fn(&Self, &Removed) -> bool) -> Removed {
        let mut removed = Removed::default();
        while !self.recency.is_empty() && more(self, &removed) {
            let Unit { place, path, .. } = self.recency.remove(0);
            removed.units += 1;
            if place.checkpointed {
                self.remove_checkpoint(&place, &path, &mut removed);
            } else {
                self.remove_segments(&place, &mut removed, |one| one.path == path);
            }
            self.clean_up(&mut removed);
        }
        removed
    }

    pub(super) fn remove_checkpoint(&mut self, place: &Place, path: &[Token], removed: &mut Removed) {
        self.unlist(place, path);
        for checkpoint in self.tree_mut(place).checkpoints.extract_if(.., |one| one.path == path) {
            removed.size = plus(removed.size, checkpoint.size());
            removed.checkpoints.push(checkpoint.id);
        }
    }

    pub(super) fn remove_segments(
        &mut self,
        place: &Place,
        removed: &mut Removed,
        which: impl Fn(&Segment) -> bool,
    ) {
        let segments: Vec<Segment> = self.tree_mut(place).segments.extract_if(.., |one| which(one)).collect();
        for segment in segments {
            self.remove_checkpoint(place, &segment.path, removed);
            self.unlist(place, &segment.path);
            removed.size = plus(removed.size, segment.size());
            removed.segments.push(segment.id);
        }
    }

    /// Removes what is no longer needed: KV past the last checkpoint or lease, ends of stores that are not
    /// fully present, empty trees.
    pub(super) fn clean_up(&mut self, removed: &mut Removed) {
        for at in 0..self.trees.len() {
            let place = self.trees[at].place.clone();
            if place.checkpointed {
                let ends: Vec<Path> = self.trees[at].checkpoints.iter().map(|one| one.path.clone()).collect();
                let leases: Vec<Path> =
                    self.leases.iter().filter(|one| one.place == place).map(|one| one.path.clone()).collect();
                self.remove_segments(&place, removed, |one| {
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

    pub(crate) fn drop_namespace(&mut self, namespace: &str) -> Removed {
        self.drop_trees(|place| place.namespace == namespace)
    }

    pub(crate) fn clear(&mut self) -> Removed {
        self.drop_trees(|_| true)
    }

    fn drop_trees(&mut self, which: impl Fn(&Place) -> bool) -> Removed {
        let mut removed = Removed::default();
        self.leases.retain(|lease| !which(&lease.place));
        for tree in self.trees.extract_if(.., |tree| which(&tree.place)) {
            removed.size = plus(removed.size, tree.size());
            removed.segments.extend(tree.segments.iter().map(|one| one.id));
            removed.checkpoints.extend(tree.checkpoints.iter().map(|one| one.id));
            let units = if tree.place.checkpointed { tree.checkpoints.len() } else { tree.segments.len() };
            removed.units += units as u64;
        }
        self.recency.retain(|unit| !which(&unit.place));
        removed
    }
}
