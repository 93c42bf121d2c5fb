//! Where new tokens belong, whether that is still so, and the lease that sees to it.

use crate::dropped::Dropped;
use crate::ids::{LeaseId, NodeId, PlanId, TreeId};
use crate::index::PrefixIndex;
use crate::lease::Lease;
use crate::radix::walk::{Walk, upward, walk};
use crate::store::under_way::{Cut, Draft, Place};

impl PrefixIndex {
    /// The place of what goes on after a walk, to a length in tokens.
    pub(super) fn place_after(&self, walked: &Walk, length: usize) -> Place {
        let (node, at) = (&self.trees.arena[walked.node], walked.inside(&self.trees.arena));
        let cut = (at < node.len()).then_some(Cut { segment: node.segment, at });
        Place { from: walked.matched, node: walked.node, cut, length }
    }

    /// The draft, if its lease is still held and its place what it was.
    pub(super) fn valid_draft(&self, id: PlanId) -> Option<&Draft> {
        let draft = self.drafts.get(id)?;
        let leased = draft.lease.is_none_or(|lease| self.leases.is_live(lease));
        (leased && self.place_now(draft).is_some()).then_some(draft)
    }

    /// Where a draft's tokens belong now, if the tree around that place is what it was. A node that was
    /// to be split and has been joined with another has a new segment.
    pub(super) fn place_now(&self, draft: &Draft) -> Option<Place> {
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

    /// Leases the path to the place's node and the deepest checkpoint before the divergence.
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

    /// Ends a draft's hold on the tree.
    pub(super) fn let_go(&mut self, draft: &Draft, dropped: &mut Dropped) {
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
