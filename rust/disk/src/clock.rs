//! The clock that orders records by last use and says when to try again, so that tests can set it.

use std::time::{Duration, SystemTime};

/// Time since 1970. Deadlines of reads, flushes and closes do not use it: those are real time.
pub trait Clock: Send + Sync {
    /// May go backwards; a folder still orders its own uses.
    fn now(&self) -> Duration;
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}
