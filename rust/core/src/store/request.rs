//! The request and result types of a store.

use crate::dropped::Dropped;
use crate::ids::{CheckpointId, LayoutId, PlanId, SegmentId};
use crate::keys::query::Query;
use crate::trees::grow::SegmentShape;
use crate::trees::join::Joined;

/// The size of a checkpoint to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSpec {
    /// Bytes of its arrays.
    pub nbytes: u64,
    /// Number of its arrays.
    pub buffers: u32,
    /// There are only full-attention and sliding-window layers and no window has rotated, so the
    /// checkpoint serves shorter lengths too.
    pub trimmable: bool,
}

/// A request to store `query`, which is as long as the KV.
#[derive(Clone, Copy, Debug)]
pub struct StoreRequest<'a> {
    /// The namespace. Namespaces never share entries.
    pub namespace: &'a str,
    /// The layout of the KV.
    pub layout: LayoutId,
    /// The key.
    pub query: Query<'a>,
    /// Bytes per token over all full-attention layers.
    pub bytes_per_token: u64,
    /// Arrays per segment.
    pub segment_buffers: u32,
    /// The checkpoint after the last token; `None` if all layers are full-attention layers.
    pub checkpoint: Option<CheckpointSpec>,
    /// The label to count this store under in the statistics.
    pub label: u16,
    /// Where the prompt ends and the answer begins, if the caller knows. Thinning spares the checkpoint
    /// there, as it does the newest.
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

/// A segment to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSegment {
    /// Its id.
    pub id: SegmentId,
    /// First token.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
}

/// A segment to replace by copies of its two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The segment to cut. It stays usable until the commit reports it as dropped.
    pub old: SegmentId,
    /// Id of the first half.
    pub upper: SegmentId,
    /// Id of the second half.
    pub lower: SegmentId,
    /// Tokens of the first half.
    pub at: usize,
}

/// A store with its room reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Pass this to commit or abort.
    pub id: PlanId,
    /// Tokens that will be held for the key; fewer than requested if not all of them fit.
    pub length: usize,
    /// Tokens already held.
    pub matched: usize,
    /// What to copy, in order.
    pub segments: Vec<NewSegment>,
    /// The segment to split.
    pub split: Option<Split>,
    /// Id of the checkpoint to copy.
    pub checkpoint: Option<CheckpointId>,
}

/// The outcome of planning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Planned {
    /// Copy, then commit.
    Ready(Plan),
    /// The whole key is held, and is now the most recently used. Lists what was joined on its path.
    Already(Vec<Joined>),
    /// It does not fit alongside what is leased and reserved. Nothing was evicted.
    TooLarge,
    /// The key is empty, or ends inside a media span and nothing before the span can be kept.
    InsideMedia,
}

/// The outcome of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The tree changed since the plan, and nothing was stored: plan again.
    pub stale: bool,
    /// What a split replaced, and what thinning of checkpoints dropped. These are not evictions.
    pub dropped: Dropped,
    /// Segments, old or of this store, that were joined.
    pub joined: Vec<Joined>,
}

/// A store whose place is found and leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    /// Pass this to settle, promise or abort.
    pub id: PlanId,
    /// Tokens already held.
    pub matched: usize,
    /// Tokens that fit for the key alongside what is leased and reserved; 0 if it does not fit.
    pub length: usize,
    /// Tokens that fit if the node in which the key diverges is dropped and its matched tokens are
    /// copied again; 0 if there is no such node, or another lease holds it.
    pub length_recopied: usize,
}

/// The outcome of drafting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Settle, promise, copy, commit.
    Open(Drafted),
    /// The whole key is held, and is now the most recently used. Lists what was joined on its path.
    Already(Vec<Joined>),
    /// The key is empty, or ends inside a media span and nothing before the span can be kept.
    InsideMedia,
}
