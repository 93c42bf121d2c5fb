//! The children of a node by their first key, with a summary of each child's subtree.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::ids::NodeId;
use crate::tables::shrink;
use crate::work::visit;

/// What a node's subtree contains, the node included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// It contains a trimmable checkpoint.
    pub(crate) trimmable: bool,
    /// It contains the end of a stored sequence.
    pub(crate) ended: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) id: NodeId,
    summary: Summary,
}

/// Most nodes have at most one child, which needs no allocation.
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
    /// Children with a trimmable checkpoint in their subtree.
    trimmable: usize,
    /// Children with the end of a stored sequence in their subtree.
    ended: usize,
    /// Keys of those with a trimmable checkpoint, the smallest on top. May also hold stale keys, but never
    /// on top.
    first: BinaryHeap<Reverse<u32>>,
}

impl Children {
    /// The child under `key`. O(1).
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

    /// In no particular order, so no decision may depend on the order.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (u32, Child)> + '_> {
        match self {
            Self::None => Box::new(std::iter::empty()),
            Self::One(key, child) => Box::new(std::iter::once((*key, *child))),
            Self::Many(many) => Box::new(many.map.iter().map(|(key, child)| {
                visit();
                (*key, *child)
            })),
        }
    }

    /// Adds a child with an empty summary, or replaces the node under `key` and keeps its summary.
    /// Amortised O(1).
    pub(crate) fn set(&mut self, key: u32, id: NodeId) {
        match self {
            Self::None => *self = Self::One(key, Child { id, summary: Summary::default() }),
            Self::One(first, child) if *first == key => child.id = id,
            Self::One(first, child) => {
                let mut many = Box::new(Many::default());
                many.map.insert(*first, *child);
                many.recount(*first, Summary::default(), child.summary);
                many.map.insert(key, Child { id, summary: Summary::default() });
                *self = Self::Many(many);
            }
            Self::Many(many) => {
                many.map.entry(key).or_insert(Child { id, summary: Summary::default() }).id = id;
            }
        }
    }

    /// Removes a child, whose summary must be empty. Amortised O(1).
    pub(crate) fn remove(&mut self, key: u32) {
        match self {
            Self::Many(many) => {
                many.map.remove(&key);
                // Iterate only when one child is left: finding an entry in a sparse table is slow.
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

    /// The combined summary of all children. O(1).
    pub(crate) fn summary(&self) -> Summary {
        match self {
            Self::None => Summary::default(),
            Self::One(_, child) => child.summary,
            Self::Many(many) => Summary { trimmable: many.trimmable > 0, ended: many.ended > 0 },
        }
    }

    /// How many children have the end of a stored sequence in their subtree. O(1).
    pub(crate) fn ended(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_, child) => usize::from(child.summary.ended),
            Self::Many(many) => many.ended,
        }
    }

    /// The child with the smallest key that has a trimmable checkpoint in its subtree, so that ranks with
    /// equal trees choose the same one. O(1).
    pub(crate) fn first_trimmable(&self) -> Option<NodeId> {
        match self {
            Self::None => None,
            Self::One(_, child) => child.summary.trimmable.then_some(child.id),
            Self::Many(many) => many.first.peek().map(|key| many.map[&key.0].id),
        }
    }

    /// Sets the summary of the child under `key`. Amortised O(log children).
    pub(crate) fn set_summary(&mut self, key: u32, summary: Summary) {
        let child = match self {
            Self::None => None,
            Self::One(first, child) => (*first == key).then_some(child),
            Self::Many(many) => many.map.get_mut(&key),
        };
        let Some(child) = child else { return };
        let before = std::mem::replace(&mut child.summary, summary);
        if let Self::Many(many) = self {
            many.recount(key, before, summary);
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
    /// Updates the counts after the summary of the child under `key` has changed.
    fn recount(&mut self, key: u32, before: Summary, after: Summary) {
        self.ended = self.ended + usize::from(after.ended) - usize::from(before.ended);
        match (before.trimmable, after.trimmable) {
            (false, true) => {
                self.trimmable += 1;
                self.first.push(Reverse(key));
            }
            (true, false) => {
                self.trimmable -= 1;
                self.discard_stale();
            }
            _ => {}
        }
    }

    /// Removes stale keys from the top of the heap, and all of them once the heap is too large.
    fn discard_stale(&mut self) {
        let is_trimmable = |key: u32| self.map.get(&key).is_some_and(|child| child.summary.trimmable);
        while self.first.peek().is_some_and(|key| !is_trimmable(key.0)) {
            visit();
            self.first.pop();
        }
        if self.first.len() > 2 * self.trimmable.max(4) {
            let mut keys: Vec<Reverse<u32>> = std::mem::take(&mut self.first).into_vec();
            keys.retain(|key| {
                visit();
                is_trimmable(key.0)
            });
            // A child that became trimmable again was pushed twice.
            keys.sort_unstable();
            keys.dedup();
            keys.shrink_to_fit();
            self.first = keys.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Compares with a sorted map, at all sizes, while growing and shrinking.
    #[test]
    fn summaries_match_a_sorted_map() {
        let (mut children, mut naive) = (Children::default(), BTreeMap::new());
        let mut random = 1_u32;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Grows, shrinks, and grows again.
            let (key, growing) = ((random >> 16) % 64, step / 500 % 2 == 0);
            if (random >> 8) % 4 > u32::from(growing) {
                children.set_summary(key, Summary::default());
                if random.is_multiple_of(3) {
                    children.remove(key);
                    naive.remove(&key);
                } else if let Some(summary) = naive.get_mut(&key) {
                    *summary = Summary::default();
                }
            } else {
                let summary = Summary { trimmable: random & 1 << 20 == 0, ended: random & 1 << 21 == 0 };
                children.set(key, NodeId(key));
                children.set_summary(key, summary);
                naive.insert(key, summary);
            }
            let first = naive.iter().find(|(_, summary)| summary.trimmable).map(|(key, _)| NodeId(*key));
            let ended = naive.values().filter(|summary| summary.ended).count();
            assert_eq!(children.first_trimmable(), first);
            assert_eq!(children.summary(), Summary { trimmable: first.is_some(), ended: ended > 0 });
            assert_eq!(children.ended(), ended);
            assert_eq!(children.len(), naive.len());
            if let Children::Many(many) = &children {
                assert!(many.first.len() <= 2 * many.trimmable.max(4) + 1);
            }
        }
    }
}
