//! Shared by the integration tests: a naive oracle, random operations, and the driver that runs
//! both side by side.
//!
//! | module | what it is |
//! |---|---|
//! | [`prompt`] | prompts, as tokens that carry their content |
//! | [`operations`] | one random operation, and how to make and shrink one |
//! | [`oracle`] | what an index must do: lists and linear scans, no code of the index |
//! | [`driver`] | applies an operation to index and oracle and compares all that can be seen |
//! | [`index`] | the operations as a trait, so that a broken index can stand in |
//! | [`engine`] | an engine in small, for the named cases |
//! | [`faults`] | indexes that are broken on purpose |
// Every test crate compiles all of this and uses its own part.
#![allow(dead_code)]

pub(crate) mod driver;
pub(crate) mod engine;
pub(crate) mod faults;
pub(crate) mod index;
pub(crate) mod operations;
pub(crate) mod oracle;
pub(crate) mod prompt;
