//! The children of a node, by their first key.

use hashbrown::HashMap;

use crate::ids::NodeId;

/// Most nodes have one child or none, and pay no allocation for it.
#[derive(Debug, Default)]
pub(crate) enum Children {
    #[default]
    None,
    One(u32, NodeId),
    Many(Box<HashMap<u32, NodeId>>),
}

impl Children {
    /// O(1).
    pub(crate) fn get(&self, key: u32) -> Option<NodeId> {
        match self {
            Self::None => None,
            Self::One(first, node) => (*first == key).then_some(*node),
            Self::Many(map) => map.get(&key).copied(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(map) => map.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The child of a node that has exactly one.
    pub(crate) fn only(&self) -> Option<NodeId> {
        match self {
            Self::One(_, node) => Some(*node),
            _ => None,
        }
    }

    /// In no particular order: whoever decides by it must not depend on the order.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (u32, NodeId)> + '_> {
        match self {
            Self::None => Box::new(std::iter::empty()),
            Self::One(key, node) => Box::new(std::iter::once((*key, *node))),
            Self::Many(map) => Box::new(map.iter().map(|(key, node)| (*key, *node))),
        }
    }

    /// Adds a child, or puts another node in the place of the one under `key`.
    pub(crate) fn set(&mut self, key: u32, node: NodeId) {
        match self {
            Self::Many(map) => {
                map.insert(key, node);
            }
            Self::One(first, old) if *first != key => {
                let map = [(*first, *old), (key, node)].into_iter().collect();
                *self = Self::Many(Box::new(map));
            }
            _ => *self = Self::One(key, node),
        }
    }

    pub(crate) fn remove(&mut self, key: u32) {
        match self {
            Self::Many(map) => {
                map.remove(&key);
                let last = map.iter().next().map(|(key, node)| (*key, *node));
                if let (1, Some((key, node))) = (map.len(), last) {
                    *self = Self::One(key, node);
                } else if map.capacity() > 4 * map.len().max(4) {
                    map.shrink_to(map.len() * 2);
                }
            }
            Self::One(first, _) if *first == key => *self = Self::None,
            _ => {}
        }
    }

    /// Bytes on the heap. O(1).
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Many(map) => size_of::<HashMap<u32, NodeId>>() + map.allocation_size(),
            _ => 0,
        }
    }
}
