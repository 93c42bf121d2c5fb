//! What a lookup found.

use crate::dropped::Dropped;
use crate::ids::{CheckpointId, LayoutId, LeaseId, SegmentId};

/// Why a lookup reuses what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// At least one token is reused.
    Hit,
    /// No stored prompt starts like this one.
    NoEntry,
    /// Tokens matched, but there is no checkpoint at or before the match.
    NoCheckpoint,
    /// The match ended at other media, or inside a media span, before any usable token.
    Media,
    /// The caller can use none: the engine needs one token to run, and there are no two.
    TooShort,
}

/// What a lookup found. Lengths are in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Reusable tokens.
    pub length: usize,
    /// Tokens matched over all layouts of the namespace, at least `length`.
    pub matched: usize,
    /// Why.
    pub reason: Reason,
    /// Where a checkpoint would have helped: some layout with checkpoints matched further than
    /// `length`.
    pub checkpoint_at: Option<usize>,
    /// The layout of the tree that serves it.
    pub layout: Option<LayoutId>,
    /// Nodes compared with the query.
    pub visited: usize,
    /// Keys compared with the query, at most.
    pub compared: usize,
}

/// One segment's part in a hit, in order from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The segment.
    pub segment: SegmentId,
    /// How many of its leading tokens are used.
    pub tokens: usize,
}

/// A hit's arrays, held by a lease until it is released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Holds the path; `None` on a miss.
    pub lease: Option<LeaseId>,
    /// Segments that make up the hit.
    pub pieces: Vec<Piece>,
    /// The checkpoint to continue from and its position, which is beyond the hit's length where
    /// its windows had not rotated and are to be trimmed.
    pub checkpoint: Option<(CheckpointId, usize)>,
}

/// A hit of which the exclusively held part has left the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The whole hit. The lease covers the part that stays.
    pub scope: Scope,
    /// What is the caller's now.
    pub dropped: Dropped,
}
