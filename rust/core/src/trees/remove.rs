//! Shrinking trees: removes leaves, subtrees, checkpoints, and KV that is no longer needed.

use crate::dropped::Dropped;
use crate::ids::{NodeId, TreeId};
use crate::order::policy::Removal;
use crate::radix::children::{Children, Summary};
use crate::trees::Trees;

impl Trees {
    /// Clears the leases on a node and its checkpoint, which are void. O(1).
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

    /// Removes a leaf and its checkpoint. Amortised O(1).
    pub(crate) fn remove_leaf(&mut self, id: NodeId, dropped: &mut Dropped) {
        debug_assert!(self.arena[id].children.is_empty() && self.arena[id].leases == 0);
        if self.arena[id].checkpoint.is_some() {
            self.remove_checkpoint(id, dropped);
        }
        let (parent, first) = (self.arena[id].parent, self.arena[id].keys[0]);
        self.propagate(id, Summary::default());
        self.remove_node(id, dropped);
        self.arena.alter(parent, |parent| parent.children.remove(first));
    }

    /// Removes a subtree; any leases on it must be void. O(nodes).
    pub(crate) fn remove_subtree(&mut self, top: NodeId, dropped: &mut Dropped) {
        let (parent, first) = (self.arena[top].parent, self.arena[top].keys[0]);
        self.propagate(top, Summary::default());
        self.remove_nodes(self.postorder(top), dropped);
        self.arena.alter(parent, |parent| parent.children.remove(first));
    }

    /// Removes all nodes of a tree but its root; any leases on it must be void. O(nodes).
    pub(crate) fn empty_tree(&mut self, tree: TreeId, dropped: &mut Dropped) {
        let root = self.forest.get(tree).root;
        let mut nodes = self.postorder(root);
        nodes.pop();
        self.remove_nodes(nodes, dropped);
        self.arena.alter(root, |root| root.children = Children::None);
    }

    fn remove_nodes(&mut self, mut nodes: Vec<NodeId>, dropped: &mut Dropped) {
        // In memory order: in hash-table order each node is a cache miss, which takes four times as long.
        nodes.sort_unstable();
        for id in nodes {
            let node = &self.arena[id];
            dropped.units += u64::from(node.checkpoint.is_some() || !self.forest.get(node.tree).checkpointed);
            self.unlease(id);
            self.take_checkpoint(id, dropped);
            self.remove_node(id, dropped);
        }
    }

    /// Removes a node that has no checkpoint. Its parent still lists it as a child.
    fn remove_node(&mut self, id: NodeId, dropped: &mut Dropped) {
        self.remove_ends(id, |_| true);
        self.unlist(id, Removal::Removed);
        let amount = self.uncharge_segment(id);
        let node = self.arena.remove(id);
        if node.media {
            self.media.release(&node.keys);
        }
        self.forest.get_mut(node.tree).nodes -= 1;
        dropped.segments.push(node.segment);
        dropped.amount += amount;
    }

    /// Removes the tree if its root has no children.
    pub(crate) fn remove_if_empty(&mut self, tree: TreeId) {
        if self.arena[self.forest.get(tree).root].children.is_empty() {
            self.forest.remove(&mut self.arena, tree);
        }
    }

    /// Removes a node's checkpoint, and the end of the store it belongs to. The node's KV stays.
    pub(crate) fn remove_checkpoint(&mut self, id: NodeId, dropped: &mut Dropped) {
        self.take_checkpoint(id, dropped);
        self.propagate(id, self.arena[id].summary());
    }

    /// Like `remove_checkpoint`, without updating the nodes above.
    fn take_checkpoint(&mut self, id: NodeId, dropped: &mut Dropped) {
        let Some(checkpoint) = self.arena.alter(id, |node| node.checkpoint.take()) else { return };
        self.unlist(id, Removal::Removed);
        let amount = checkpoint.amount();
        let (tree, label, len) = (self.arena[id].tree, self.arena[id].label, self.arena[id].len());
        self.uncharge(tree, label, amount);
        self.remove_ends(id, |end| end.at as usize == len);
        dropped.checkpoints.push(checkpoint.id);
        dropped.amount += amount;
    }

    /// In a tree with checkpoints, removes KV that no checkpoint, lease or branch needs, from a node up.
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
