//! Inspecting an index: statistics, its outline as text, and its invariants.

mod check;
mod outline;
pub(crate) mod stats;
