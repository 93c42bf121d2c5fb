//! Trees that shrink: leaves, subtrees, checkpoints, and KV that nothing needs any longer.

use crate::dropped::Dropped;
use crate::ids::{NodeId, TreeId};
use crate::order::policy::Leaving;
use crate::radix::children::{Children, Leads};
use crate::trees::Trees;

impl Trees {
    /// Ends what void leases hold of a node and its checkpoint. O(1).
    pub(crate) fn unlease(&mut self, id: NodeId) {
        let node = &mut self.arena[id];
        if std::mem::take(&mut node.leases) > 0 {
            let amount = node.amount();
            self.ledger.unlease(amount);
        }
        if let Some(checkpoint) = &mut node.checkpoint
            && std::mem::take(&mut checkpoint.leases) > 0
        {
            self.ledger.unlease(checkpoint.amount());
        }
    }

    /// Removes a node without children, with its checkpoint. Amortised O(1).
    pub(crate) fn remove_leaf(&mut self, id: NodeId, dropped: &mut Dropped) {
        debug_assert!(self.arena[id].children.is_empty() && self.arena[id].leases == 0);
        if self.arena[id].checkpoint.is_some() {
            self.remove_checkpoint(id, dropped);
        }
        let (parent, first) = (self.arena[id].parent, self.arena[id].keys[0]);
        self.announce(id, Leads::default());
        self.remove_node(id, dropped);
        self.arena.alter(parent, |parent| parent.children.remove(first));
    }

    /// Removes a subtree; its leases, if any, are void. O(nodes).
    pub(crate) fn remove_subtree(&mut self, top: NodeId, dropped: &mut Dropped) {
        let (parent, first) = (self.arena[top].parent, self.arena[top].keys[0]);
        self.announce(top, Leads::default());
        self.remove_nodes(self.postorder(top), dropped);
        self.arena.alter(parent, |parent| parent.children.remove(first));
    }

    /// Removes all nodes of a tree but its root; its leases are void.
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

    /// Removes a node without checkpoint. Its parent still lists it as a child.
    fn remove_node(&mut self, id: NodeId, dropped: &mut Dropped) {
        self.remove_ends(id, |_| true);
        self.unlist(id, Leaving::Removed);
        let amount = self.discount_segment(id);
        let node = self.arena.remove(id);
        if node.media {
            self.media.release(&node.keys);
        }
        self.forest.get_mut(node.tree).nodes -= 1;
        dropped.segments.push(node.segment);
        dropped.amount += amount;
    }

    /// Removes the tree if its root has no child left.
    pub(crate) fn remove_if_empty(&mut self, tree: TreeId) {
        if self.arena[self.forest.get(tree).root].children.is_empty() {
            self.forest.remove(&mut self.arena, tree);
        }
    }

    /// Removes a node's checkpoint, and the end of a store that it was; its KV stays.
    pub(crate) fn remove_checkpoint(&mut self, id: NodeId, dropped: &mut Dropped) {
        self.take_checkpoint(id, dropped);
        self.announce(id, self.arena[id].leads());
    }

    /// As `remove_checkpoint`, without a word to the nodes above.
    fn take_checkpoint(&mut self, id: NodeId, dropped: &mut Dropped) {
        let Some(checkpoint) = self.arena.alter(id, |node| node.checkpoint.take()) else { return };
        self.unlist(id, Leaving::Removed);
        let amount = checkpoint.amount();
        let (tree, label, len) = (self.arena[id].tree, self.arena[id].label, self.arena[id].len());
        self.discount(tree, label, amount);
        self.remove_ends(id, |end| end.at as usize == len);
        dropped.checkpoints.push(checkpoint.id);
        dropped.amount += amount;
    }

    /// In a tree with checkpoints: removes KV that no checkpoint, lease or branch needs, from a node up.
    pub(crate) fn prune(&mut self, mut id: NodeId, dropped: &mut Dropped) {
        loop {
            let node = &self.arena[id];
            if node.checkpoint.is_some() || !node.is_free(node.children.len()) {
                return;
            }
            let parent = node.parent;
            self.remove_leaf(id, dropped);
            id = parent;
        }
    }
}
