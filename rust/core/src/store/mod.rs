//! Storing: draft (match, protect) → settle (how much) → promise (make room, reserve) → the caller
//! copies → commit or abort.
//!
//! A draft leases the tokens before the divergence and the checkpoint continued from, so that
//! making room cannot take them; a plan reserves its bytes, so that plans beside it cannot either.
//! Nothing of the tree changes before the commit. [`PrefixIndex::plan`](crate::PrefixIndex::plan)
//! takes the first three steps at once; ranks that have to agree take them one by one.

mod commit;
mod draft;
mod fit;
mod insert;

use hashbrown::HashMap;

use crate::evict::Dropped;
use crate::ids::{CheckpointId, LayoutId, PlanId, SegmentId};
use crate::keys::Query;
use crate::ledger::Amount;
use crate::radix::children::shrink;
use crate::radix::join::Joined;
use crate::work::look;

pub(crate) use draft::Draft;
pub use insert::Inserted;

/// The figures of a checkpoint that is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// Bytes of its arrays.
    pub nbytes: u64,
    /// Number of its arrays.
    pub buffers: u32,
    /// Only span and window layers, and no window has rotated: it serves shorter lengths too.
    pub trimmable: bool,
}

/// What is to be stored: `query` is the key, as long as the KV.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// What must never mix with other namespaces.
    pub namespace: &'a str,
    /// Which of the namespace's trees.
    pub layout: LayoutId,
    /// The key.
    pub query: Query<'a>,
    /// Bytes of all span layers for one token.
    pub bytes_per_token: u64,
    /// Arrays of one segment.
    pub segment_buffers: u32,
    /// The state after the last token; `None` where all layers are span layers.
    pub checkpoint: Option<CheckpointSpec>,
    /// Counted by label in the statistics.
    pub label: u16,
    /// Where the prompt ends and the answer begins, if the caller knows: the checkpoint there is kept
    /// as long as the newest.
    pub prompt: Option<usize>,
}

/// A segment to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSegment {
    /// Its id.
    pub id: SegmentId,
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
}

/// A segment to be replaced by copies of its two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The segment that is cut. It stays usable until the commit reports it as dropped.
    pub old: SegmentId,
    /// Id of the first half.
    pub upper: SegmentId,
    /// Id of the second half.
    pub lower: SegmentId,
    /// Tokens of the first half.
    pub at: usize,
}

/// A store that has room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For commit or abort.
    pub id: PlanId,
    /// Tokens that will be held for the key: less than asked where not all of it fits.
    pub length: usize,
    /// Tokens that are held already.
    pub matched: usize,
    /// What to copy, in order.
    pub segments: Vec<NewSegment>,
    /// What to cut.
    pub split: Option<Split>,
    /// Id of the checkpoint to copy.
    pub checkpoint: Option<CheckpointId>,
}

/// The outcome of planning. What was evicted to make room is reported beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Planned {
    /// Copy, then commit.
    Ready(Plan),
    /// All of it is held; it is the most recently used now. What was joined on its path.
    Already(Vec<Joined>),
    /// It does not fit beside what is protected; nothing was evicted.
    TooLarge,
    /// The key is empty, or ends inside a media span where nothing before it can be kept.
    InsideMedia,
}

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The tree changed in between and nothing was stored: plan again.
    pub stale: bool,
    /// What a split and the checkpoints' retention replaced. No eviction.
    pub dropped: Dropped,
    /// Segments, old or of this store, that are one now.
    pub joined: Vec<Joined>,
}

/// A store whose place is found and protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    /// For settle, promise and abort.
    pub id: PlanId,
    /// Tokens that are held already.
    pub matched: usize,
    /// Tokens that can be held for the key beside what is protected; 0 where it does not fit.
    pub length: usize,
    /// Tokens that can be held if the node that the key diverges in is given up and its matched
    /// tokens are copied anew; 0 where there is no such node, or somebody else holds it.
    pub length_anew: usize,
}

/// The outcome of drafting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Settle, promise, copy, commit.
    Open(Drafted),
    /// All of it is held; it is the most recently used now. What was joined on its path.
    Already(Vec<Joined>),
    /// The key is empty, or ends inside a media span where nothing before it can be kept.
    InsideMedia,
}

/// A plan between its making and its commit.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) draft: Draft,
    pub(crate) reserved: Amount,
    plan: Plan,
}

/// What takes bytes on the heap, the entry itself aside.
pub(crate) trait HeapBytes {
    fn heap_bytes(&self) -> usize;
}

impl HeapBytes for Pending {
    fn heap_bytes(&self) -> usize {
        self.draft.heap_bytes() + self.plan.segments.capacity() * size_of::<NewSegment>()
    }
}

/// Drafts or plans by id, their bytes counted.
#[derive(Debug)]
pub(crate) struct UnderWay<T> {
    by_id: HashMap<PlanId, T>,
    heap_bytes: usize,
}

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self { by_id: HashMap::new(), heap_bytes: 0 }
    }
}

impl<T: HeapBytes> UnderWay<T> {
    fn get(&self, id: PlanId) -> Option<&T> {
        self.by_id.get(&id)
    }

    fn insert(&mut self, id: PlanId, entry: T) {
        self.heap_bytes += entry.heap_bytes();
        self.by_id.insert(id, entry);
    }

    fn remove(&mut self, id: PlanId) -> Option<T> {
        let entry = self.by_id.remove(&id)?;
        self.heap_bytes -= entry.heap_bytes();
        shrink(&mut self.by_id);
        Some(entry)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.by_id.values().inspect(|_| look())
    }

    /// Bytes on the heap. O(1).
    pub(crate) fn bytes(&self) -> usize {
        self.by_id.allocation_size() + self.heap_bytes
    }
}
