//! Storing: draft (match, lease) → settle (how much) → promise (reserve) → the caller copies → commit or
//! abort.
//!
//! A draft leases the tokens before the divergence and the checkpoint it continues from, so that making
//! room cannot evict them. A plan reserves its bytes, so that other plans cannot claim them. The tree does
//! not change before the commit. [`PrefixIndex::plan`](crate::PrefixIndex::plan) takes the first three
//! steps at once; ranks that have to agree take them one by one.
//!
//! | file | contents |
//! |---|---|
//! | `request` | request and result types |
//! | `in_flight` | the state of a store between draft and commit |
//! | `draft`, `promise` | the steps before the copy |
//! | `place` | where new tokens go, and whether that place is unchanged |
//! | `fit` | what a store costs, and how much of it fits |
//! | `commit` | the steps after the copy |
//! | `insert` | all steps at once, for an index without arrays |

mod commit;
mod draft;
mod fit;
pub(crate) mod in_flight;
pub(crate) mod insert;
mod place;
mod promise;
pub(crate) mod request;
