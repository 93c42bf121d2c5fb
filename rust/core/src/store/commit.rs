//! The end of a store: commit or abort.

use crate::dropped::Dropped;
use crate::error::Error;
use crate::ids::{NodeId, PlanId};
use crate::index::PrefixIndex;
use crate::radix::node::Checkpoint;
use crate::store::in_flight::Pending;
use crate::store::request::{CheckpointSpec, Committed};

impl PrefixIndex {
    /// Ends a plan: adds what the caller copied to the tree. O(len(key)).
    ///
    /// # Errors
    /// [`Error::UnknownPlan`].
    pub fn commit(&mut self, plan: PlanId, stamp: u64) -> Result<Committed, Error> {
        let pending = self.plans.remove(plan).ok_or(Error::UnknownPlan)?;
        let stamp = self.tick(stamp);
        self.trees.ledger.unreserve(pending.reserved);
        let mut dropped = Dropped::default();
        let Some(node) = self.current_node(&pending) else {
            self.release_draft(&pending.draft, &mut dropped);
            return Ok(Committed { stale: true, dropped, joined: Vec::new() });
        };
        let last = self.attach(&pending, node, &mut dropped);
        // Release before touching: the stored tokens must be more recent than the other half of a
        // split, which the lease covers too.
        self.release_draft(&pending.draft, &mut dropped);
        let checkpointed = pending.draft.checkpoint.is_some();
        self.touch_end(last, checkpointed, pending.draft.prompt, stamp);
        if checkpointed {
            self.retain_checkpoints(last, &mut dropped);
        }
        let joined = self.trees.join_path(last, self.segment_tokens, &mut self.ids);
        Ok(Committed { stale: false, dropped, joined })
    }

    /// Abandons a draft or a plan. Returns the KV that only its lease kept.
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
        self.release_draft(&draft, &mut dropped);
        Ok(dropped)
    }

    /// The node that the planned tokens follow or split, if their place is unchanged and no other store
    /// has put a checkpoint there.
    fn current_node(&mut self, pending: &Pending) -> Option<NodeId> {
        let Pending { draft, plan, .. } = pending;
        let place = self.current_place(draft)?;
        let Self { trees, .. } = self;
        if place.node.is_none() {
            let checkpointed = draft.checkpoint.is_some();
            let tree =
                trees.forest.find_or_add(&mut trees.arena, &draft.namespace, draft.layout, checkpointed);
            return Some(trees.forest.get(tree).root);
        }
        let adds = plan.length > plan.matched || place.cut.is_some();
        (adds || trees.arena[place.node].checkpoint.is_none()).then_some(place.node)
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
