//! Room under the limits: what is free, what could be, and how it is taken.

use crate::dropped::Dropped;
use crate::evict::need::{Need, Room};
use crate::index::PrefixIndex;
use crate::ledger::Amount;

impl PrefixIndex {
    /// Makes room for `nbytes` and `buffers` under the limits. `None`, and nothing evicted, where
    /// leases and reservations leave too little.
    pub fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Dropped> {
        self.room().holds(nbytes, buffers).then(|| self.evict(self.over(nbytes, buffers)))
    }

    /// Takes room for arrays that are neither held nor a store's, such as a copy that is about to
    /// replace its original. Only what is free is taken: nothing is evicted. O(1).
    pub fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> bool {
        if self.over(nbytes, buffers) != Need::default() {
            return false;
        }
        let amount = Amount { nbytes, buffers, ..Amount::default() };
        self.transient += amount;
        self.trees.ledger.reserve(amount);
        true
    }

    /// Gives room of [`Self::reserve_bytes`] back, at most what was taken. O(1).
    pub fn unreserve_bytes(&mut self, nbytes: u64, buffers: u64) {
        let (nbytes, buffers) = (nbytes.min(self.transient.nbytes), buffers.min(self.transient.buffers));
        let amount = Amount { nbytes, buffers, ..Amount::default() };
        self.transient -= amount;
        self.trees.ledger.unreserve(amount);
    }

    /// Whether evicting all that no lease holds would make that room.
    pub fn holds(&self, nbytes: u64, buffers: u64) -> bool {
        self.room().holds(nbytes, buffers)
    }

    /// By how much `nbytes` and `buffers` more would be over the limits.
    pub fn over(&self, nbytes: u64, buffers: u64) -> Need {
        let free = self.free();
        Need {
            nbytes: nbytes.saturating_sub(free.nbytes),
            buffers: buffers.saturating_sub(free.buffers),
            ..Need::default()
        }
    }

    /// Bytes that can be added without an eviction. O(1).
    pub fn free_bytes(&self) -> u64 {
        self.free().nbytes
    }

    /// What can be added without an eviction.
    fn free(&self) -> Room {
        self.left_beyond(self.trees.ledger.held())
    }

    /// What could be added if everything that no lease holds were evicted.
    pub(crate) fn room(&self) -> Room {
        self.left_beyond(self.trees.ledger.leased())
    }

    /// What the limits leave beyond `kept` and all reservations.
    fn left_beyond(&self, kept: Amount) -> Room {
        let reserved = self.trees.ledger.reserved();
        Room {
            nbytes: self.limits.max_bytes.saturating_sub(kept.nbytes + reserved.nbytes),
            buffers: self.limits.max_buffers.saturating_sub(kept.buffers + reserved.buffers),
        }
    }
}
