//! Shared by the integration tests: a naive oracle, random operations, and the driver that compares an index
//! with the oracle.
//!
//! | module | contents |
//! |---|---|
//! | [`prompt`] | prompts, as tokens that carry their content |
//! | [`operations`] | random operations: how to generate and shrink them |
//! | [`oracle`] | what an index must do, as lists and linear scans, without the index's code |
//! | [`driver`] | applies operations to index and oracle, and compares everything observable |
//! | [`index`] | the operations as a trait, so that a faulty index can replace the real one |
//! | [`engine`] | a minimal engine, for the named cases |
//! | [`faults`] | indexes with deliberate faults |
// Every test crate compiles all of this but uses only part of it.
#![allow(dead_code)]

pub(crate) mod driver;
pub(crate) mod engine;
pub(crate) mod faults;
pub(crate) mod index;
pub(crate) mod operations;
pub(crate) mod oracle;
pub(crate) mod prompt;
