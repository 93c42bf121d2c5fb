//! All nodes of all trees.

use std::ops::{Index, IndexMut};

use crate::ids::NodeId;
use crate::radix::node::Node;
use crate::radix::slab::Slab;

/// Nodes by id.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    nodes: Slab<Node>,
    /// Heap bytes held by live nodes.
    heap_bytes: usize,
}

impl Arena {
    /// Adds a node. Amortised O(1).
    pub(crate) fn add(&mut self, node: Node) -> NodeId {
        self.heap_bytes += node.heap_bytes();
        NodeId(self.nodes.add(node))
    }

    /// Removes a node. Amortised O(1).
    pub(crate) fn remove(&mut self, id: NodeId) -> Node {
        let node = self.nodes.remove(id.0);
        self.heap_bytes -= node.heap_bytes();
        node
    }

    /// Changes a node in a way that may change its heap bytes.
    pub(crate) fn alter<R>(&mut self, id: NodeId, change: impl FnOnce(&mut Node) -> R) -> R {
        let node = &mut self[id];
        let before = node.heap_bytes();
        let result = change(node);
        let after = node.heap_bytes();
        self.heap_bytes = self.heap_bytes + after - before;
        result
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (NodeId(id), node))
    }

    /// Heap bytes held by live nodes. O(1).
    pub(crate) fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0)
    }

    /// Bytes on the heap, nodes included. O(1).
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.bytes() + self.heap_bytes
    }
}

impl Index<NodeId> for Arena {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        self.nodes.get(id.0).unwrap_or_else(|| unreachable!("node {} is not live", id.0))
    }
}

impl IndexMut<NodeId> for Arena {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(id.0).unwrap_or_else(|| unreachable!("node {} is not live", id.0))
    }
}
