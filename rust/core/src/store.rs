//! Storing in two steps: plan (match, make room, reserve) → the caller copies → commit or abort.
//!
//! A plan leases the tokens before the divergence and the checkpoint continued from, so that
//! making room cannot take them, and reserves its bytes, so that plans beside it cannot either.
//! Nothing of the tree changes before the commit.

use crate::error::Error;
use crate::evict::{Dropped, Room};
use crate::ids::{CheckpointId, LayoutId, LeaseId, NodeId, PlanId, SegmentId, TreeId};
use crate::index::PrefixIndex;
use crate::keys::Query;
use crate::lease::Lease;
use crate::ledger::Amount;
use crate::radix::edit::SegmentShape;
use crate::radix::node::Checkpoint;
use crate::radix::walk::{Walk, upward, walk};

/// The figures of a checkpoint that is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// Bytes of its arrays.
    pub nbytes: u64,
    /// Number of its arrays.
    pub buffers: u32,
    /// Only span and window layers, and no window has rotated: it serves shorter lengths too.
    pub trimmable: bool,
}

/// What is to be stored: `query` is the key, as long as the KV.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// What must never mix with other namespaces.
    pub namespace: &'a str,
    /// Which of the namespace's trees.
    pub layout: LayoutId,
    /// The key.
    pub query: Query<'a>,
    /// Bytes of all span layers for one token.
    pub bytes_per_token: u64,
    /// Arrays of one segment.
    pub segment_buffers: u32,
    /// The state after the last token; `None` where all layers are span layers.
    pub checkpoint: Option<CheckpointSpec>,
    /// Counted by label in the statistics.
    pub label: u16,
}

/// A segment to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSegment {
    /// Its id.
    pub id: SegmentId,
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
}

/// A segment to be replaced by copies of its two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The segment that is cut. It stays usable until the commit reports it as dropped.
    pub old: SegmentId,
    /// Id of the first half.
    pub upper: SegmentId,
    /// Id of the second half.
    pub lower: SegmentId,
    /// Tokens of the first half.
    pub at: usize,
}

/// A store that has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For commit or abort.
    pub id: PlanId,
    /// Tokens that will be held for the key: less than asked where not all of it fits.
    pub length: usize,
    /// Tokens that are held already.
    pub matched: usize,
    /// What to copy, in order.
    pub segments: Vec<NewSegment>,
    /// What to cut.
    pub split: Option<Split>,
    /// Id of the checkpoint to copy.
    pub checkpoint: Option<CheckpointId>,
}

/// The outcome of planning. What was evicted to make room is reported beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Planned {
    /// Copy, then commit.
    Ready(Plan),
    /// All of it is held; it is the most recently used now.
    Already,
    /// It does not fit beside what is protected; nothing was evicted.
    TooLarge,
    /// The key is empty, or ends inside a media span where nothing before it can be kept.
    InsideMedia,
}

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The tree changed in between and nothing was stored: plan again.
    pub stale: bool,
    /// What a split and the checkpoints' retention replaced. No eviction.
    pub dropped: Dropped,
}

/// A plan between its making and its commit.
#[derive(Debug)]
pub(crate) struct Pending {
    namespace: Box<str>,
    layout: LayoutId,
    pub(crate) keys: Box<[u32]>,
    shape: SegmentShape,
    checkpoint: Option<CheckpointSpec>,
    lease: Option<LeaseId>,
    pub(crate) reserved: Amount,
    plan: Plan,
}

impl Pending {
    /// Bytes on the heap, the entry itself aside.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.namespace.len()
            + size_of_val(&*self.keys)
            + self.plan.segments.capacity() * size_of::<NewSegment>()
    }
}

/// What a store costs, and from where.
#[derive(Clone, Copy, Debug)]
struct Draft {
    /// Where the new tokens begin, and the node that they hang on or cut.
    from: usize,
    node: NodeId,
    /// The node is to be cut after this many tokens.
    cut: Option<usize>,
    /// Tokens that will be held.
    length: usize,
}

