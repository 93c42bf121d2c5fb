//! Drafting: find the place, protect it, say how much fits; then settle on a length and promise it.

use crate::error::Error;
use crate::evict::{Dropped, Need};
use crate::ids::{CheckpointId, LayoutId, LeaseId, NodeId, PlanId, SegmentId, TreeId};
use crate::index::PrefixIndex;
use crate::keys::{Query, check_tokens};
use crate::lease::Lease;
use crate::media::Cuts;
use crate::radix::edit::SegmentShape;
use crate::radix::walk::{Walk, upward, walk};
use crate::store::{
    CheckpointSpec, Drafted, NewSegment, Outcome, Pending, Plan, Planned, Split, StoreRequest,
};

/// A store from its draft to its end.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(super) namespace: Box<str>,
    pub(super) layout: LayoutId,
    /// The key, as long as the KV.
    pub(crate) keys: Box<[u32]>,
    pub(super) cuts: Cuts,
    pub(super) shape: SegmentShape,
    pub(super) checkpoint: Option<CheckpointSpec>,
    pub(super) lease: Option<LeaseId>,
    tree: Option<TreeId>,
    pub(super) place: Place,
}

/// Where new tokens go, and how many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Where they begin, and the node that they hang on or cut.
    pub(super) from: usize,
    pub(super) node: NodeId,
    /// The node is to be cut after this many tokens.
    pub(super) cut: Option<usize>,
    /// Tokens that will be held.
    pub(super) length: usize,
}

impl Draft {
    pub(crate) fn layout(&self) -> LayoutId {
        self.layout
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.namespace.len() + size_of_val(&*self.keys) + self.cuts.heap_bytes()
    }
}

impl PrefixIndex {
    /// Plans a store and makes room for it. Returns what was evicted. O(len(query)).
    ///
    /// # Errors
    /// An invalid token in the key, or media keys that were made for a lookup.
    pub fn plan(&mut self, request: &StoreRequest<'_>, stamp: u64) -> Result<(Planned, Dropped), Error> {
        let mut dropped = Dropped::default();
        let drafted = match self.draft(request, stamp)? {
            Outcome::Open(drafted) => drafted,
            Outcome::Already => return Ok((Planned::Already, dropped)),
            Outcome::InsideMedia => return Ok((Planned::InsideMedia, dropped)),
        };
        let Drafted { id, length, length_anew, .. } = drafted;
        if length.max(length_anew) == 0 {
            return Ok((Planned::TooLarge, self.abort(id)?));
        }
        let anew = length_anew > length;
        let mut draft = self.drafts.remove(&id).ok_or(Error::UnknownPlan)?;
        let place = if anew { self.fitting_anew(&draft) } else { None }.unwrap_or(draft.place);
        dropped.extend(self.move_to(&mut draft, Place { length: length.max(length_anew), ..place }));
        let cost = self.cost(draft.shape, draft.checkpoint, &draft.place);
        dropped.extend(self.evict(self.over(cost.nbytes, cost.buffers)));
        Ok((Planned::Ready(self.reserve(id, draft)), dropped))
    }

    /// Finds a store's place and leases it. O(len(query)).
    ///
    /// # Errors
    /// An invalid token in the key, or media keys that were made for a lookup.
    pub fn draft(&mut self, request: &StoreRequest<'_>, stamp: u64) -> Result<Outcome, Error> {
        request.query.check_length()?;
        request.query.check_contents()?;
        let n = request.query.len();
        let length = request.query.cuts.back(n);
        let checkpointed = request.checkpoint.is_some();
        if length == 0 || checkpointed && length < n {
            self.tick(stamp);
            return Ok(Outcome::InsideMedia);
        }
        let tree = self.trees.forest.find(request.namespace, request.layout, checkpointed);
        let place = if let Some(tree) = tree {
            let root = self.trees.forest.get(tree).root;
            let walked = walk(&self.trees.arena, root, &request.query)?;
            let stamp = self.tick(stamp);
            if walked.matched >= length && self.held(request, &walked, length, stamp) {
                return Ok(Outcome::Already);
            }
            let inside = walked.inside(&self.trees.arena);
            let cut = (inside < self.trees.arena[walked.node].len()).then_some(inside);
            Place { from: walked.matched, node: walked.node, cut, length }
        } else {
            if !request.query.checked {
                check_tokens(request.query.keys, 0)?;
            }
            self.tick(stamp);
            Place { from: 0, node: NodeId::NONE, cut: None, length }
        };
        let mut draft = Draft {
            namespace: request.namespace.into(),
            layout: request.layout,
            keys: request.query.keys[..length].into(),
            cuts: request.query.cuts.clone(),
            shape: SegmentShape {
                bytes_per_token: request.bytes_per_token,
                buffers: request.segment_buffers,
                label: request.label,
            },
            checkpoint: request.checkpoint,
            lease: None,
            tree,
            place,
        };
        draft.lease = self.protect(tree, &place);
        let id = PlanId(self.ids.next());
        let drafted = Drafted {
            id,
            matched: place.from,
            length: self.fitting(&draft, &place, self.room()).unwrap_or_default(),
            length_anew: self.fitting_anew(&draft).map_or(0, |place| place.length),
        };
        self.drafts.insert(id, draft);
        Ok(Outcome::Open(drafted))
    }

