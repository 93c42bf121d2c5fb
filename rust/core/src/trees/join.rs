//! Joins nodes that were split once the branch between them is gone.
//!
//! Otherwise a caller that branches off at each token of a prompt would leave it in one-token pieces for
//! good. Joining copies no arrays and needs no room: the new segment consists of the parts of the old
//! ones, until the caller rewrites them into fewer.

use crate::ids::{IdSource, NodeId, SegmentId};
use crate::order::policy::Removal;
use crate::radix::node::{End, Run};
use crate::trees::Trees;

/// Nodes that together have at most `grain / SMALL` tokens are joined even across the end of a store.
const SMALL: usize = 16;

/// Segments that were joined into one, in token order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Id of the joined segment.
    pub segment: SegmentId,
    /// Ids of the segments it replaces. They are reported here only, not as dropped.
    pub replaced: Vec<SegmentId>,
}

impl Trees {
    /// Joins all nodes on the path down to `bottom` that can be joined. O(nodes on the path and keys of
    /// the joined nodes).
    pub(crate) fn join_path(&mut self, bottom: NodeId, grain: usize, ids: &mut IdSource) -> Vec<Joined> {
        let mut joined = Vec::new();
        let mut at = bottom;
        while !self.arena[at].is_root() {
            let mut run = vec![at];
            let (mut top, mut tokens) = (at, self.arena[at].len());
            while self.can_join_parent(top, tokens, grain) {
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

    /// Whether a node can be joined with its parent; `tokens` counts the node and those below it in the
    /// same join. The parent must have no other child, no checkpoint and no lease that ends there, and
    /// both must lie in one block of `grain` tokens. A store that ended between them keeps them apart, so
    /// that eviction can take the later turn alone, unless they are so small that prompts would fragment.
    fn can_join_parent(&self, id: NodeId, tokens: usize, grain: usize) -> bool {
        let node = &self.arena[id];
        let parent = &self.arena[node.parent];
        !parent.is_root()
            && parent.children.len() == 1
            && parent.checkpoint.is_none()
            && parent.leases == node.leases
            && (parent.bytes_per_token, parent.buffers) == (node.bytes_per_token, node.buffers)
            && parent.start() / grain == (node.end as usize - 1) / grain
            && (parent.len() + tokens <= grain / SMALL
                || !parent.ends().iter().any(|end| end.at as usize == parent.len()))
    }

    /// Joins the nodes of `run`, listed from the top down, into one. It keeps the id, children, checkpoint
    /// and eviction-policy placement of the lowest. All of them have the same leases.
    fn join(&mut self, run: &[NodeId], segment: SegmentId) -> Joined {
        let mut replaced = Vec::with_capacity(run.len());
        let (mut keys, mut ends, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut parts, mut media) = (0, false);
        for &id in run {
            self.uncharge_segment(id);
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
            unreachable!("cannot join an empty run of nodes")
        };
        let (tree, parent, first) = (self.arena[top].tree, self.arena[top].parent, keys[0]);
        for &id in above {
            self.unlist(id, Removal::Removed);
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
        self.charge_segment(bottom);
        Joined { segment, replaced }
    }

    /// Records that the caller has rewritten a node's segment into `parts` parts.
    pub(crate) fn set_parts(&mut self, id: NodeId, parts: u32) {
        self.uncharge_segment(id);
        self.arena[id].parts = parts;
        self.charge_segment(id);
    }
}
