//! Prefix tree, eviction policy and byte ledger of `kvcache`.
//!
//! This crate knows tokens, bytes, ids and ticks. It holds no array, reads no clock, does no I/O
//! and knows nothing of Python: a caller keeps the KV arrays under the ids that are given out
//! here, and drops what a returned [`Dropped`] lists.
//!
//! A file imports from its own level and from those below it, and never in a circle; `tests/imports.rs`
//! holds that. From the top down:
//!
//! | module | what a change there is about |
//! |---|---|
//! | `inspect` | `validate()`, the outline that ranks compare, figures |
//! | `lookup`, `store` | the longest usable prefix; the two-step store: plan → copy (caller) → commit |
//! | `evict` | making room, dry runs of it, which checkpoints are kept |
//! | `index` | [`PrefixIndex`]: what it consists of, and where its methods are |
//! | `lease` | paths that eviction leaves alone |
//! | `trees` | the only code that changes a tree's shape |
//! | `forest`, `order` | one tree per namespace and layout; eviction policies |
//! | `radix` | node, arena, read-only walk |
//! | `ledger`, `dropped` | what is held, and what left |
//! | `keys` | tokens, media, hashes of paths |
//! | `error`, `ids`, `tables`, `work` | what all need; counts of work, in tests |
#![forbid(unsafe_code)]

mod dropped;
mod error;
mod evict;
mod forest;
mod ids;
mod index;
mod inspect;
mod keys;
mod lease;
mod ledger;
mod lookup;
mod order;
mod radix;
mod store;
mod tables;
mod trees;
mod work;

pub use dropped::Dropped;
pub use error::{Broken, Error};
pub use evict::Need;
pub use ids::{CheckpointId, LayoutId, LeaseId, PlanId, SegmentId};
pub use index::{Limits, PrefixIndex};
pub use inspect::stats::{Stats, TreeStats};
pub use keys::hash::{ContentHash, HashKey, PathHash, PathHasher};
pub use keys::media::{MediaKeys, Span, path_hash};
pub use keys::query::Query;
pub use keys::token::{MAX_TOKEN, check_tokens};
pub use ledger::{Amount, LabelAmount};
pub use lookup::found::{Match, Piece, Reason, Scope, Taken};
pub use order::Policy;
pub use store::insert::Inserted;
pub use store::request::{
    CheckpointSpec, Committed, Drafted, NewSegment, Outcome, Plan, Planned, Split, StoreRequest,
};
pub use trees::join::Joined;
