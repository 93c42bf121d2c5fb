//! The clock that orders records by last use and times retries, as a trait so that tests can set it.

use std::time::{Duration, SystemTime};

/// Wall-clock time. Deadlines of reads, flushes and closes use the monotonic system clock instead.
pub trait Clock: Send + Sync {
    /// Time since the Unix epoch. May run backwards: a folder still orders its own uses correctly.
    fn now(&self) -> Duration;
}

/// The system clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}
