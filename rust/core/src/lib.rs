//! Prefix tree, eviction policy and byte ledger of `kvcache`.
//!
//! This crate deals in tokens, bytes, ids and ticks. It holds no arrays, reads no clock, does no I/O
//! and knows nothing about Python: the caller keeps the KV arrays under the ids handed out here, and
//! drops the ones listed in a returned [`Dropped`].
//!
//! A file imports only from its own level and the levels below, and never in a cycle;
//! `tests/imports.rs` enforces this. From the top down:
//!
//! | module | responsible for |
//! |---|---|
//! | `inspect` | `validate()`, the outline that ranks compare, statistics |
//! | `lookup`, `store` | the longest usable prefix; the two-step store: plan → copy (caller) → commit |
//! | `evict` | making room, dry runs of eviction, which checkpoints to keep |
//! | `index` | [`PrefixIndex`]: its parts, and where to find its methods |
//! | `lease` | paths protected from eviction |
//! | `trees` | the only code that changes a tree's shape |
//! | `forest`, `order` | one tree per namespace and layout; eviction policies |
//! | `radix` | node, arena, read-only walk |
//! | `ledger`, `dropped` | what the index holds, and what has left it |
//! | `keys` | tokens, media, path hashes |
//! | `error`, `ids`, `tables`, `work` | shared by everything above; work counters for tests |
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
pub use error::{BrokenInvariant, Error};
pub use evict::Need;
pub use ids::{CheckpointId, LayoutId, LeaseId, PlanId, SegmentId};
pub use index::{Limits, PrefixIndex};
pub use inspect::stats::{Stats, TreeStats};
pub use keys::hash::{ContentHash, HashKey, PathHash, PathHasher};
pub use keys::media::{MediaKeys, Span, path_hash};
pub use keys::query::Query;
pub use keys::token::{MAX_TOKEN, check_tokens};
pub use ledger::{Amount, LabelAmount};
pub use lookup::result::{Match, Piece, Reason, Scope, Taken};
pub use order::Policy;
pub use store::insert::Inserted;
pub use store::request::{
    CheckpointSpec, Committed, Drafted, NewSegment, Outcome, Plan, Planned, Split, StoreRequest,
};
pub use trees::join::Joined;
