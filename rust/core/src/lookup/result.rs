//! The results of a lookup.

use crate::dropped::Dropped;
use crate::ids::{CheckpointId, LayoutId, LeaseId, SegmentId};

/// Why a lookup is a hit or a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// At least one token is reusable.
    Hit,
    /// No stored prompt starts with the same token.
    NoEntry,
    /// Tokens matched, but no checkpoint serves any of them.
    NoCheckpoint,
    /// The match ended at different media, or inside a media span, before any usable token.
    Media,
    /// The limit is 0: the engine must process the last token, and the prompt has at most one.
    TooShort,
}

/// The longest usable prefix. Lengths are in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Reusable tokens.
    pub length: usize,
    /// Tokens matched over all layouts of the namespace, at least `length`.
    pub matched: usize,
    /// Why it is a hit or a miss.
    pub reason: Reason,
    /// Where a checkpoint would have helped, if some layout with checkpoints matched past `length`.
    pub checkpoint_at: Option<usize>,
    /// Layout of the tree that serves the prefix.
    pub layout: Option<LayoutId>,
    /// Nodes compared with the query.
    pub visited: usize,
    /// Upper bound on the keys compared with the query.
    pub compared: usize,
}

/// The part of a hit that one segment serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The segment.
    pub segment: SegmentId,
    /// How many of its leading tokens to use.
    pub tokens: usize,
}

/// The arrays of a hit, held by a lease until it is released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The lease on the path; `None` on a miss.
    pub lease: Option<LeaseId>,
    /// The segments that make up the hit, from the root down.
    pub pieces: Vec<Piece>,
    /// The checkpoint to continue from and its position. If that is past the hit's length, the
    /// windows have not rotated and must be trimmed.
    pub checkpoint: Option<(CheckpointId, usize)>,
}

/// A hit whose unshared part has been moved out of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The whole hit. The lease covers the part that stays.
    pub scope: Scope,
    /// The part that now belongs to the caller.
    pub dropped: Dropped,
}
