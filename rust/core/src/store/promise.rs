//! Settling on a length, and promising it room.

use crate::dropped::Dropped;
use crate::error::Error;
use crate::evict::Need;
use crate::ids::{CheckpointId, PlanId, SegmentId};
use crate::index::PrefixIndex;
use crate::store::fit::blocks;
use crate::store::request::{NewSegment, Plan, Split};
use crate::store::under_way::{Draft, Pending, Place};

impl PrefixIndex {
    /// Settles how many tokens are to be held, at most what the draft said; with `recopy`, by giving
    /// up the node that the key diverges in. Returns what is over the limits then, and what was dropped
    /// with that node.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`], also where the tree around the place has changed, the node cannot be
    /// given up any more, or the length is none that can be stored. The draft is left as it is.
    pub fn settle(&mut self, id: PlanId, length: usize, recopy: bool) -> Result<(Need, Dropped), Error> {
        let draft = self.valid_draft(id).ok_or(Error::UnknownPlan)?;
        let whole = Place { length: draft.keys.len(), ..draft.place };
        let place = if recopy { self.fitting_recopied(draft) } else { Some(whole) };
        let may_be = |place: &Place| match draft.checkpoint {
            Some(_) => length == place.length,
            None => place.from < length && length <= place.length && draft.cuts.back(length) == length,
        };
        let place = place.filter(may_be).ok_or(Error::UnknownPlan)?;
        let mut draft = self.drafts.remove(id).ok_or(Error::UnknownPlan)?;
        let dropped = self.move_to(&mut draft, Place { length, ..place });
        let cost = self.cost(draft.shape, draft.checkpoint, &draft.place);
        self.drafts.insert(id, draft);
        Ok((self.over(cost.nbytes, cost.buffers), dropped))
    }

    /// Moves a draft to another place. Returns what was dropped with the node that it was to split before
    /// and does not split now.
    pub(super) fn move_to(&mut self, draft: &mut Draft, place: Place) -> Dropped {
        let mut dropped = Dropped::default();
        let old = std::mem::replace(&mut draft.place, place);
        if old.cut.is_some() && place.cut.is_none() {
            // The new lease first: the old one may be all that keeps the path.
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

    /// Reserves what was settled, once it has room, and says what to copy.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`], also where there is no room, or the tree around the place has
    /// changed. The draft is left as it is.
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
        let plan = self.draw_up(id, &draft);
        self.plans.insert(id, Pending { draft, reserved, plan: plan.clone() });
        plan
    }

    fn draw_up(&mut self, id: PlanId, draft: &Draft) -> Plan {
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
