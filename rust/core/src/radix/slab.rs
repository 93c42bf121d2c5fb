//! Values by number, in chunks that are freed once they are empty.
//!
//! A single vector could not shrink while its last entry is in use, and moving that entry would mean
//! updating everything that points to it.

use crate::work::visit;

/// Entries per chunk. Small, so that chunks empty early.
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
struct ChunkState {
    free: u32,
    live: u32,
}

/// Values by number. A number is reused once its value is removed. An empty chunk costs less than one
/// byte per entry.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    states: Vec<ChunkState>,
    /// Chunks that are not full.
    open: Vec<u32>,
    live: usize,
    /// Slots allocated, over all chunks.
    slots: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), states: Vec::new(), open: Vec::new(), live: 0, slots: 0 }
    }
}

impl<T> Slab<T> {
    /// Adds a value. Amortised O(1).
    pub(crate) fn add(&mut self, value: T) -> u32 {
        if self.open.is_empty() {
            self.open.push(self.chunks.len() as u32);
            self.chunks.push(Vec::new());
            self.states.push(ChunkState { free: NONE, live: 0 });
        }
        let number = self.open[self.open.len() - 1];
        let (chunk, states) = (&mut self.chunks[number as usize], &mut self.states[number as usize]);
        let at = if states.free == NONE {
            let before = chunk.capacity();
            chunk.push(Slot::Live(value));
            self.slots += chunk.capacity() - before;
            chunk.len() as u32 - 1
        } else {
            let at = states.free;
            if let Slot::Free(next) = std::mem::replace(&mut chunk[at as usize], Slot::Live(value)) {
                states.free = next;
            }
            at
        };
        states.live += 1;
        if states.live as usize == CHUNK {
            self.open.pop();
        }
        self.live += 1;
        number * CHUNK as u32 + at
    }

    /// Removes a value; an empty slab frees all its memory. Amortised O(1).
    pub(crate) fn remove(&mut self, id: u32) -> T {
        let (number, at) = place(id);
        let (chunk, states) = (&mut self.chunks[number], &mut self.states[number]);
        let slot = std::mem::replace(&mut chunk[at], Slot::Free(states.free));
        let Slot::Live(value) = slot else { unreachable!("entry {id} is already removed") };
        states.free = at as u32;
        if states.live as usize == CHUNK {
            self.open.push(number as u32);
        }
        states.live -= 1;
        if states.live == 0 {
            self.slots -= chunk.capacity();
            *chunk = Vec::new();
            states.free = NONE;
        }
        self.live -= 1;
        if self.live == 0 {
            *self = Self::default();
        }
        value
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        visit();
        let (number, at) = place(id);
        match self.chunks.get(number)?.get(at) {
            Some(Slot::Live(value)) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        visit();
        let (number, at) = place(id);
        match self.chunks.get_mut(number)?.get_mut(at) {
            Some(Slot::Live(value)) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// All values, in order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            chunk.iter().enumerate().filter_map(move |(at, slot)| {
                visit();
                match slot {
                    Slot::Live(value) => Some(((number * CHUNK + at) as u32, value)),
                    Slot::Free(_) => None,
                }
            })
        })
    }

    /// Bytes on the heap, not counting what the values themselves hold. O(1).
    pub(crate) fn bytes(&self) -> usize {
        self.slots * size_of::<Slot<T>>()
            + self.chunks.capacity() * size_of::<Vec<Slot<T>>>()
            + self.states.capacity() * size_of::<ChunkState>()
            + self.open.capacity() * size_of::<u32>()
    }
}

/// The chunk's number, and the slot in it.
fn place(id: u32) -> (usize, usize) {
    (id as usize / CHUNK, id as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_slab_behaves_like_a_map() {
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

    /// Whether the last entry left is the oldest, the newest or one in the middle.
    #[test]
    fn the_last_entry_left_keeps_little_memory() {
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
