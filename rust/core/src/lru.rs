//! The LRU order: a doubly linked list through the nodes, oldest first.
//!
//! What is in it are eviction units: in a tree of span layers every node that no lease holds, in
//! a tree with checkpoints every node whose checkpoint no lease holds.

use crate::ids::NodeId;
use crate::radix::arena::Arena;

/// List heads; the links are in the nodes. Every operation is O(1).
#[derive(Debug)]
pub(crate) struct Lru {
    oldest: NodeId,
    newest: NodeId,
    len: usize,
}

impl Default for Lru {
    fn default() -> Self {
        Self { oldest: NodeId::NONE, newest: NodeId::NONE, len: 0 }
    }
}

impl Lru {
    pub(crate) fn oldest(&self) -> Option<NodeId> {
        (!self.oldest.is_none()).then_some(self.oldest)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts `id` at the recent end. A node that is in the list already moves there.
    pub(crate) fn push(&mut self, arena: &mut Arena, id: NodeId, stamp: u64) {
        self.remove(arena, id);
        let links = &mut arena[id].links;
        links.older = self.newest;
        links.newer = NodeId::NONE;
        links.listed = true;
        links.stamp = stamp;
        if self.newest.is_none() {
            self.oldest = id;
        } else {
            arena[self.newest].links.newer = id;
        }
        self.newest = id;
        self.len += 1;
    }

    /// Takes `id` out; nothing happens where it is not in the list.
    pub(crate) fn remove(&mut self, arena: &mut Arena, id: NodeId) {
        let links = arena[id].links;
        if !links.listed {
            return;
        }
        if links.older.is_none() {
            self.oldest = links.newer;
        } else {
            arena[links.older].links.newer = links.newer;
        }
        if links.newer.is_none() {
            self.newest = links.older;
        } else {
            arena[links.newer].links.older = links.older;
        }
        let links = &mut arena[id].links;
        links.listed = false;
        links.older = NodeId::NONE;
        links.newer = NodeId::NONE;
        self.len -= 1;
    }

    /// From the oldest to the newest.
    pub(crate) fn iter<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = NodeId> + 'a {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            if at.is_none() {
                return None;
            }
            let next = arena[at].links.newer;
            Some(std::mem::replace(&mut at, next))
        })
    }
}
