//! Argument and result types: plain frozen objects with named fields.

pub(crate) mod dropped;
pub(crate) mod lookup;
pub(crate) mod stats;
pub(crate) mod store;
