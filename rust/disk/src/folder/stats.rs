//! The state and counters of a folder.

use std::{collections::BTreeMap, io, sync::atomic::Ordering, time::Duration};

use rustix::io::Errno;

use super::{Folder, RETRY, Refusal, lock};

/// Whether a folder is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It reads and writes.
    #[default]
    On,
    /// It only reads; the text says why.
    ReadOnly(String),
    /// It does neither; the text says why.
    Off(String),
}

/// A folder is read-only for good after this many failed writes in a row.
const MAX_WRITE_ERRORS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Mode {
    state: State,
    /// When to retry a state other than `On`; `None` for never.
    retry: Option<Duration>,
    /// No writes before this time, because the volume was full.
    paused: Option<Duration>,
    write_errors: u32,
}

/// Counters since the folder was opened, and its current contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Whether it is in use.
    pub state: State,
    /// Records known to this process.
    pub records: u64,
    /// Upper bound on the bytes of all files and claims, as of this process's last write or scan.
    pub nbytes: u64,
    /// The limit.
    pub max_bytes: u64,
    /// Records written.
    pub written_records: u64,
    /// Bytes written, including headers.
    pub written_bytes: u64,
    /// Records read and verified.
    pub read_records: u64,
    /// Payload bytes of those records.
    pub read_bytes: u64,
    /// Total time in `Reader::read`.
    pub read_time: Duration,
    /// Records submitted that were already queued or on disk.
    pub duplicates: u64,
    /// Records removed from the folder, by reason: `limit`, `reserve`, `full`, `short`, `corrupt`,
    /// `other_tokens`, `misplaced`, `io_error`, `removed`, `expired`.
    pub dropped_by_reason: BTreeMap<&'static str, u64>,
    /// Records not written, by [`Refusal::reason`].
    pub refused_by_reason: BTreeMap<&'static str, u64>,
    /// Records not read, by [`Outcome::reason`](crate::reader::Outcome::reason).
    pub missed_by_reason: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
pub(super) struct Counters(Stats);

impl Folder {
    /// The current state and counters. No I/O.
    pub fn stats(&self) -> Stats {
        let records = lock(&self.index).len() as u64;
        let state = lock(&self.mode).state.clone();
        Stats {
            state,
            records,
            nbytes: self.stored.load(Ordering::Relaxed),
            max_bytes: self.settings.max_bytes,
            ..lock(&self.counters).0.clone()
        }
    }

    pub(super) fn count_drop(&self, reason: &'static str) {
        *lock(&self.counters).0.dropped_by_reason.entry(reason).or_default() += 1;
    }

    pub(crate) fn count_refusal(&self, refusal: &Refusal) {
        *lock(&self.counters).0.refused_by_reason.entry(refusal.reason()).or_default() += 1;
    }

    pub(crate) fn count_miss(&self, reason: &'static str) {
        *lock(&self.counters).0.missed_by_reason.entry(reason).or_default() += 1;
    }

    pub(crate) fn count_duplicate(&self) {
        lock(&self.counters).0.duplicates += 1;
    }

    pub(super) fn count_written(&self, bytes: u64) {
        let mut counters = lock(&self.counters);
        counters.0.written_records += 1;
        counters.0.written_bytes += bytes;
        lock(&self.mode).write_errors = 0;
    }

    pub(crate) fn count_read(&self, records: u64, bytes: u64, time: Duration) {
        let mut counters = lock(&self.counters);
        counters.0.read_records += records;
        counters.0.read_bytes += bytes;
        counters.0.read_time += time;
    }

    /// Fails if the folder is off and it is not yet time to retry.
    pub(super) fn check_not_off(&self) -> Result<(), Refusal> {
        let mode = lock(&self.mode);
        match mode.state {
            State::Off(_) if mode.retry.is_none_or(|at| self.clock.now() < at) => Err(Refusal::Off),
            _ => Ok(()),
        }
    }

    /// Fails if a write has no chance at the moment. No I/O.
    pub(crate) fn writable(&self) -> Result<(), Refusal> {
        self.check_not_off()?;
        let now = self.clock.now();
        let mut mode = lock(&self.mode);
        if matches!(mode.state, State::ReadOnly(_)) {
            if mode.retry.is_none_or(|at| now < at) {
                return Err(Refusal::ReadOnly);
            }
            mode.state = State::On;
        }
        if mode.paused.is_some_and(|until| now < until) { Err(Refusal::Paused) } else { Ok(()) }
    }

    pub(super) fn turn_off(&self, error: &io::Error) {
        let mut mode = lock(&self.mode);
        mode.state = State::Off(error.to_string());
        mode.retry = Some(self.clock.now() + RETRY);
    }

    pub(super) fn turn_on(&self) {
        let mut mode = lock(&self.mode);
        if matches!(mode.state, State::Off(_)) {
            mode.state = State::On;
        }
    }

    pub(super) fn pause(&self) {
        lock(&self.mode).paused = Some(self.clock.now() + RETRY);
    }

    /// Updates the state after a failed write.
    pub(super) fn note_write_error(&self, error: &io::Error) {
        let mut mode = lock(&self.mode);
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::IO) => {
                mode.write_errors += 1;
                if mode.write_errors >= MAX_WRITE_ERRORS {
                    mode.state = State::ReadOnly(error.to_string());
                    mode.retry = None;
                }
            }
            Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) => {
                mode.state = State::ReadOnly(error.to_string());
                mode.retry = Some(self.clock.now() + RETRY);
            }
            _ => {}
        }
    }
}

/// Whether the volume or the user's quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOSPC | Errno::DQUOT))
}
