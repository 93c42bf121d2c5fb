//! Values by number, in chunks that are given back once they are empty.
//!
//! One vector would stay as long as at its peak for the sake of its last entry, and an entry that
//! moved would have to be found by all that point at it.

use crate::work::look;

/// Entries of a chunk: few, so that a chunk is soon empty.
const CHUNK: usize = 64;

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
enum Slot<T> {
    Live(T),
    /// The next free slot of the chunk.
    Free(u32),
}

#[derive(Clone, Copy, Debug)]
struct Figures {
    free: u32,
    live: u32,
}

/// Values by number; a number is used again after its value was removed. What an empty chunk still
/// takes is less than a byte an entry.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    figures: Vec<Figures>,
    /// The chunks that are not full.
    open: Vec<u32>,
    live: usize,
    /// Slots allocated, over all chunks.
    slots: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), figures: Vec::new(), open: Vec::new(), live: 0, slots: 0 }
    }
}

impl<T> Slab<T> {
    /// Amortised O(1).
    pub(crate) fn add(&mut self, value: T) -> u32 {
        if self.open.is_empty() {
            self.open.push(self.chunks.len() as u32);
            self.chunks.push(Vec::new());
            self.figures.push(Figures { free: NONE, live: 0 });
        }
        let number = self.open[self.open.len() - 1];
        let (chunk, figures) = (&mut self.chunks[number as usize], &mut self.figures[number as usize]);
        let at = if figures.free == NONE {
            let before = chunk.capacity();
            chunk.push(Slot::Live(value));
            self.slots += chunk.capacity() - before;
            chunk.len() as u32 - 1
        } else {
            let at = figures.free;
            if let Slot::Free(next) = std::mem::replace(&mut chunk[at as usize], Slot::Live(value)) {
                figures.free = next;
            }
            at
        };
        figures.live += 1;
        if figures.live as usize == CHUNK {
            self.open.pop();
        }
        self.live += 1;
        number * CHUNK as u32 + at
    }

    /// Amortised O(1). A slab without values gives everything back.
    pub(crate) fn remove(&mut self, id: u32) -> T {
        let (number, at) = place(id);
        let (chunk, figures) = (&mut self.chunks[number], &mut self.figures[number]);
        let slot = std::mem::replace(&mut chunk[at], Slot::Free(figures.free));
        let Slot::Live(value) = slot else { unreachable!("entry {id} was removed before") };
        figures.free = at as u32;
        if figures.live as usize == CHUNK {
            self.open.push(number as u32);
        }
        figures.live -= 1;
        if figures.live == 0 {
            self.slots -= chunk.capacity();
            *chunk = Vec::new();
            figures.free = NONE;
        }
        self.live -= 1;
        if self.live == 0 {
            *self = Self::default();
        }
        value
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        look();
        let (number, at) = place(id);
        match self.chunks.get(number)?.get(at) {
            Some(Slot::Live(value)) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        look();
        let (number, at) = place(id);
        match self.chunks.get_mut(number)?.get_mut(at) {
            Some(Slot::Live(value)) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// By number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            chunk.iter().enumerate().filter_map(move |(at, slot)| {
                look();
                match slot {
                    Slot::Live(value) => Some(((number * CHUNK + at) as u32, value)),
                    Slot::Free(_) => None,
                }
            })
        })
    }

    /// Bytes on the heap, those of the values' own aside. O(1).
    pub(crate) fn bytes(&self) -> usize {
        self.slots * size_of::<Slot<T>>()
            + self.chunks.capacity() * size_of::<Vec<Slot<T>>>()
            + self.figures.capacity() * size_of::<Figures>()
            + self.open.capacity() * size_of::<u32>()
    }
}

/// The chunk's number, and the place in it.
fn place(id: u32) -> (usize, usize) {
    (id as usize / CHUNK, id as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_slab_keeps_what_a_map_keeps() {
        let (mut slab, mut naive) = (Slab::default(), BTreeMap::new());
        let mut random = 1_u32;
        for step in 0..20_000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let growing = step / 2000 % 2 == 0;
            if (random >> 8) % 4 > u32::from(!growing) * 2 || naive.is_empty() {
                assert!(naive.insert(slab.add(step), step).is_none(), "a number in use");
            } else {
                let at = (random >> 16) as usize % naive.len();
                let (id, value) = naive.iter().nth(at).map(|(id, value)| (*id, *value)).unwrap();
                naive.remove(&id);
                assert_eq!(slab.remove(id), value);
                assert_eq!(slab.get(id), None);
            }
            assert_eq!(slab.len(), naive.len());
        }
        assert!(slab.iter().map(|(id, value)| (id, *value)).eq(naive));
    }

    /// Whichever entry is left, the oldest, the newest or one in the middle.
    #[test]
    fn one_entry_of_many_keeps_little() {
        const MANY: u32 = 30_000;
        for left in [0, MANY / 2, MANY - 1] {
            let mut slab: Slab<[u64; 16]> = Slab::default();
            let ids: Vec<u32> = (0..MANY).map(|_| slab.add([0; 16])).collect();
            let full = slab.bytes();
            ids.iter().filter(|id| **id != ids[left as usize]).for_each(|id| {
                slab.remove(*id);
            });
            assert!(slab.bytes() * 50 < full, "{} bytes of {full} for entry {left}", slab.bytes());
            slab.remove(ids[left as usize]);
            assert_eq!(slab.bytes(), 0);
        }
    }
}
