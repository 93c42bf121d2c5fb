//! The children of a node, by their first key, and what each of them leads to.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use crate::ids::NodeId;
use crate::tables::shrink;
use crate::work::look;

/// What is at or below a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leads {
    /// A checkpoint that can be trimmed.
    pub(crate) trimmable: bool,
    /// The end of a stored sequence.
    pub(crate) ended: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) id: NodeId,
    leads: Leads,
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
    /// How many of them lead to a trimmable checkpoint.
    trimmable: usize,
    /// How many of them lead to the end of a stored sequence.
    ended: usize,
    /// The keys of those that lead to a trimmable checkpoint, the smallest
    /// on top; also keys of some that no longer do, none of them on top.
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

    /// Adds a child that leads to nothing yet, or puts another node in the place of the one under
    /// `key`, which leads to the same. Amortised O(1).
    pub(crate) fn set(&mut self, key: u32, id: NodeId) {
        match self {
            Self::None => *self = Self::One(key, Child { id, leads: Leads::default() }),
            Self::One(first, child) if *first == key => child.id = id,
            Self::One(first, child) => {
                let mut many = Box::new(Many::default());
                many.map.insert(*first, *child);
                many.recount(*first, Leads::default(), child.leads);
                many.map.insert(key, Child { id, leads: Leads::default() });
                *self = Self::Many(many);
            }
            Self::Many(many) => {
                many.map.entry(key).or_insert(Child { id, leads: Leads::default() }).id = id;
            }
        }
    }

    /// Removes a child that leads to nothing. Amortised O(1).
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

    /// What the children lead to, taken together. O(1).
    pub(crate) fn leads(&self) -> Leads {
        match self {
            Self::None => Leads::default(),
            Self::One(_, child) => child.leads,
            Self::Many(many) => Leads { trimmable: many.trimmable > 0, ended: many.ended > 0 },
        }
    }

    /// How many children lead to the end of a stored sequence. O(1).
    pub(crate) fn ended(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_, child) => usize::from(child.leads.ended),
            Self::Many(many) => many.ended,
        }
    }

    /// The child with the smallest key that leads to a trimmable checkpoint: ranks with equal trees
    /// choose alike. O(1).
    pub(crate) fn first_trimmable(&self) -> Option<NodeId> {
        match self {
            Self::None => None,
            Self::One(_, child) => child.leads.trimmable.then_some(child.id),
            Self::Many(many) => many.first.peek().map(|key| many.map[&key.0].id),
        }
    }

    /// Says what the child under `key` leads to. Amortised O(log children).
    pub(crate) fn set_leads(&mut self, key: u32, leads: Leads) {
        let child = match self {
            Self::None => None,
            Self::One(first, child) => (*first == key).then_some(child),
            Self::Many(many) => many.map.get_mut(&key),
        };
        let Some(child) = child else { return };
        let before = std::mem::replace(&mut child.leads, leads);
        if let Self::Many(many) = self {
            many.recount(key, before, leads);
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
    /// After what the child under `key` leads to has changed.
    fn recount(&mut self, key: u32, before: Leads, after: Leads) {
        self.ended = self.ended + usize::from(after.ended) - usize::from(before.ended);
        match (before.trimmable, after.trimmable) {
            (false, true) => {
                self.trimmable += 1;
                self.first.push(Reverse(key));
            }
            (true, false) => {
                self.trimmable -= 1;
                self.drop_stale();
            }
            _ => {}
        }
    }

    /// Keeps a trimmable child on top of the heap, and the heap small.
    fn drop_stale(&mut self) {
        let is = |key: u32| self.map.get(&key).is_some_and(|child| child.leads.trimmable);
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
            // A key that was pushed again is in there twice.
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

    /// Compared with a sorted map, over all sizes up and down.
    #[test]
    fn children_know_what_they_lead_to() {
        let (mut children, mut naive) = (Children::default(), BTreeMap::new());
        let mut random = 1_u32;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Grows, shrinks, and grows again.
            let (key, growing) = ((random >> 16) % 64, step / 500 % 2 == 0);
            if (random >> 8) % 4 > u32::from(growing) {
                children.set_leads(key, Leads::default());
                if random.is_multiple_of(3) {
                    children.remove(key);
                    naive.remove(&key);
                } else if let Some(found) = naive.get_mut(&key) {
                    *found = Leads::default();
                }
            } else {
                let leads = Leads { trimmable: random & 1 << 20 == 0, ended: random & 1 << 21 == 0 };
                children.set(key, NodeId(key));
                children.set_leads(key, leads);
                naive.insert(key, leads);
            }
            let first = naive.iter().find(|(_, leads)| leads.trimmable).map(|(key, _)| NodeId(*key));
            let ended = naive.values().filter(|leads| leads.ended).count();
            assert_eq!(children.first_trimmable(), first);
            assert_eq!(children.leads(), Leads { trimmable: first.is_some(), ended: ended > 0 });
            assert_eq!(children.ended(), ended);
            assert_eq!(children.len(), naive.len());
            if let Children::Many(many) = &children {
                assert!(many.first.len() <= 2 * many.trimmable.max(4) + 1);
            }
        }
    }
}
