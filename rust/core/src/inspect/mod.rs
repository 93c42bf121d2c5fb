//! Looking into an index: figures, its text, and whether it is whole.

mod check;
mod outline;
pub(crate) mod stats;
