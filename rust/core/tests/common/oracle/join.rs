//! Joining segments, and room reserved outside of stores.

use kvcache_core::{Joined, LeaseId, SegmentId};

use super::{Holder, Oracle, Path, Place, Segment, Tree};
use crate::common::prompt::Token;

impl Oracle {
    /// Joins segments on the way down to `path` as long as two can be joined.
    pub(super) fn join(&mut self, place: &Place, path: &[Token]) {
        // The ids that each joined segment replaces.
        let mut groups: Vec<(Path, Vec<Option<SegmentId>>)> = Vec::new();
        while let Some((upper, lower)) = self.pair(place, path) {
            let tree = self.tree_mut(place);
            let mut take = |path: &Path| {
                let at = tree.segments.iter().position(|one| one.path == *path).unwrap();
                tree.segments.remove(at)
            };
            let (upper, lower) = (take(&upper), take(&lower));
            let mut ids = |one: &Segment| match groups.iter().position(|group| group.0 == one.path) {
                Some(at) => groups.remove(at).1,
                None => vec![one.id],
            };
            let replaced = [ids(&upper), ids(&lower)].concat();
            let labels = [&upper.labels[..], &lower.labels].concat();
            let parts = upper.parts + lower.parts;
            tree.segments.push(Segment { start: upper.start, id: None, parts, labels, ..lower.clone() });
            groups.push((lower.path, replaced));
            self.unlist(place, &upper.path);
        }
        self.joined.extend(groups.into_iter().map(|(path, ids)| (place.clone(), path, ids)));
    }

    fn pair(&self, place: &Place, path: &[Token]) -> Option<(Path, Path)> {
        let tree = self.tree(place)?;
        let leases = |one: &Segment| {
            let covers = |lease: &&super::Lease| lease.place == *place && lease.path.starts_with(&one.path);
            self.leases.iter().filter(covers).count()
        };
        let block = |at: usize| at / self.limits.segment_tokens;
        let mut lowest_first: Vec<&Segment> =
            tree.segments.iter().filter(|lower| path.starts_with(&lower.path)).collect();
        lowest_first.sort_by_key(|lower| std::cmp::Reverse(lower.path.len()));
        lowest_first.into_iter().find_map(|lower| {
            let upper = tree.segments.iter().find(|one| one.path == lower.path[..lower.start])?;
            let tiny = lower.path.len() - upper.start <= self.limits.segment_tokens / 16;
            let ended = tree.ends.iter().any(|(path, _)| *path == upper.path);
            let fits = below(tree, upper) == 1
                && tree.checkpoint(&upper.path).is_none()
                && leases(upper) == leases(lower)
                && (upper.bytes_per_token, upper.buffers) == (lower.bytes_per_token, lower.buffers)
                && block(upper.start) == block(lower.path.len() - 1)
                && (tiny || !ended);
            fits.then(|| (upper.path.clone(), lower.path.clone()))
        })
    }

    /// The ids replaced by joins since the last call. Assigns the new ids of `joins` to the joined segments.
    /// Leaves out segments from `insert`, which have no ids.
    pub(crate) fn take_joined(&mut self, joins: &[Joined]) -> Vec<Vec<SegmentId>> {
        let mut expected = Vec::new();
        for (place, path, ids) in std::mem::take(&mut self.joined) {
            let Some(ids) = ids.into_iter().collect::<Option<Vec<SegmentId>>>() else { continue };
            let id = joins.iter().find(|joined| joined.replaced == ids).map(|joined| joined.segment);
            let segments = &mut self.tree_mut(&place).segments;
            segments.iter_mut().filter(|one| one.path == path).for_each(|one| one.id = id);
            expected.push(ids);
        }
        expected.sort();
        expected
    }

    pub(crate) fn compacted(&mut self, lease: LeaseId, segment: SegmentId, parts: u32) -> bool {
        let Some(lease) = self.leases.iter().find(|one| one.holder == Holder::Caller(lease)) else {
            return false;
        };
        let (place, path) = (lease.place.clone(), lease.path.clone());
        let mut segments = self.tree_mut(&place).segments.iter_mut();
        let leased = segments.find(|one| one.id == Some(segment) && path.starts_with(&one.path));
        let Some(leased) = leased.filter(|one| (1..=one.parts).contains(&u64::from(parts))) else {
            return false;
        };
        leased.parts = u64::from(parts);
        true
    }

    pub(crate) fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> bool {
        let fits = self.fits(nbytes, buffers, self.held());
        if fits {
            self.transient.push([nbytes, buffers, 0, 0, 0]);
        }
        fits
    }

    pub(crate) fn unreserve_bytes(&mut self, which: usize) {
        self.transient.remove(which);
    }
}

/// The number of children of a segment.
fn below(tree: &Tree, upper: &Segment) -> usize {
    let is_child = |one: &&Segment| one.start == upper.path.len() && one.path.starts_with(&upper.path);
    tree.segments.iter().filter(is_child).count()
}
