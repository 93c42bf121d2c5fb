//! The end of a store: commit or abort.

use crate::error::Error;
use crate::evict::Dropped;
use crate::ids::{NodeId, PlanId};
use crate::index::PrefixIndex;
use crate::keys::Query;
use crate::radix::node::Checkpoint;
use crate::radix::walk::walk;
use crate::store::{CheckpointSpec, Committed, Pending};

impl PrefixIndex {
    /// Ends a plan: what the caller copied becomes part of the tree. O(len(key)).
    ///
    /// # Errors
    /// [`Error::UnknownPlan`].
    pub fn commit(&mut self, plan: PlanId, stamp: u64) -> Result<Committed, Error> {
        let pending = self.plans.remove(plan).ok_or(Error::UnknownPlan)?;
        let stamp = self.tick(stamp);
        self.trees.ledger.unreserve(pending.reserved);
        let mut dropped = Dropped::default();
        let Some(place) = self.still_there(&pending) else {
            self.let_go(&pending.draft, &mut dropped);
            return Ok(Committed { stale: true, dropped, joined: Vec::new() });
        };
        let last = self.attach(&pending, place, &mut dropped);
        // First the release, then the touch: what was stored is more recent than the other half of
        // a split, which the lease covers too.
        self.let_go(&pending.draft, &mut dropped);
        if pending.draft.checkpoint.is_some() {
            self.trees.touch_checkpoint(last, stamp);
            self.mark_prompt(last, pending.draft.prompt);
            self.retain_checkpoints(last, &mut dropped);
        } else {
            self.trees.touch_path(last, stamp);
        }
        let joined = self.trees.join_path(last, self.segment_tokens, &mut self.ids);
        Ok(Committed { stale: false, dropped, joined })
    }

    /// Gives a draft or a plan up. What comes back is KV that nothing but its lease kept.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`].
    pub fn abort(&mut self, plan: PlanId) -> Result<Dropped, Error> {
        let draft = if let Some(pending) = self.plans.remove(plan) {
            self.trees.ledger.unreserve(pending.reserved);
            pending.draft
        } else {
            self.drafts.remove(plan).ok_or(Error::UnknownPlan)?
        };
        let mut dropped = Dropped::default();
        self.let_go(&draft, &mut dropped);
        Ok(dropped)
    }

    /// Where the planned tokens go, if the tree around the divergence is what it was. A node that was to
    /// be cut and has been joined with another has a new segment.
    fn still_there(&mut self, pending: &Pending) -> Option<NodeId> {
        let plan = &pending.plan;
        let Self { trees, .. } = self;
        let tree = trees.forest.find_or_add(
            &mut trees.arena,
            &pending.draft.namespace,
            pending.draft.layout,
            pending.draft.checkpoint.is_some(),
        );
        let mut query = Query::tokens(&pending.draft.keys);
        query.checked = true;
        let walked = walk(&trees.arena, trees.forest.get(tree).root, &query).ok()?;
        let node = &trees.arena[walked.node];
        let inside = walked.inside(&trees.arena);
        let same = match plan.split {
            Some(split) => split.old == node.segment && split.at == inside,
            None => inside == node.len(),
        };
        let free = pending.draft.checkpoint.is_none() || inside < node.len() || node.checkpoint.is_none();
        let place = (same && walked.matched == plan.matched && (free || plan.length > plan.matched))
            .then_some(walked.node);
        if place.is_none() {
            trees.remove_if_empty(tree);
        }
        place
    }

    fn attach(&mut self, pending: &Pending, node: NodeId, dropped: &mut Dropped) -> NodeId {
        let plan = &pending.plan;
        let trees = &mut self.trees;
        let mut last = node;
        if let Some(split) = plan.split {
            last = trees.split(node, split.at, split.upper, split.lower);
            dropped.segments.push(split.old);
        }
        let media = !pending.draft.cuts.is_empty();
        for segment in &plan.segments {
            let keys = pending.draft.keys[segment.start..segment.end].into();
            last = trees.add_leaf(last, keys, segment.id, pending.draft.shape, media);
        }
        if let (Some(id), Some(spec)) = (plan.checkpoint, pending.draft.checkpoint) {
            let CheckpointSpec { nbytes, buffers, trimmable } = spec;
            let checkpoint = Checkpoint { id, nbytes, buffers, trimmable, leases: 0, prompt: 0 };
            trees.add_checkpoint(last, checkpoint);
        }
        let len = trees.arena[last].len();
        trees.add_end(last, len, pending.draft.shape.label);
        last
    }
}
