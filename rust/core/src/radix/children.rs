//! The children of a node, by their first key, and which of them lead to a checkpoint that can be
//! trimmed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::ids::NodeId;
use crate::work::look;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) id: NodeId,
    /// Some checkpoint at or below the child can be trimmed.
    trimmable: bool,
}

/// Most nodes have one child or none, and pay no allocation for it.
#[derive(Debug, Default)]
pub(crate) enum Children {
    #[default]
    None,
    One(u32, Child),
    Many(Box<Many>),
}

#[derive(Debug, Default)]
pub(crate) struct Many {
    map: HashMap<u32, Child>,
    /// How many of them are trimmable.
    trimmable: usize,
    /// Their keys, the smallest on top; also keys of some that are no longer, none of them on top.
    first: BinaryHeap<Reverse<u32>>,
}

impl Children {
    /// O(1).
    pub(crate) fn get(&self, key: u32) -> Option<NodeId> {
        match self {
            Self::None => None,
            Self::One(first, child) => (*first == key).then_some(child.id),
            Self::Many(many) => many.map.get(&key).map(|child| child.id),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(..) => 1,
            Self::Many(many) => many.map.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The child of a node that has exactly one.
    pub(crate) fn only(&self) -> Option<NodeId> {
        match self {
            Self::One(_, child) => Some(child.id),
            _ => None,
        }
    }

    /// In no particular order: whoever decides by it must not depend on the order.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (u32, Child)> + '_> {
        match self {
            Self::None => Box::new(std::iter::empty()),
            Self::One(key, child) => Box::new(std::iter::once((*key, *child))),
            Self::Many(many) => Box::new(many.map.iter().map(|(key, child)| {
                look();
                (*key, *child)
            })),
        }
    }

    /// Adds a child, or puts another node in the place of the one under `key`, which leads to the
    /// same checkpoints. Amortised O(1).
    pub(crate) fn set(&mut self, key: u32, id: NodeId) {
        match self {
            Self::None => *self = Self::One(key, Child { id, trimmable: false }),
            Self::One(first, child) if *first == key => child.id = id,
            Self::One(first, child) => {
                let mut many = Box::new(Many::default());
                many.map.insert(*first, *child);
                if child.trimmable {
                    many.mark(*first);
                }
                many.map.insert(key, Child { id, trimmable: false });
                *self = Self::Many(many);
            }
            Self::Many(many) => {
                many.map.entry(key).or_insert(Child { id, trimmable: false }).id = id;
            }
        }
    }

    /// Removes a child that leads to no trimmable checkpoint. Amortised O(1).
    pub(crate) fn remove(&mut self, key: u32) {
        match self {
            Self::Many(many) => {
                many.map.remove(&key);
                // Only where one is left: the first survivor of an emptied table is far to seek.
                if many.map.len() > 1 {
                    shrink(&mut many.map);
                } else if let Some((key, child)) = many.map.iter().next() {
                    *self = Self::One(*key, *child);
                }
            }
            Self::One(first, _) if *first == key => *self = Self::None,
            _ => {}
        }
    }

    /// Whether some child leads to a trimmable checkpoint. O(1).
    pub(crate) fn trimmable(&self) -> bool {
        match self {
            Self::None => false,
            Self::One(_, child) => child.trimmable,
            Self::Many(many) => many.trimmable > 0,
        }
    }

    /// The child with the smallest key that leads to one: ranks with equal trees choose alike. O(1).
    pub(crate) fn first_trimmable(&self) -> Option<NodeId> {
        match self {
            Self::None => None,
            Self::One(_, child) => child.trimmable.then_some(child.id),
            Self::Many(many) => many.first.peek().map(|key| many.map[&key.0].id),
        }
    }

    /// Says whether the child under `key` leads to a trimmable checkpoint. Amortised O(log children).
    pub(crate) fn set_trimmable(&mut self, key: u32, trimmable: bool) {
        let child = match self {
            Self::None => None,
            Self::One(first, child) => (*first == key).then_some(child),
            Self::Many(many) => many.map.get_mut(&key),
        };
        let Some(child) = child.filter(|child| child.trimmable != trimmable) else { return };
        child.trimmable = trimmable;
        if let Self::Many(many) = self {
            if trimmable { many.mark(key) } else { many.unmark() }
        }
    }

    /// Bytes on the heap. O(1).
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Many(many) => {
                size_of::<Many>()
                    + many.map.allocation_size()
                    + many.first.capacity() * size_of::<Reverse<u32>>()
            }
            _ => 0,
        }
    }
}

impl Many {
    fn mark(&mut self, key: u32) {
        self.trimmable += 1;
        self.first.push(Reverse(key));
    }

    /// After a child was said to be trimmable no longer.
    fn unmark(&mut self) {
        self.trimmable -= 1;
        let is = |key: u32| self.map.get(&key).is_some_and(|child| child.trimmable);
        while self.first.peek().is_some_and(|key| !is(key.0)) {
            look();
            self.first.pop();
        }
        if self.first.len() > 2 * self.trimmable.max(4) {
            let mut keys: Vec<Reverse<u32>> = std::mem::take(&mut self.first).into_vec();
            keys.retain(|key| {
                look();
                is(key.0)
            });
            // A key that was marked again is in there twice.
            keys.sort_unstable();
            keys.dedup();
            keys.shrink_to_fit();
            self.first = keys.into();
        }
    }
}

/// Gives back what a table holds that once had many more entries. Amortised O(1) a removal.
pub(crate) fn shrink<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > 4 * map.len().max(4) {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Beside a sorted map, over all sizes up and down.
    #[test]
    fn the_first_trimmable_child_is_the_one_with_the_smallest_key() {
        let (mut children, mut naive) = (Children::default(), BTreeMap::new());
        let mut random = 1_u32;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Grows, shrinks, and grows again.
            let (key, growing) = ((random >> 16) % 64, step / 500 % 2 == 0);
            if (random >> 8) % 4 > u32::from(growing) {
                children.set_trimmable(key, false);
                if random.is_multiple_of(3) {
                    children.remove(key);
                    naive.remove(&key);
                } else if let Some(found) = naive.get_mut(&key) {
                    *found = false;
                }
            } else {
                children.set(key, NodeId(key));
                children.set_trimmable(key, true);
                naive.insert(key, true);
            }
            let first = naive.iter().find(|(_, trimmable)| **trimmable).map(|(key, _)| NodeId(*key));
            assert_eq!(children.first_trimmable(), first);
            assert_eq!(children.trimmable(), first.is_some());
            assert_eq!(children.len(), naive.len());
            if let Children::Many(many) = &children {
                assert!(many.first.len() <= 2 * many.trimmable.max(4) + 1);
            }
        }
    }
}
