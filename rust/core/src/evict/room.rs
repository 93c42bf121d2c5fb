//! Room under the limits: what is free, what eviction could free, and reservations.

use crate::dropped::Dropped;
use crate::evict::need::{Need, Room};
use crate::index::PrefixIndex;
use crate::ledger::Amount;

impl PrefixIndex {
    /// Evicts until `nbytes` and `buffers` fit under the limits. Returns `None` and evicts nothing if
    /// leases and reservations leave too little.
    pub fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Dropped> {
        self.room().holds(nbytes, buffers).then(|| self.evict(self.over(nbytes, buffers)))
    }

    /// Reserves room for arrays that belong neither to the index nor to a store, such as a copy that is
    /// about to replace its original. Returns false if that much is not free; never evicts. O(1).
    pub fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> bool {
        if self.over(nbytes, buffers) != Need::default() {
            return false;
        }
        let amount = Amount { nbytes, buffers, ..Amount::default() };
        self.transient += amount;
        self.trees.ledger.reserve(amount);
        true
    }

    /// Returns room taken with [`Self::reserve_bytes`], at most all of it. O(1).
    pub fn unreserve_bytes(&mut self, nbytes: u64, buffers: u64) {
        let (nbytes, buffers) = (nbytes.min(self.transient.nbytes), buffers.min(self.transient.buffers));
        let amount = Amount { nbytes, buffers, ..Amount::default() };
        self.transient -= amount;
        self.trees.ledger.unreserve(amount);
    }

    /// Whether evicting everything that is not leased would make that much room.
    pub fn holds(&self, nbytes: u64, buffers: u64) -> bool {
        self.room().holds(nbytes, buffers)
    }

    /// How far adding `nbytes` and `buffers` would exceed the limits.
    pub fn over(&self, nbytes: u64, buffers: u64) -> Need {
        let free = self.free();
        Need {
            nbytes: nbytes.saturating_sub(free.nbytes),
            buffers: buffers.saturating_sub(free.buffers),
            ..Need::default()
        }
    }

    /// Bytes that can be added without eviction. O(1).
    pub fn free_bytes(&self) -> u64 {
        self.free().nbytes
    }

    /// What can be added without eviction.
    fn free(&self) -> Room {
        self.remaining(self.trees.ledger.held())
    }

    /// What could be added if everything not leased were evicted.
    pub(crate) fn room(&self) -> Room {
        self.remaining(self.trees.ledger.leased())
    }

    /// What the limits leave on top of `kept` and all reservations.
    fn remaining(&self, kept: Amount) -> Room {
        let reserved = self.trees.ledger.reserved();
        Room {
            nbytes: self.limits.max_bytes.saturating_sub(kept.nbytes + reserved.nbytes),
            buffers: self.limits.max_buffers.saturating_sub(kept.buffers + reserved.buffers),
        }
    }
}
