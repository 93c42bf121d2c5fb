//! Tests of the disk crate, in one binary that also runs itself as a child process.
//!
//! `KVCACHE_LONG=1` runs more random cases and more combinations.

mod errors;
mod faults;
mod folder;
mod kill;
mod make;
mod model;
mod names;
mod processes;
mod reader;
mod records;
mod selftest;
mod writer;

/// `long` if `KVCACHE_LONG` is set, else `short`.
fn count(short: usize, long: usize) -> usize {
    if std::env::var_os("KVCACHE_LONG").is_some() { long } else { short }
}
