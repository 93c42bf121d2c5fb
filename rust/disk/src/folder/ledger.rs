//! The ledger: bytes stored and claimed in a folder, in one file shared by all processes.
//!
//! Writes alternate between two copies, so a process that dies halfway through one leaves the other intact.
//! The count can be too high but never too low: room is claimed before a file is created, and released after
//! it is gone. A scan under the lock corrects it.

use std::io::{self, IoSlice, IoSliceMut};

use crate::files::{Handle, read_exact, write_all};

const MAGIC: &[u8; 8] = b"kvledger";
const COPY: usize = 2048;
const FIXED: usize = 48;
const SLOT: usize = 16;
/// Size of the file, which counts towards the folder's limit.
pub(crate) const LEDGER_BYTES: u64 = 2 * COPY as u64;
/// Maximum number of processes with claims at the same time.
const MAX_SLOTS: usize = (COPY - FIXED - 4) / SLOT;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    sequence: u64,
    /// Upper bound on the bytes of all files except those being written.
    pub(crate) stored: u64,
    /// Records ever published. A process that knows of fewer has not seen all files.
    pub(crate) published: u64,
    /// Owner id and claimed bytes of each process that is writing files.
    pub(crate) slots: Vec<(u64, u64)>,
}

impl Ledger {
    /// Bytes claimed by all processes.
    pub(crate) fn claimed(&self) -> u64 {
        self.slots.iter().map(|slot| slot.1).sum()
    }

    /// Sets what `owner` has claimed. Returns `false` if too many processes have claims.
    pub(crate) fn set(&mut self, owner: u64, claimed: u64) -> bool {
        self.slots.retain(|slot| slot.0 != owner);
        if claimed > 0 {
            self.slots.push((owner, claimed));
        }
        self.slots.len() <= MAX_SLOTS
    }

    /// Reads the newer valid copy; `None` if neither is valid.
    pub(crate) fn read(handle: &dyn Handle) -> io::Result<Option<Self>> {
        let length = handle.stat()?.bytes.min(LEDGER_BYTES);
        let mut bytes = vec![0; length as usize];
        read_exact(handle, &mut [IoSliceMut::new(&mut bytes)], 0)?;
        Ok(bytes.chunks_exact(COPY).filter_map(Self::decode).max_by_key(|ledger| ledger.sequence))
    }

    /// Overwrites the older copy.
    pub(crate) fn write(&mut self, handle: &dyn Handle) -> io::Result<()> {
        self.sequence += 1;
        let at = self.sequence % 2 * COPY as u64;
        write_all(handle, &mut [IoSlice::new(&self.encode())], at)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(COPY);
        bytes.extend(MAGIC);
        for number in [1, self.sequence, self.stored, self.published, self.slots.len() as u64] {
            bytes.extend(number.to_le_bytes());
        }
        for (owner, claimed) in &self.slots {
            bytes.extend(owner.to_le_bytes());
            bytes.extend(claimed.to_le_bytes());
        }
        bytes.resize(COPY - 4, 0);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_at(COPY - 4);
        if crc != crc32c::crc32c(body).to_le_bytes() || &body[..8] != MAGIC {
            return None;
        }
        let mut numbers =
            body[8..].chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap_or_default()));
        let mut next = || numbers.next();
        if next()? != 1 {
            return None;
        }
        let (sequence, stored, published, slots) = (next()?, next()?, next()?, next()?);
        let slots =
            (0..slots.min(MAX_SLOTS as u64)).map(|_| Some((next()?, next()?))).collect::<Option<_>>()?;
        Some(Self { sequence, stored, published, slots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_what_it_encodes_and_rejects_every_bit_flip() {
        let ledger = Ledger { sequence: 7, stored: 1 << 40, published: 9, slots: vec![(1, 2), (3, 4)] };
        let bytes = ledger.encode();
        assert_eq!(bytes.len(), COPY);
        assert_eq!(Ledger::decode(&bytes), Some(ledger));
        for at in 0..COPY {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(Ledger::decode(&bytes), None);
        }
    }

    #[test]
    fn holds_up_to_the_maximum_number_of_slots() {
        let mut ledger = Ledger::default();
        for owner in 0..MAX_SLOTS as u64 {
            assert!(ledger.set(owner, 1));
        }
        assert_eq!(Ledger::decode(&ledger.encode()), Some(ledger.clone()));
        assert!(!ledger.set(u64::MAX, 1));
        assert!(ledger.set(u64::MAX, 0));
        assert_eq!(ledger.claimed(), MAX_SLOTS as u64);
    }
}
