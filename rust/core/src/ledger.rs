//! The ledger: the only place that adds or subtracts bytes, buffers and tokens.

use std::ops::{AddAssign, SubAssign};

/// The size of a segment, a checkpoint, or a sum of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes of the arrays.
    pub nbytes: u64,
    /// Number of arrays.
    pub buffers: u64,
    /// Tokens of KV; 0 for a checkpoint.
    pub tokens: u64,
    /// 1 for a segment.
    pub segments: u64,
    /// 1 for a checkpoint.
    pub checkpoints: u64,
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.nbytes += other.nbytes;
        self.buffers += other.buffers;
        self.tokens += other.tokens;
        self.segments += other.segments;
        self.checkpoints += other.checkpoints;
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Self) {
        self.nbytes -= other.nbytes;
        self.buffers -= other.buffers;
        self.tokens -= other.tokens;
        self.segments -= other.segments;
        self.checkpoints -= other.checkpoints;
    }
}

/// What one label's stores hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelAmount {
    /// Stored sequences under this label.
    pub sequences: u64,
    /// Those of them that are entries.
    pub entries: u64,
    /// Tokens of segments that these stores added.
    pub ntokens: u64,
    /// Bytes of segments and checkpoints that these stores added.
    pub nbytes: u64,
}

/// Counts of stored sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sequences {
    /// Distinct ends of stores, counting nested ones separately.
    pub(crate) all: u64,
    /// Those that no other stored sequence covers: see `trees/ends.rs`.
    pub(crate) entries: u64,
}

/// Totals over all trees.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    held: Amount,
    /// The part of `held` that is leased.
    leased: Amount,
    /// Room promised to stores between plan and commit.
    reserved: Amount,
    labels: Vec<LabelAmount>,
    /// Over all labels.
    sequences: Sequences,
}

impl Ledger {
    pub(crate) fn held(&self) -> Amount {
        self.held
    }

    pub(crate) fn leased(&self) -> Amount {
        self.leased
    }

    pub(crate) fn reserved(&self) -> Amount {
        self.reserved
    }

    /// Adds to the totals and to `account`, the tree's share of them.
    pub(crate) fn add(&mut self, account: &mut Amount, amount: Amount) {
        self.held += amount;
        *account += amount;
    }

    pub(crate) fn subtract(&mut self, account: &mut Amount, amount: Amount) {
        self.held -= amount;
        *account -= amount;
    }

    pub(crate) fn lease(&mut self, amount: Amount) {
        self.leased += amount;
    }

    pub(crate) fn unlease(&mut self, amount: Amount) {
        self.leased -= amount;
    }

    pub(crate) fn reserve(&mut self, amount: Amount) {
        self.reserved += amount;
    }

    pub(crate) fn unreserve(&mut self, amount: Amount) {
        self.reserved -= amount;
    }

    pub(crate) fn label(&mut self, label: u16) -> &mut LabelAmount {
        let at = label as usize;
        if self.labels.len() <= at {
            self.labels.resize(at + 1, LabelAmount::default());
        }
        &mut self.labels[at]
    }

    /// Counts a new end of a store; `account` is the tree's share, here and below.
    pub(crate) fn add_end(&mut self, account: &mut Sequences, label: u16) {
        self.sequences.all += 1;
        account.all += 1;
        self.label(label).sequences += 1;
    }

    pub(crate) fn remove_end(&mut self, account: &mut Sequences, label: u16) {
        self.sequences.all -= 1;
        account.all -= 1;
        self.label(label).sequences -= 1;
    }

    /// Counts an end that has become an entry.
    pub(crate) fn add_entry(&mut self, account: &mut Sequences, label: u16) {
        self.sequences.entries += 1;
        account.entries += 1;
        self.label(label).entries += 1;
    }

    pub(crate) fn remove_entry(&mut self, account: &mut Sequences, label: u16) {
        self.sequences.entries -= 1;
        account.entries -= 1;
        self.label(label).entries -= 1;
    }

    pub(crate) fn sequences(&self) -> Sequences {
        self.sequences
    }

    pub(crate) fn labels(&self) -> &[LabelAmount] {
        &self.labels
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.labels.capacity() * size_of::<LabelAmount>()
    }
}
