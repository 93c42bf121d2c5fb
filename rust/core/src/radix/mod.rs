//! The data structures of the radix tree over token keys.
//!
//! Long edges are chains of nodes of at most `segment_tokens` keys, so that a split copies at most one
//! segment and eviction is fine-grained. Only [`trees`](crate::trees) changes a tree's shape.

pub(crate) mod arena;
pub(crate) mod children;
pub(crate) mod node;
pub(crate) mod slab;
pub(crate) mod walk;
