//! What a call took out of the index.

use crate::ids::{CheckpointId, SegmentId};
use crate::ledger::Amount;

/// What left the index: the caller drops the arrays under these ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Segments, in the order in which they were removed.
    pub segments: Vec<SegmentId>,
    /// Checkpoints, likewise.
    pub checkpoints: Vec<CheckpointId>,
    /// What the ledger lost with them. A segment that a split replaced counts nothing: its halves
    /// hold the same tokens.
    pub amount: Amount,
    /// Units of eviction.
    pub units: u64,
}

impl Dropped {
    /// Whether nothing left.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.checkpoints.is_empty()
    }

    /// Appends what another step dropped.
    pub fn extend(&mut self, other: Self) {
        self.segments.extend(other.segments);
        self.checkpoints.extend(other.checkpoints);
        self.amount += other.amount;
        self.units += other.units;
    }
}
