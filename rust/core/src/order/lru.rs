//! Least recently used first: a doubly linked list through the nodes, oldest first.
//!
//! Paths are touched from the leaf up, so an ancestor is never older than its descendant, and in a tree of
//! full-attention layers the oldest unit is always a leaf.

use crate::ids::NodeId;
use crate::keys::hash::PathHash;
use crate::order::policy::{EvictionPolicy, Removal, Use, VictimPicker};
use crate::radix::arena::Arena;

/// The ends of the list; the links are in the nodes. Every operation is O(1).
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
    fn push(&mut self, arena: &mut Arena, unit: NodeId, stamp: u64) {
        let place = &mut arena[unit].placement;
        place.older = self.newest;
        place.newer = NodeId::NONE;
        place.listed = true;
        place.stamp = stamp;
        if self.newest.is_none() {
            self.oldest = unit;
        } else {
            arena[self.newest].placement.newer = unit;
        }
        self.newest = unit;
        self.len += 1;
    }

    fn unlink(&mut self, arena: &mut Arena, unit: NodeId) {
        let place = &mut arena[unit].placement;
        let (older, newer) = (place.older, place.newer);
        (place.older, place.newer, place.listed) = (NodeId::NONE, NodeId::NONE, false);
        if older.is_none() {
            self.oldest = newer;
        } else {
            arena[older].placement.newer = newer;
        }
        if newer.is_none() {
            self.newest = older;
        } else {
            arena[newer].placement.older = older;
        }
        self.len -= 1;
    }
}

impl EvictionPolicy for Lru {
    type Picker = LruPicker;

    fn insert(&mut self, arena: &mut Arena, unit: NodeId, used: Use, _: Option<PathHash>) {
        self.push(arena, unit, used.stamp);
    }

    fn touch(&mut self, arena: &mut Arena, unit: NodeId, used: Use) {
        self.unlink(arena, unit);
        self.push(arena, unit, used.stamp);
    }

    fn remove(&mut self, arena: &mut Arena, unit: NodeId, _: Removal) {
        self.unlink(arena, unit);
    }

    fn picker(&self) -> LruPicker {
        LruPicker { next: self.oldest }
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// Follows the list from its oldest unit.
pub(crate) struct LruPicker {
    next: NodeId,
}

impl VictimPicker for LruPicker {
    fn pick(&mut self, arena: &Arena) -> Option<NodeId> {
        if self.next.is_none() {
            return None;
        }
        let newer = arena[self.next].placement.newer;
        Some(std::mem::replace(&mut self.next, newer))
    }
}
