//! What calls take and return: plain frozen objects with names for their parts.

pub(crate) mod dropped;
pub(crate) mod lookup;
pub(crate) mod stats;
pub(crate) mod store;
