//! Nodes that were split and whose branches are gone become one node again.
//!
//! Otherwise a caller that branches off at each token of a prompt would leave it in pieces of one token
//! for good. Joining copies no array and needs no room: the node's segment then consists of the parts
//! that its predecessors had, until the caller has rewritten them into fewer.

use crate::ids::{IdSource, NodeId, SegmentId};
use crate::order::policy::Leaving;
use crate::radix::node::{End, Run};
use crate::trees::Trees;

/// A node is not kept apart for the end of a store while it is shorter than this part of a block.
const CRUMB: usize = 16;

/// Segments that became one, in the order of their tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The id of the whole.
    pub segment: SegmentId,
    /// The ids of what it consists of; they are reported as gone here and nowhere else.
    pub replaced: Vec<SegmentId>,
}

impl Trees {
    /// Joins what can be joined on the path down to `bottom`. O(nodes on the path, and the keys of
    /// those that are joined).
    pub(crate) fn join_path(&mut self, bottom: NodeId, grain: usize, ids: &mut IdSource) -> Vec<Joined> {
        let mut joined = Vec::new();
        let mut at = bottom;
        while !self.arena[at].is_root() {
            let mut run = vec![at];
            let (mut top, mut tokens) = (at, self.arena[at].len());
            while self.joins_parent(top, tokens, grain) {
                top = self.arena[top].parent;
                tokens += self.arena[top].len();
                run.push(top);
            }
            if top != at {
                run.reverse();
                joined.push(self.join(&run, SegmentId(ids.next())));
            }
            at = self.arena[at].parent;
        }
        joined
    }

    /// Whether a node, joined with those below it to `tokens` tokens, and its parent can be one: nothing
    /// else hangs on the parent, no lease and no checkpoint ends there, and both lie in one block of
    /// `grain` tokens. Where a store ended between them they stay apart, so that eviction can take the
    /// later turn alone, unless they are so small that this would leave a prompt in crumbs.
    fn joins_parent(&self, id: NodeId, tokens: usize, grain: usize) -> bool {
        let node = &self.arena[id];
        let parent = &self.arena[node.parent];
        !parent.is_root()
            && parent.children.len() == 1
            && parent.checkpoint.is_none()
            && parent.leases == node.leases
            && (parent.bytes_per_token, parent.buffers) == (node.bytes_per_token, node.buffers)
            && parent.start() / grain == (node.end as usize - 1) / grain
            && (parent.len() + tokens <= grain / CRUMB
                || !parent.ends().iter().any(|end| end.at as usize == parent.len()))
    }

    /// Makes one node of `run`, from the top down. It keeps the lowest one's id, children, checkpoint
    /// and place in the eviction policy. All of them are leased by the same leases.
    fn join(&mut self, run: &[NodeId], segment: SegmentId) -> Joined {
        let mut replaced = Vec::with_capacity(run.len());
        let (mut keys, mut ends, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut parts, mut media) = (0, false);
        for &id in run {
            self.discount_segment(id);
            let node = &self.arena[id];
            let offset = keys.len() as u32;
            replaced.push(node.segment);
            keys.extend_from_slice(&node.keys);
            ends.extend(node.ends().iter().map(|end| End { at: end.at + offset, ..*end }));
            node.labels().for_each(|run| Run::append(&mut runs, run));
            parts += node.parts;
            media |= node.media;
            if node.media {
                self.media.release(&node.keys);
            }
        }
        let (Some((&bottom, above)), top) = (run.split_last(), run[0]) else {
            unreachable!("a run of no nodes was joined")
        };
        let (tree, parent, first) = (self.arena[top].tree, self.arena[top].parent, keys[0]);
        for &id in above {
            self.unlist(id, Leaving::Removed);
            self.arena.remove(id);
        }
        if media {
            self.media.hold(&keys);
        }
        self.arena.alter(bottom, |node| {
            node.keys = keys.into();
            node.set_ends(ends);
            node.set_labels(runs);
            (node.parent, node.segment, node.parts, node.media) = (parent, segment, parts, media);
        });
        self.arena.alter(parent, |parent| parent.children.set(first, bottom));
        self.forest.get_mut(tree).nodes -= above.len() as u64;
        self.count_segment(bottom);
        Joined { segment, replaced }
    }

    /// The caller has rewritten a node's segment into this number of parts.
    pub(crate) fn set_parts(&mut self, id: NodeId, parts: u32) {
        self.discount_segment(id);
        self.arena[id].parts = parts;
        self.count_segment(id);
    }
}
