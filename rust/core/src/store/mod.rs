//! Storing: draft (match, protect) → settle (how much) → promise (make room, reserve) → the caller
//! copies → commit or abort.
//!
//! A draft leases the tokens before the divergence and the checkpoint continued from, so that making
//! room cannot evict them; a plan reserves its bytes, so that other plans cannot take them either. The
//! tree does not change before the commit. [`PrefixIndex::plan`](crate::PrefixIndex::plan) takes the first
//! three steps at once; ranks that have to agree take them one by one.
//!
//! | file | what it is |
//! |---|---|
//! | `request` | what a store asks for, and what it is answered |
//! | `under_way` | what is known of a store between its draft and its commit |
//! | `draft`, `promise` | the steps before the copy |
//! | `place` | where new tokens belong, and whether that is still so |
//! | `fit` | what a store costs, and how much of it fits |
//! | `commit` | the steps after the copy |
//! | `insert` | all steps in one, for an index without arrays |

mod commit;
mod draft;
mod fit;
pub(crate) mod insert;
mod place;
mod promise;
pub(crate) mod request;
pub(crate) mod under_way;
