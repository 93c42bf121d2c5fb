//! How much to evict, and how much room there is.

/// How much to evict. Eviction continues until every field is met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes.
    pub nbytes: u64,
    /// Arrays.
    pub buffers: u64,
    /// Tokens of KV.
    pub tokens: u64,
    /// Eviction units.
    pub units: u64,
    /// Stored sequences, counting nested ones separately.
    pub sequences: u64,
    /// Stored sequences that no other one covers.
    pub entries: u64,
}

/// Free room under both limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) nbytes: u64,
    pub(crate) buffers: u64,
}

impl Room {
    pub(crate) fn holds(&self, nbytes: u64, buffers: u64) -> bool {
        nbytes <= self.nbytes && buffers <= self.buffers
    }
}