impl PrefixIndex {
    /// Plans a store and makes room for it. Returns what was evicted. O(len(query)).
    ///
    /// # Errors
    /// An invalid token in the key, or media keys that were made for a lookup.
    pub fn plan(&mut self, request: &StoreRequest<'_>, stamp: u64) -> Result<(Planned, Dropped), Error> {
        request.query.check_length()?;
        request.query.check_contents()?;
        let n = request.query.len();
        let length = request.query.cuts.back(n);
        let checkpointed = request.checkpoint.is_some();
        if length == 0 || checkpointed && length < n {
            self.tick(stamp);
            return Ok((Planned::InsideMedia, Dropped::default()));
        }
        let Some(tree) = self.trees.forest.find(request.namespace, request.layout, checkpointed) else {
            if !request.query.checked {
                crate::keys::check_tokens(request.query.keys, 0)?;
            }
            self.tick(stamp);
            let draft = Draft { from: 0, node: NodeId::NONE, cut: None, length };
            return Ok(self.reserve(request, draft, None));
        };
        let root = self.trees.forest.get(tree).root;
        let walked = walk(&self.trees.arena, root, &request.query)?;
        let stamp = self.tick(stamp);
        if walked.matched >= length && self.held(request, &walked, length, stamp) {
            return Ok((Planned::Already, Dropped::default()));
        }
        let inside = walked.inside(&self.trees.arena);
        let cut = (inside < self.trees.arena[walked.node].len()).then_some(inside);
        let draft = Draft { from: walked.matched, node: walked.node, cut, length };
        Ok(self.reserve(request, draft, Some(tree)))
    }

