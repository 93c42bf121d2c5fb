//! What a store asks for, and what it is answered.

use crate::dropped::Dropped;
use crate::ids::{CheckpointId, LayoutId, PlanId, SegmentId};
use crate::keys::query::Query;
use crate::trees::grow::SegmentShape;
use crate::trees::join::Joined;

/// The figures of a checkpoint that is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// Bytes of its arrays.
    pub nbytes: u64,
    /// Number of its arrays.
    pub buffers: u32,
    /// Only full-attention and sliding-window layers, and no window has rotated: it serves shorter lengths too.
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
    /// Bytes of all full-attention layers for one token.
    pub bytes_per_token: u64,
    /// Arrays of one segment.
    pub segment_buffers: u32,
    /// The state after the last token; `None` where all layers are full-attention layers.
    pub checkpoint: Option<CheckpointSpec>,
    /// Counted by label in the statistics.
    pub label: u16,
    /// Where the prompt ends and the answer begins, if the caller knows: the checkpoint there is kept
    /// as long as the newest.
    pub prompt: Option<usize>,
}

impl StoreRequest<'_> {
    pub(super) fn shape(&self) -> SegmentShape {
        SegmentShape {
            bytes_per_token: self.bytes_per_token,
            buffers: self.segment_buffers,
            label: self.label,
        }
    }
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

/// The outcome of planning. What was evicted to make room is returned next to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Planned {
    /// Copy, then commit.
    Ready(Plan),
    /// All of it is held; it is the most recently used now. What was joined on its path.
    Already(Vec<Joined>),
    /// It does not fit next to what is protected; nothing was evicted.
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
    /// Tokens that can be held for the key next to what is protected; 0 where it does not fit.
    pub length: usize,
    /// Tokens that can be held if the node that the key diverges in is given up and its matched
    /// tokens are copied again; 0 where there is no such node, or somebody else holds it.
    pub length_recopied: usize,
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
