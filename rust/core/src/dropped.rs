//! What a call removed from the index.

use crate::ids::{CheckpointId, SegmentId};
use crate::ledger::Amount;

/// What a call removed from the index: the caller drops the arrays under these ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Segments, in order of removal.
    pub segments: Vec<SegmentId>,
    /// Checkpoints, in order of removal.
    pub checkpoints: Vec<CheckpointId>,
    /// What the ledger no longer holds. A segment replaced by a split counts as zero, since its halves
    /// hold the same tokens.
    pub amount: Amount,
    /// Number of eviction units.
    pub units: u64,
}

impl Dropped {
    /// Whether nothing was removed.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.checkpoints.is_empty()
    }

    /// Appends what another step removed.
    pub fn extend(&mut self, other: Self) {
        self.segments.extend(other.segments);
        self.checkpoints.extend(other.checkpoints);
        self.amount += other.amount;
        self.units += other.units;
    }
}
