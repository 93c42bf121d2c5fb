//! Growing trees: new leaves, splits, checkpoints.

use crate::ids::{NodeId, SegmentId};
use crate::keys::token::any_media;
use crate::order::policy::EvictionPolicy;
use crate::radix::node::{Checkpoint, End, Node, Run};
use crate::trees::Trees;

/// Size and label of a segment, the same for every node that a store adds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentShape {
    pub(crate) bytes_per_token: u64,
    pub(crate) buffers: u32,
    pub(crate) label: u16,
}

impl Trees {
    /// Adds a leaf under `parent`. The leaf is not in the eviction policy yet. O(1), or O(len) with
    /// `media`, which says that some keys may be media keys.
    pub(crate) fn add_leaf(
        &mut self,
        parent: NodeId,
        keys: Box<[u32]>,
        segment: SegmentId,
        shape: SegmentShape,
        media: bool,
    ) -> NodeId {
        let above = &self.arena[parent];
        let (tree, first) = (above.tree, keys[0]);
        let mut node = Node::new(tree, parent, above.end, keys);
        node.media = media && any_media(&node.keys);
        node.segment = segment;
        node.bytes_per_token = shape.bytes_per_token;
        node.buffers = shape.buffers;
        node.label = shape.label;
        if node.media {
            self.media.hold(&node.keys);
        }
        let id = self.arena.add(node);
        self.arena.alter(parent, |parent| parent.children.set(first, id));
        self.charge_segment(id);
        self.forest.get_mut(tree).nodes += 1;
        id
    }

    /// Splits a node after its first `at` keys. The lower half keeps the id, children, checkpoint and
    /// leases; the new upper half gets the same number of leases. The store that splits the node leases
    /// it, so neither half is in the eviction policy. The caller copies each half whole, so each has one
    /// part. O(len), to copy the keys.
    pub(crate) fn split(
        &mut self,
        lower: NodeId,
        at: usize,
        upper_segment: SegmentId,
        lower_segment: SegmentId,
    ) -> NodeId {
        self.uncharge_segment(lower);
        let node = &self.arena[lower];
        let (tree, parent, start) = (node.tree, node.parent, node.start());
        debug_assert!(node.leases > 0, "the store that splits a node must lease it");
        let first = node.keys[0];
        let mut upper = Node::new(tree, parent, start as u32, node.keys[..at].into());
        upper.children.set(node.keys[at], lower);
        upper.segment = upper_segment;
        upper.bytes_per_token = node.bytes_per_token;
        upper.buffers = node.buffers;
        upper.leases = node.leases;
        upper.media = node.media && any_media(&upper.keys);
        if node.media {
            self.media.release(&node.keys);
            self.media.hold(&node.keys[..at]);
            self.media.hold(&node.keys[at..]);
        }
        let at = at as u32;
        let (above, below): (Vec<End>, Vec<End>) = node.ends().iter().partition(|end| end.at <= at);
        let below = below.iter().map(|end| End { at: end.at - at, ..*end }).collect();
        upper.set_ends(above);
        let (above, below_labels) = split_labels(node, at);
        upper.set_labels(above);

        let upper = self.arena.add(upper);
        self.arena.alter(parent, |parent| parent.children.set(first, upper));
        self.arena.alter(lower, |node| {
            node.keys = node.keys[at as usize..].into();
            node.media = node.media && any_media(&node.keys);
            node.set_ends(below);
            node.set_labels(below_labels);
            node.parent = upper;
            node.segment = lower_segment;
            node.parts = 1;
        });
        let (first, summary) = (self.arena[lower].keys[0], self.arena[lower].summary());
        self.arena.alter(upper, |upper| upper.children.set_summary(first, summary));
        self.forest.get_mut(tree).nodes += 1;
        self.charge_segment(upper);
        self.charge_segment(lower);
        self.order.fork(&mut self.arena, upper, lower);
        upper
    }

    /// Adds a checkpoint to a node. Its unit is not in the eviction policy yet. O(nodes on the path) if it
    /// is trimmable, else O(1).
    pub(crate) fn add_checkpoint(&mut self, id: NodeId, checkpoint: Checkpoint) {
        let (tree, label) = (self.arena[id].tree, self.arena[id].label);
        self.charge(tree, label, checkpoint.amount());
        self.arena.alter(id, |node| node.checkpoint = Some(Box::new(checkpoint)));
        self.propagate(id, self.arena[id].summary());
    }
}

/// The labels of a node's first `at` tokens, and of the rest.
fn split_labels(node: &Node, at: u32) -> (Vec<Run>, Vec<Run>) {
    let (mut above, mut below) = (Vec::new(), Vec::new());
    let mut start = 0;
    for run in node.labels() {
        let first = run.tokens.min(at.saturating_sub(start));
        let halves = [(&mut above, first), (&mut below, run.tokens - first)];
        for (runs, tokens) in halves.into_iter().filter(|half| half.1 > 0) {
            runs.push(Run { tokens, ..run });
        }
        start += run.tokens;
    }
    (above, below)
}