    /// Whether all of the key is held; if so, refreshes it and notes the end.
    pub(super) fn held(
        &mut self,
        request: &StoreRequest<'_>,
        walked: &Walk,
        length: usize,
        stamp: u64,
    ) -> bool {
        let mut node = walked.node;
        while self.trees.arena[node].start() >= length {
            node = self.trees.arena[node].parent;
        }
        if request.checkpoint.is_some() {
            let at = &self.trees.arena[node];
            if at.end as usize != length || at.checkpoint.is_none() {
                return false;
            }
            self.trees.touch_checkpoint(node, stamp);
        } else {
            self.trees.touch_path(node, stamp);
        }
        let at = length - self.trees.arena[node].start();
        self.trees.add_end(node, at, request.label);
        true
    }

    /// Settles how many tokens are to be held, at most what the draft said; with `anew`, by giving
    /// up the node that the key diverges in. Returns what is over the limits then, and what went
    /// with that node.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`], also where the tree around the place has changed, the node cannot be
    /// given up any more, or the length is none that can be stored. The draft is left as it is.
    pub fn settle(&mut self, id: PlanId, length: usize, anew: bool) -> Result<(Need, Dropped), Error> {
        let draft = self.standing(id).ok_or(Error::UnknownPlan)?;
        let whole = Place { length: draft.keys.len(), ..draft.place };
        let place = if anew { self.fitting_anew(draft) } else { Some(whole) };
        let may_be = |place: &Place| match draft.checkpoint {
            Some(_) => length == place.length,
            None => place.from < length && length <= place.length && draft.cuts.back(length) == length,
        };
        let place = place.filter(may_be).ok_or(Error::UnknownPlan)?;
        let mut draft = self.drafts.remove(&id).ok_or(Error::UnknownPlan)?;
        let dropped = self.move_to(&mut draft, Place { length, ..place });
        let cost = self.cost(draft.shape, draft.checkpoint, &draft.place);
        self.drafts.insert(id, draft);
        Ok((self.over(cost.nbytes, cost.buffers), dropped))
    }

    /// The draft, if its lease holds and the tree around its place is what it was.
    fn standing(&self, id: PlanId) -> Option<&Draft> {
        let draft = self.drafts.get(&id)?;
        if draft.lease.is_some_and(|lease| !self.leases.is_live(lease)) {
            return None;
        }
        let Place { from, node, cut, .. } = draft.place;
        let checkpointed = draft.checkpoint.is_some();
        let Some(tree) = self.trees.forest.find(&draft.namespace, draft.layout, checkpointed) else {
            return (from == 0).then_some(draft);
        };
        let query = Query { keys: &draft.keys, cuts: &draft.cuts, checked: true };
        let walked = walk(&self.trees.arena, self.trees.forest.get(tree).root, &query).ok()?;
        let inside = walked.inside(&self.trees.arena);
        let same = match cut {
            Some(at) => walked.node == node && inside == at,
            None => inside == self.trees.arena[walked.node].len(),
        };
        (same && walked.matched == from).then_some(draft)
    }

    /// Moves a draft to another place. Returns what went with the node that it cut before and does
    /// not cut now.
    fn move_to(&mut self, draft: &mut Draft, place: Place) -> Dropped {
        let mut dropped = Dropped::default();
        let old = std::mem::replace(&mut draft.place, place);
        if old.cut.is_some() && place.cut.is_none() {
            // The new lease first: the old one may be all that keeps the path.
            let lease = self.protect(draft.tree, &place);
            let lease = std::mem::replace(&mut draft.lease, lease);
            self.unprotect(lease, &mut dropped);
            if let Some(node) = self.trees.arena.get(old.node) {
                let tree = node.tree;
                self.evict_subtree(old.node, &mut dropped);
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
        let draft = self.standing(id).ok_or(Error::UnknownPlan)?;
        let cost = self.cost(draft.shape, draft.checkpoint, &draft.place);
        if self.over(cost.nbytes, cost.buffers) != Need::default() {
            return Err(Error::UnknownPlan);
        }
        let draft = self.drafts.remove(&id).ok_or(Error::UnknownPlan)?;
        Ok(self.reserve(id, draft))
    }

    fn reserve(&mut self, id: PlanId, draft: Draft) -> Plan {
        let reserved = self.cost(draft.shape, draft.checkpoint, &draft.place);
        debug_assert_eq!(self.over(reserved.nbytes, reserved.buffers), Need::default());
        self.trees.ledger.reserve(reserved);
        let plan = self.draw_up(id, &draft);
        self.plans.insert(id, Pending { draft, reserved, plan: plan.clone() });
        plan
    }

    fn draw_up(&mut self, id: PlanId, draft: &Draft) -> Plan {
        let Place { from, node, cut, length } = draft.place;
        let mut segments = Vec::new();
        let mut start = from;
        while start < length {
            let end = length.min(start + self.segment_tokens);
            segments.push(NewSegment { id: SegmentId(self.ids.next()), start, end });
            start = end;
        }
        let split = cut.map(|at| Split {
            old: self.trees.arena[node].segment,
            upper: SegmentId(self.ids.next()),
            lower: SegmentId(self.ids.next()),
            at,
        });
        let checkpoint = draft.checkpoint.map(|_| CheckpointId(self.ids.next()));
        Plan { id, length, matched: from, segments, split, checkpoint }
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

    pub(super) fn unprotect(&mut self, lease: Option<LeaseId>, dropped: &mut Dropped) {
        if let Some(lease) = lease {
            dropped.extend(self.leases.release(&mut self.trees, lease, self.stamp));
        }
    }
}
