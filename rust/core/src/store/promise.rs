//! Settling on a length, and reserving room for it.

use crate::dropped::Dropped;
use crate::error::Error;
use crate::evict::Need;
use crate::ids::{CheckpointId, PlanId, SegmentId};
use crate::index::PrefixIndex;
use crate::store::fit::blocks;
use crate::store::in_flight::{Draft, Pending, Place};
use crate::store::request::{NewSegment, Plan, Split};

impl PrefixIndex {
    /// Settles how many tokens to hold, at most as many as the draft reported; with `recopy`, by dropping
    /// the node in which the key diverges. Returns how far this exceeds the limits, and what was dropped
    /// with that node.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`] if the plan is unknown, the tree around the place has changed, the node can no
    /// longer be dropped, or the length cannot be stored. The draft is unchanged.
    pub fn settle(&mut self, id: PlanId, length: usize, recopy: bool) -> Result<(Need, Dropped), Error> {
        let draft = self.valid_draft(id).ok_or(Error::UnknownPlan)?;
        let whole = Place { length: draft.keys.len(), ..draft.place };
        let place = if recopy { self.fitting_recopied(draft) } else { Some(whole) };
        let storable = |place: &Place| match draft.checkpoint {
            Some(_) => length == place.length,
            None => place.from < length && length <= place.length && draft.cuts.back(length) == length,
        };
        let place = place.filter(storable).ok_or(Error::UnknownPlan)?;
        let mut draft = self.drafts.remove(id).ok_or(Error::UnknownPlan)?;
        let dropped = self.move_to(&mut draft, Place { length, ..place });
        let cost = self.cost(draft.shape, draft.checkpoint, &draft.place);
        self.drafts.insert(id, draft);
        Ok((self.over(cost.nbytes, cost.buffers), dropped))
    }

    /// Moves a draft to another place. If the draft no longer splits a node, drops that node and returns
    /// what was dropped.
    pub(super) fn move_to(&mut self, draft: &mut Draft, place: Place) -> Dropped {
        let mut dropped = Dropped::default();
        let old = std::mem::replace(&mut draft.place, place);
        if old.cut.is_some() && place.cut.is_none() {
            // Take the new lease first: the old one may be all that keeps the path.
            let lease = self.protect(draft.tree, &place);
            let lease = std::mem::replace(&mut draft.lease, lease);
            self.unprotect(lease, &mut dropped);
            if let Some(node) = self.trees.arena.get(old.node) {
                let tree = node.tree;
                self.trees.remove_subtree(old.node, &mut dropped);
                self.trees.remove_if_empty(tree);
            }
        }
        dropped
    }

    /// Reserves room for what was settled, and returns what to copy.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`] if the plan is unknown, there is no room, or the tree around the place has
    /// changed. The draft is unchanged.
    pub fn promise(&mut self, id: PlanId) -> Result<Plan, Error> {
        let draft = self.valid_draft(id).ok_or(Error::UnknownPlan)?;
        let cost = self.cost(draft.shape, draft.checkpoint, &draft.place);
        if self.over(cost.nbytes, cost.buffers) != Need::default() {
            return Err(Error::UnknownPlan);
        }
        let draft = self.drafts.remove(id).ok_or(Error::UnknownPlan)?;
        Ok(self.reserve(id, draft))
    }

    pub(super) fn reserve(&mut self, id: PlanId, draft: Draft) -> Plan {
        let reserved = self.cost(draft.shape, draft.checkpoint, &draft.place);
        debug_assert_eq!(self.over(reserved.nbytes, reserved.buffers), Need::default());
        self.trees.ledger.reserve(reserved);
        let plan = self.build_plan(id, &draft);
        self.plans.insert(id, Pending { draft, reserved, plan: plan.clone() });
        plan
    }

    fn build_plan(&mut self, id: PlanId, draft: &Draft) -> Plan {
        let Place { from, cut, length, .. } = draft.place;
        let segments = blocks(from, length, self.segment_tokens)
            .map(|(start, end)| NewSegment { id: SegmentId(self.ids.next()), start, end })
            .collect();
        let split = cut.map(|cut| Split {
            old: cut.segment,
            upper: SegmentId(self.ids.next()),
            lower: SegmentId(self.ids.next()),
            at: cut.at,
        });
        let checkpoint = draft.checkpoint.map(|_| CheckpointId(self.ids.next()));
        Plan { id, length, matched: from, segments, split, checkpoint }
    }
}
