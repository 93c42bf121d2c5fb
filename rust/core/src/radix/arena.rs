//! All nodes of all trees, in one vector with a free list.

use std::ops::{Index, IndexMut};

use crate::ids::NodeId;
use crate::radix::node::Node;

#[derive(Debug)]
enum Slot {
    Live(Node),
    Free(NodeId),
}

/// Nodes by id. Slots are reused; the vector never shrinks below its peak.
#[derive(Debug)]
pub(crate) struct Arena {
    slots: Vec<Slot>,
    free: NodeId,
    live: usize,
    /// Bytes that live nodes hold on the heap.
    heap_bytes: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NodeId::NONE, live: 0, heap_bytes: 0 }
    }
}

impl Arena {
    /// Amortised O(1).
    pub(crate) fn add(&mut self, node: Node) -> NodeId {
        self.live += 1;
        self.heap_bytes += node.heap_bytes();
        let id = self.free;
        if id.is_none() {
            self.slots.push(Slot::Live(node));
            return NodeId(self.slots.len() as u32 - 1);
        }
        let slot = std::mem::replace(&mut self.slots[id.0 as usize], Slot::Live(node));
        if let Slot::Free(next) = slot {
            self.free = next;
        }
        id
    }

    /// O(1). An arena without live nodes gives its vector back.
    pub(crate) fn remove(&mut self, id: NodeId) -> Node {
        let slot = std::mem::replace(&mut self.slots[id.0 as usize], Slot::Free(self.free));
        let Slot::Live(node) = slot else { unreachable!("node {} was removed before", id.0) };
        self.free = id;
        self.live -= 1;
        self.heap_bytes -= node.heap_bytes();
        if self.live == 0 {
            self.slots = Vec::new();
            self.free = NodeId::NONE;
        }
        node
    }

    /// Changes a node in a way that may change what it holds on the heap.
    pub(crate) fn alter<R>(&mut self, id: NodeId, change: impl FnOnce(&mut Node) -> R) -> R {
        let node = &mut self[id];
        let before = node.heap_bytes();
        let result = change(node);
        let after = node.heap_bytes();
        self.heap_bytes = self.heap_bytes + after - before;
        result
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| match slot {
            Slot::Live(node) => Some((NodeId(at as u32), node)),
            Slot::Free(_) => None,
        })
    }

    /// Bytes that live nodes hold on the heap. O(1).
    pub(crate) fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&Node> {
        match self.slots.get(id.0 as usize) {
            Some(Slot::Live(node)) => Some(node),
            _ => None,
        }
    }

    /// Bytes on the heap, nodes included. O(1).
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>() + self.heap_bytes
    }
}

impl Index<NodeId> for Arena {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        match &self.slots[id.0 as usize] {
            Slot::Live(node) => node,
            Slot::Free(_) => unreachable!("node {} is not live", id.0),
        }
    }
}

impl IndexMut<NodeId> for Arena {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        match &mut self.slots[id.0 as usize] {
            Slot::Live(node) => node,
            Slot::Free(_) => unreachable!("node {} is not live", id.0),
        }
    }
}
