//! Tests of the disk crate in one binary, which also runs itself as a child to be killed.
//!
//! `KVCACHE_LONG=1` multiplies what is random and adds what is slow.

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

/// `long` where the long tests were asked for.
fn count(short: usize, long: usize) -> usize {
    if std::env::var_os("KVCACHE_LONG").is_some() { long } else { short }
}
