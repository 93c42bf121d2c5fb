//! The radix tree over token keys. Everything here only reads, or stores what it is told.
//!
//! Long edges are chains of nodes of at most `segment_tokens` keys, so that a split copies at most one
//! segment and eviction has a fine grain. [`trees`](crate::trees) alone changes the shape.

pub(crate) mod arena;
pub(crate) mod children;
pub(crate) mod node;
pub(crate) mod slab;
pub(crate) mod walk;
