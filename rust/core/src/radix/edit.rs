//! The code that changes a tree's shape, and with it the ledger and the LRU list; joining nodes is next
//! door.

use crate::evict::Dropped;
use crate::forest::Forest;
use crate::ids::{NodeId, SegmentId, TreeId};
use crate::keys::any_media;
use crate::ledger::{Amount, Ledger};
use crate::lru::Lru;
use crate::media::MediaUses;
use crate::radix::arena::Arena;
use crate::radix::children::Children;
use crate::radix::node::{Checkpoint, End, Node, Run};
use crate::radix::walk::upward;

/// All trees with what is counted over them.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    pub(crate) arena: Arena,
    pub(crate) forest: Forest,
    pub(crate) lru: Lru,
    pub(crate) ledger: Ledger,
    pub(crate) media: MediaUses,
}

/// A segment's figures, the same for every node that a store adds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentShape {
    pub(crate) bytes_per_token: u64,
    pub(crate) buffers: u32,
    pub(crate) label: u16,
}

pub(crate) fn segment_amount(node: &Node) -> Amount {
    Amount {
        nbytes: node.nbytes(),
        buffers: u64::from(node.buffers) * u64::from(node.parts),
        tokens: node.len() as u64,
        segments: 1,
        checkpoints: 0,
    }
}

pub(crate) fn checkpoint_amount(checkpoint: &Checkpoint) -> Amount {
    Amount {
        nbytes: checkpoint.nbytes,
        buffers: u64::from(checkpoint.buffers),
        checkpoints: 1,
        ..Amount::default()
    }
}

impl Trees {
    pub(crate) fn checkpointed(&self, node: NodeId) -> bool {
        self.forest.get(self.arena[node].tree).checkpointed
    }

    fn count(&mut self, tree: TreeId, label: u16, amount: Amount) {
        self.ledger.add(&mut self.forest.get_mut(tree).held, amount);
        self.ledger.label(label).nbytes += amount.nbytes;
    }

    fn discount(&mut self, tree: TreeId, label: u16, amount: Amount) {
        self.ledger.subtract(&mut self.forest.get_mut(tree).held, amount);
        self.ledger.label(label).nbytes -= amount.nbytes;
    }