    /// Whether all of the key is held; if so, refreshes it and notes the end.
    fn held(&mut self, request: &StoreRequest<'_>, walked: &Walk, length: usize, stamp: u64) -> bool {
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

    /// Protects, makes room and reserves for the draft, or for as much of it as fits.
    fn reserve(
        &mut self,
        request: &StoreRequest<'_>,
        mut draft: Draft,
        tree: Option<TreeId>,
    ) -> (Planned, Dropped) {
        let mut dropped = Dropped::default();
        let mut lease = tree.and_then(|tree| self.protect(tree, &draft));
        let mut fits = self.fitting(request, &draft, self.room());
        // Without a checkpoint to add, tokens beyond those that are held are all there is to gain.
        let held = if request.checkpoint.is_some() { 0 } else { draft.from };
        if fits != Some(draft.length)
            && let Some((node, shorter)) = self.without_the_cut_node(request, &draft)
            && shorter.length > fits.unwrap_or(held)
        {
            // The other side of the divergence goes, so that this one fits.
            self.unprotect(lease.take(), &mut dropped);
            lease = tree.and_then(|tree| self.protect(tree, &shorter));
            let tree = self.trees.arena[node].tree;
            self.evict_subtree(node, &mut dropped);
            self.trees.remove_if_empty(tree);
            fits = Some(shorter.length);
            draft = shorter;
        }
        let Some(length) = fits else {
            self.unprotect(lease, &mut dropped);
            return (Planned::TooLarge, dropped);
        };
        draft.length = length;
        let reserved = self.cost(request, &draft);
        let evicted = self.make_room(reserved.nbytes, reserved.buffers);
        debug_assert!(evicted.is_some(), "what fits has room");
        dropped.extend(evicted.unwrap_or_default());
        self.trees.ledger.reserve(reserved);
        let plan = self.draw_up(request, &draft);
        let pending = Pending {
            namespace: request.namespace.into(),
            layout: request.layout,
            keys: request.query.keys[..draft.length].into(),
            shape: SegmentShape {
                bytes_per_token: request.bytes_per_token,
                buffers: request.segment_buffers,
                label: request.label,
            },
            checkpoint: request.checkpoint,
            lease,
            reserved,
            plan: plan.clone(),
        };
        self.plans.insert(plan.id, pending);
        (Planned::Ready(plan), dropped)
    }

    fn draw_up(&mut self, request: &StoreRequest<'_>, draft: &Draft) -> Plan {
        let mut segments = Vec::new();
        let mut start = draft.from;
        while start < draft.length {
            let end = draft.length.min(start + self.segment_tokens);
            segments.push(NewSegment { id: SegmentId(self.ids.next()), start, end });
            start = end;
        }
        let split = draft.cut.map(|at| Split {
            old: self.trees.arena[draft.node].segment,
            upper: SegmentId(self.ids.next()),
            lower: SegmentId(self.ids.next()),
            at,
        });
        let checkpoint = request.checkpoint.map(|_| CheckpointId(self.ids.next()));
        let id = PlanId(self.ids.next());
        Plan { id, length: draft.length, matched: draft.from, segments, split, checkpoint }
    }

    /// Leases the path to the draft's node and the deepest checkpoint before the divergence.
    fn protect(&mut self, tree: TreeId, draft: &Draft) -> Option<LeaseId> {
        let arena = &self.trees.arena;
        if arena[draft.node].is_root() {
            return None;
        }
        let checkpoint = upward(arena, draft.node)
            .skip(usize::from(draft.cut.is_some()))
            .find(|id| arena[*id].checkpoint.is_some());
        let id = LeaseId(self.ids.next());
        self.leases.acquire(&mut self.trees, id, Lease { tree, node: draft.node, checkpoint });
        Some(id)
    }

    fn unprotect(&mut self, lease: Option<LeaseId>, dropped: &mut Dropped) {
        if let Some(lease) = lease {
            dropped.extend(self.leases.release(&mut self.trees, lease, self.stamp));
        }
    }

    /// What the draft adds until its commit: new segments, both halves of a split, a checkpoint.
    fn cost(&self, request: &StoreRequest<'_>, draft: &Draft) -> Amount {
        let tokens = draft.length.saturating_sub(draft.from) as u64;
        let segments = tokens.div_ceil(self.segment_tokens as u64);
        let mut cost = Amount {
            // What no limit allows may overflow, and stays more than any limit.
            nbytes: tokens.saturating_mul(request.bytes_per_token),
            buffers: segments * u64::from(request.segment_buffers),
            tokens,
            segments,
            checkpoints: 0,
        };
        if draft.cut.is_some() {
            let node = &self.trees.arena[draft.node];
            cost.nbytes = cost.nbytes.saturating_add(node.nbytes());
            cost.buffers += 2 * u64::from(node.buffers);
            cost.segments += 2;
        }
        if let Some(checkpoint) = request.checkpoint {
            cost.nbytes = cost.nbytes.saturating_add(checkpoint.nbytes);
            cost.buffers += u64::from(checkpoint.buffers);
            cost.checkpoints += 1;
        }
        cost
    }

    /// The most tokens that can be held for the draft in `room`; `None` where it gains nothing.
    fn fitting(&self, request: &StoreRequest<'_>, draft: &Draft, room: Room) -> Option<usize> {
        let whole = self.cost(request, draft);
        if room.holds(whole.nbytes, whole.buffers) {
            return Some(draft.length);
        }
        if request.checkpoint.is_some() {
            return None;
        }
        let fixed = self.cost(request, &Draft { length: draft.from, ..*draft });
        let nbytes = room.nbytes.checked_sub(fixed.nbytes)?;
        let buffers = room.buffers.checked_sub(fixed.buffers)?;
        let by_bytes = nbytes.checked_div(request.bytes_per_token).unwrap_or(u64::MAX);
        let by_buffers = buffers
            .checked_div(u64::from(request.segment_buffers))
            .map_or(u64::MAX, |segments| segments.saturating_mul(self.segment_tokens as u64));
        let more = by_bytes.min(by_buffers).min((draft.length - draft.from) as u64) as usize;
        let length = request.query.cuts.back(draft.from + more);
        (length > draft.from).then_some(length)
    }

    /// The node that the draft cuts, where only the draft's own lease holds it, and the draft that
    /// does without: the node's matched tokens are copied anew.
    fn without_the_cut_node(&self, request: &StoreRequest<'_>, draft: &Draft) -> Option<(NodeId, Draft)> {
        draft.cut?;
        let node = &self.trees.arena[draft.node];
        if node.leases > 1 {
            return None;
        }
        let mut room = self.room();
        room.nbytes += node.nbytes();
        room.buffers += u64::from(node.buffers);
        let length = request.query.cuts.back(request.query.len());
        let shorter = Draft { from: node.start(), node: node.parent, cut: None, length };
        let length = self.fitting(request, &shorter, room)?;
        Some((draft.node, Draft { length, ..shorter }))
    }

    /// Ends a plan: what the caller copied becomes part of the tree. O(len(key)).
    ///
    /// # Errors
    /// [`Error::UnknownPlan`].
    pub fn commit(&mut self, plan: PlanId, stamp: u64) -> Result<Committed, Error> {
        let pending = self.plans.remove(&plan).ok_or(Error::UnknownPlan)?;
        let stamp = self.tick(stamp);
        self.trees.ledger.unreserve(pending.reserved);
        let mut dropped = Dropped::default();
        let Some(place) = self.still_there(&pending) else {
            self.unprotect(pending.lease, &mut dropped);
            return Ok(Committed { stale: true, dropped });
        };
        let last = self.attach(&pending, place, &mut dropped);
        // First the release, then the touch: what was stored is more recent than the other half of
        // a split, which the lease covers too.
        self.unprotect(pending.lease, &mut dropped);
        if pending.checkpoint.is_some() {
            self.trees.touch_checkpoint(last, stamp);
            self.retain_checkpoints(last, &mut dropped);
        } else {
            self.trees.touch_path(last, stamp);
        }
        Ok(Committed { stale: false, dropped })
    }

    /// Gives a plan up. What comes back is KV that nothing but the plan kept.
    ///
    /// # Errors
    /// [`Error::UnknownPlan`].
    pub fn abort(&mut self, plan: PlanId) -> Result<Dropped, Error> {
        let pending = self.plans.remove(&plan).ok_or(Error::UnknownPlan)?;
        self.trees.ledger.unreserve(pending.reserved);
        let mut dropped = Dropped::default();
        self.unprotect(pending.lease, &mut dropped);
        Ok(dropped)
    }

    /// Where the planned tokens go, if the tree around the divergence is what it was.
    fn still_there(&mut self, pending: &Pending) -> Option<NodeId> {
        let plan = &pending.plan;
        let Self { trees, .. } = self;
        let tree = trees.forest.find_or_add(
            &mut trees.arena,
            &pending.namespace,
            pending.layout,
            pending.checkpoint.is_some(),
        );
        let mut query = Query::tokens(&pending.keys);
        query.checked = true;
        let walked = walk(&trees.arena, trees.forest.get(tree).root, &query).ok()?;
        let node = &trees.arena[walked.node];
        let inside = walked.inside(&trees.arena);
        let same = match plan.split {
            Some(split) => split.old == node.segment && split.at == inside,
            None => inside == node.len(),
        };
        let free = pending.checkpoint.is_none() || inside < node.len() || node.checkpoint.is_none();
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
        for segment in &plan.segments {
            let keys = pending.keys[segment.start..segment.end].into();
            last = trees.add_leaf(last, keys, segment.id, pending.shape);
        }
        if let (Some(id), Some(spec)) = (plan.checkpoint, pending.checkpoint) {
            let CheckpointSpec { nbytes, buffers, trimmable } = spec;
            let checkpoint = Checkpoint { id, nbytes, buffers, trimmable, leases: 0 };
            trees.add_checkpoint(last, checkpoint);
        }
        let len = trees.arena[last].len();
        trees.add_end(last, len, pending.shape.label);
        last
    }
}
