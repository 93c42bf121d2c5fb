//! State and counters of a folder.

use std::{collections::BTreeMap, io, sync::atomic::Ordering, time::Duration};

use rustix::io::Errno;

use super::{Folder, RETRY, Refusal, lock};

/// Whether a folder is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Reads and writes.
    #[default]
    On,
    /// Reads only; the text says why.
    ReadOnly(String),
    /// Neither; the text says why.
    Off(String),
}

/// Failed writes in a row after which a folder is read-only for good.
const MAX_WRITE_ERRORS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Mode {
    state: State,
    /// When a state other than `On` is tried again; never where `None`.
    retry: Option<Duration>,
    /// No writes before this: the volume was full.
    paused: Option<Duration>,
    write_errors: u32,
}

/// Counters since the folder was opened, and what it holds now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Whether it is used.
    pub state: State,
    /// Records that this process knows of.
    pub records: u64,
    /// Bytes of all files and claims, at least; as of this process's last write or scan.
    pub nbytes: u64,
    /// The limit.
    pub max_bytes: u64,
    /// Records written.
    pub written_records: u64,
    /// Bytes of them, headers included.
    pub written_bytes: u64,
    /// Records read and verified.
    pub read_records: u64,
    /// Bytes handed out.
    pub read_bytes: u64,
    /// Time of all calls of `Reader::read` together.
    pub read_time: Duration,
    /// Records that were already there.
    pub duplicates: u64,
    /// Records that left the folder, by reason: `limit`, `reserve`, `full`, `short`, `corrupt`, `other_tokens`,
    /// `misplaced`, `io_error`, `removed`, `expired`.
    pub dropped_by_reason: BTreeMap<&'static str, u64>,
    /// Records not written, by [`Refusal::reason`].
    pub refused_by_reason: BTreeMap<&'static str, u64>,
    /// Records not handed out, by [`Outcome::reason`](crate::reader::Outcome::reason).
    pub missed_by_reason: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
pub(super) struct Counters(Stats);

impl Folder {
    /// State and counters. No I/O.
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

    /// Whether the folder may be used at all; where it is off and its minute is over, it may be tried.
    pub(super) fn try_again(&self) -> Result<(), Refusal> {
        let mode = lock(&self.mode);
        match mode.state {
            State::Off(_) if mode.retry.is_none_or(|at| self.clock.now() < at) => Err(Refusal::Off),
            _ => Ok(()),
        }
    }

    /// Whether a write has a chance. No I/O.
    pub(crate) fn writable(&self) -> Result<(), Refusal> {
        self.try_again()?;
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

    /// Draws the consequence of a failed write.
    pub(super) fn blame(&self, error: &io::Error) {
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

/// Whether the volume, or the user's share of it, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOSPC | Errno::DQUOT))
}
