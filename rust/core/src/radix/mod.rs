//! The radix tree over token keys.
//!
//! Long edges are chains of nodes of at most `segment_tokens` keys, so that a split copies at
//! most one segment and eviction has a fine grain. `walk` only reads; `edit` and `join` are the
//! only code that changes the shape.

pub(crate) mod arena;
pub(crate) mod children;
pub(crate) mod edit;
pub(crate) mod join;
pub(crate) mod node;
pub(crate) mod slab;
pub(crate) mod walk;
