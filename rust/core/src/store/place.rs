//! Where new tokens go, whether that place is unchanged, and the lease that protects it.

use crate::dropped::Dropped;
use crate::ids::{LeaseId, NodeId, PlanId, TreeId};
use crate::index::PrefixIndex;
use crate::lease::Lease;
use crate::radix::walk::{Walk, upward, walk};
use crate::store::in_flight::{Cut, Draft, Place};

impl PrefixIndex {
    /// The place of the tokens after a walk, up to `length`.
    pub(super) fn place_after(&self, walked: &Walk, length: usize) -> Place {
        let (node, at) = (&self.trees.arena[walked.node], walked.inside(&self.trees.arena));
        let cut = (at < node.len()).then_some(Cut { segment: node.segment, at });
        Place { from: walked.matched, node: walked.node, cut, length }
    }

    /// The draft, if its lease is still live and its place unchanged.
    pub(super) fn valid_draft(&self, id: PlanId) -> Option<&Draft> {
        let draft = self.drafts.get(id)?;
        let leased = draft.lease.is_none_or(|lease| self.leases.is_live(lease));
        (leased && self.current_place(draft).is_some()).then_some(draft)
    }

    /// A draft's place in the tree now, if the tree around it is unchanged. Comparing the segment detects a
    /// node that was to be split but has been joined with another.
    pub(super) fn current_place(&self, draft: &Draft) -> Option<Place> {
        let Place { from, cut, length, .. } = draft.place;
        let tree = self.trees.forest.find(&draft.namespace, draft.layout, draft.checkpoint.is_some());
        let place = match tree {
            Some(tree) => {
                let root = self.trees.forest.get(tree).root;
                self.place_after(&walk(&self.trees.arena, root, &draft.query()).ok()?, length)
            }
            None => Place { from: 0, node: NodeId::NONE, cut: None, length },
        };
        (place.from == from && place.cut == cut).then_some(place)
    }

    /// Leases the path to the place's node, and the deepest checkpoint before the divergence.
    pub(super) fn protect(&mut self, tree: Option<TreeId>, place: &Place) -> Option<LeaseId> {
        let (tree, arena) = (tree?, &self.trees.arena);
        if arena[place.node].is_root() {
            return None;
        }
        let checkpoint = upward(arena, place.node)
            .skip(usize::from(place.cut.is_some()))
            .find(|id| arena[*id].checkpoint.is_some());
        let id = LeaseId(self.ids.next());
        self.leases.acquire(&mut self.trees, id, Lease { tree, node: place.node, checkpoint });
        Some(id)
    }

    /// Releases a draft's lease and media.
    pub(super) fn release_draft(&mut self, draft: &Draft, dropped: &mut Dropped) {
        if !draft.cuts.is_empty() {
            self.trees.media.release(&draft.keys);
        }
        self.unprotect(draft.lease, dropped);
    }

    pub(super) fn unprotect(&mut self, lease: Option<LeaseId>, dropped: &mut Dropped) {
        if let Some(lease) = lease {
            dropped.extend(self.leases.release(&mut self.trees, lease, self.stamp));
        }
    }
}