    /// Hangs a new leaf under `parent`. O(1), with `media` (some key may be a media key) O(len).
    /// The leaf is not in the LRU list yet.
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
        self.count_segment(id);
        self.forest.get_mut(tree).nodes += 1;
        id
    }

    /// Cuts a node after its first `at` keys. The lower half keeps its id, children, checkpoint
    /// and leases; the new upper half is leased as often. The node is leased by the store that
    /// cuts it, so neither half has a place in the LRU list. The caller copies the halves whole, so
    /// each has one part. O(len) for the keys' copy.
    pub(crate) fn split(
        &mut self,
        lower: NodeId,
        at: usize,
        upper_segment: SegmentId,
        lower_segment: SegmentId,
    ) -> NodeId {
        self.discount_segment(lower);
        let node = &self.arena[lower];
        let (tree, parent, start) = (node.tree, node.parent, node.start());
        debug_assert!(node.leases > 0, "a node is cut by the store that leases it");
        let first = node.keys[0];
        let mut upper = Node::new(tree, parent, start as u32, node.keys[..at].into());
        upper.children.set(node.keys[at], lower);
        upper.segment = upper_segment;
        upper.bytes_per_token = node.bytes_per_token;
        upper.buffers = node.buffers;
        upper.leases = node.leases;
        upper.children.set_trimmable(node.keys[at], node.trimmable());
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
        let (above, below_labels) = cut_labels(node, at);
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
        self.forest.get_mut(tree).nodes += 1;
        self.count_segment(upper);
        self.count_segment(lower);
        upper
    }

    /// Takes a node and its checkpoint out of leases that are void. O(1).
    pub(crate) fn unlease(&mut self, id: NodeId) {
        let node = &mut self.arena[id];
        if std::mem::take(&mut node.leases) > 0 {
            let amount = segment_amount(node);
            self.ledger.unlease(amount);
        }
        if let Some(checkpoint) = &mut node.checkpoint
            && std::mem::take(&mut checkpoint.leases) > 0
        {
            self.ledger.unlease(checkpoint_amount(checkpoint));
        }
    }

    fn remove_sequence(&mut self, id: NodeId, label: u16) {
        let account = &mut self.forest.get_mut(self.arena[id].tree).sequences;
        self.ledger.remove_end(account, label);
    }

    /// Takes away a node without children, with its checkpoint. Amortised O(1).
    pub(crate) fn remove_leaf(&mut self, id: NodeId, dropped: &mut Dropped) {
        debug_assert!(self.arena[id].children.is_empty() && self.arena[id].leases == 0);
        if self.arena[id].checkpoint.is_some() {
            self.remove_checkpoint(id, dropped);
        }
        let (parent, first) = (self.arena[id].parent, self.arena[id].keys[0]);
        self.remove_node(id, dropped);
        self.arena.alter(parent, |parent| parent.children.remove(first));
    }

    /// Takes away a subtree; its leases, if any, are void. O(nodes).
    pub(crate) fn remove_subtree(&mut self, top: NodeId, dropped: &mut Dropped) {
        let (parent, first) = (self.arena[top].parent, self.arena[top].keys[0]);
        self.announce(top, false);
        self.remove_nodes(self.postorder(top), dropped);
        self.arena.alter(parent, |parent| parent.children.remove(first));
    }

    /// Takes away all nodes of a tree but its root, whose children are gone then; its leases are void.
    /// O(nodes).
    pub(crate) fn empty_tree(&mut self, tree: TreeId, dropped: &mut Dropped) {
        let root = self.forest.get(tree).root;
        let mut nodes = self.postorder(root);
        nodes.pop();
        self.remove_nodes(nodes, dropped);
        self.arena.alter(root, |root| root.children = Children::None);
    }

    fn remove_nodes(&mut self, mut nodes: Vec<NodeId>, dropped: &mut Dropped) {
        // As they lie in memory: in a table's order each is another cache miss, four times the time.
        nodes.sort_unstable();
        for id in nodes {
            let node = &self.arena[id];
            dropped.units += u64::from(node.checkpoint.is_some() || !self.forest.get(node.tree).checkpointed);
            self.unlease(id);
            self.take_checkpoint(id, dropped);
            self.remove_node(id, dropped);
        }
    }

    /// Takes away a node without checkpoint. Its parent still has it as a child.
    fn remove_node(&mut self, id: NodeId, dropped: &mut Dropped) {
        self.remove_ends(id, |_| true);
        self.unlist(id);
        let amount = self.discount_segment(id);
        let node = self.arena.remove(id);
        if node.media {
            self.media.release(&node.keys);
        }
        self.forest.get_mut(node.tree).nodes -= 1;
        dropped.segments.push(node.segment);
        dropped.amount += amount;
    }

    /// Removes the tree where nothing hangs on its root any more.
    pub(crate) fn remove_if_empty(&mut self, tree: TreeId) {
        if self.arena[self.forest.get(tree).root].children.is_empty() {
            self.forest.remove(&mut self.arena, tree);
        }
    }

    /// O(nodes on the path) for a trimmable one, else O(1). The unit is not in the LRU list yet.
    pub(crate) fn add_checkpoint(&mut self, id: NodeId, checkpoint: Checkpoint) {
        let (tree, label) = (self.arena[id].tree, self.arena[id].label);
        let trimmable = checkpoint.trimmable;
        self.count(tree, label, checkpoint_amount(&checkpoint));
        self.arena.alter(id, |node| node.checkpoint = Some(Box::new(checkpoint)));
        if trimmable {
            self.announce(id, true);
        }
    }

    /// Takes a node's checkpoint away, and the end that it stood for; its KV stays.
    pub(crate) fn remove_checkpoint(&mut self, id: NodeId, dropped: &mut Dropped) {
        if self.take_checkpoint(id, dropped) {
            self.announce(id, self.arena[id].trimmable());
        }
    }

    /// As `remove_checkpoint`, but the nodes above do not get to know. Whether it could be trimmed.
    fn take_checkpoint(&mut self, id: NodeId, dropped: &mut Dropped) -> bool {
        let Some(checkpoint) = self.arena.alter(id, |node| node.checkpoint.take()) else { return false };
        self.unlist(id);
        let amount = checkpoint_amount(&checkpoint);
        let (tree, label, len) = (self.arena[id].tree, self.arena[id].label, self.arena[id].len());
        self.discount(tree, label, amount);
        self.remove_ends(id, |end| end.at as usize == len);
        dropped.checkpoints.push(checkpoint.id);
        dropped.amount += amount;
        checkpoint.trimmable
    }

    /// In a tree with checkpoints: takes away KV that no checkpoint, lease or branch needs.
    pub(crate) fn prune(&mut self, mut id: NodeId, dropped: &mut Dropped) {
        loop {
            let node = &self.arena[id];
            let needed = !node.children.is_empty() || node.checkpoint.is_some() || node.leases > 0;
            if node.is_root() || needed {
                return;
            }
            let parent = node.parent;
            self.remove_leaf(id, dropped);
            id = parent;
        }
    }

    /// Notes that a store ended after `at` keys of the node. A later label replaces an earlier.
    pub(crate) fn add_end(&mut self, id: NodeId, at: usize, label: u16) {
        let at = at as u32;
        let old = self.arena.alter(id, |node| {
            let ends = node.ends.get_or_insert_default();
            if let Some(end) = ends.iter_mut().find(|end| end.at == at) {
                return Some(std::mem::replace(&mut end.label, label));
            }
            ends.push(End { at, label });
            None
        });
        if let Some(old) = old {
            self.remove_sequence(id, old);
        }
        let account = &mut self.forest.get_mut(self.arena[id].tree).sequences;
        self.ledger.add_end(account, label);
    }

    fn remove_ends(&mut self, id: NodeId, gone: impl Fn(&End) -> bool) {
        if self.arena[id].ends.is_none() {
            return;
        }
        let (removed, kept): (Vec<End>, Vec<End>) = self.arena[id].ends().iter().partition(|end| gone(end));
        self.arena.alter(id, |node| node.set_ends(kept));
        for end in removed {
            self.remove_sequence(id, end.label);
        }
    }

    /// Lets the nodes above know whether a trimmable checkpoint is at or below this one. Where one
    /// learns nothing new, those above it do not either.
    fn announce(&mut self, mut id: NodeId, mut trimmable: bool) {
        while !self.arena[id].is_root() {
            let (key, parent) = (self.arena[id].keys[0], self.arena[id].parent);
            let before = self.arena[parent].trimmable();
            self.arena.alter(parent, |parent| parent.children.set_trimmable(key, trimmable));
            (id, trimmable) = (parent, self.arena[parent].trimmable());
            if trimmable == before {
                return;
            }
        }
    }

    /// Puts a unit at the recent end of the LRU order.
    pub(crate) fn list(&mut self, id: NodeId, stamp: u64) {
        self.lru.push(&mut self.arena, id, stamp);
    }

    /// Takes a unit out of the LRU order.
    pub(crate) fn unlist(&mut self, id: NodeId) {
        self.lru.remove(&mut self.arena, id);
    }

    /// Moves the path's units to the recent end of the LRU order, leaf first, so that an ancestor
    /// is never older than its descendant. O(nodes on the path).
    pub(crate) fn touch_path(&mut self, id: NodeId, stamp: u64) {
        let mut at = id;
        while !self.arena[at].is_root() {
            if self.arena[at].leases == 0 {
                self.list(at, stamp);
            }
            at = self.arena[at].parent;
        }
    }

    /// Moves one checkpoint's unit to the recent end, unless a lease holds it.
    pub(crate) fn touch_checkpoint(&mut self, id: NodeId, stamp: u64) {
        if self.arena[id].checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.leases == 0) {
            self.list(id, stamp);
        }
    }

    /// The nodes of a subtree, children before parents.
    pub(crate) fn postorder(&self, top: NodeId) -> Vec<NodeId> {
        let mut order = vec![top];
        let mut next = 0;
        while let Some(&id) = order.get(next) {
            order.extend(self.arena[id].children.iter().map(|(_, child)| child.id));
            next += 1;
        }
        order.reverse();
        order
    }

    /// The nodes from `node` up to the child of the root.
    pub(crate) fn path(&self, node: NodeId) -> Vec<NodeId> {
        upward(&self.arena, node).collect()
    }
}

/// The labels of a node's first `at` tokens, and of the others.
fn cut_labels(node: &Node, at: u32) -> (Vec<Run>, Vec<Run>) {
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
