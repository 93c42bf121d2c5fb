//! Prefix tree, LRU order and byte ledger of `kvcache`.
//!
//! This crate knows tokens, bytes, ids and ticks. It holds no array, reads no clock, does no I/O
//! and knows nothing of Python: a caller keeps the KV arrays under the ids that are given out
//! here, and drops what a returned [`Dropped`] lists.
//!
//! | module | what a change there is about |
//! |---|---|
//! | [`index`] | [`PrefixIndex`]: the façade; composes the rest |
//! | [`store`] | the two-step store: plan → copy (caller) → commit or abort |
//! | [`lookup`] | longest usable prefix, choice of layout, what a fetch needs |
//! | [`evict`] | making room: the shortest run of the LRU order that is enough |
//! | `radix` | node, arena, read-only walk, and the only code that changes the tree's shape |
//! | `lru`, `ledger`, `lease`, `media`, `retention` | one idea each |
//! | `work` | counts of work, in tests |
//! | `check` | `validate()`: recomputes every counter and link |
#![forbid(unsafe_code)]

mod check;
pub mod count;
mod error;
pub mod evict;
mod forest;
mod ids;
pub mod index;
pub mod keys;
mod lease;
mod ledger;
pub mod lookup;
mod lru;
mod media;
mod outline;
mod radix;
mod retention;
mod stats;
pub mod store;
mod work;

pub use error::{Broken, Error};
pub use evict::{Dropped, Need};
pub use ids::{CheckpointId, LayoutId, LeaseId, PlanId, SegmentId};
pub use index::{Limits, PrefixIndex};
pub use keys::{MAX_TOKEN, Query, check_tokens};
pub use ledger::{Amount, LabelAmount};
pub use lookup::{Match, Piece, Reason, Scope, Taken};
pub use media::{MediaKeys, Span};
pub use radix::join::Joined;
pub use stats::{Stats, TreeStats};
pub use store::{
    CheckpointSpec, Committed, Drafted, Inserted, NewSegment, Outcome, Plan, Planned, Split, StoreRequest,
};
