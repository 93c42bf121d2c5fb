//! One folder of records: bounded, private, shared by processes, never in the way.
//!
//! - **Room.** The bytes of all files in the folder, temporary and foreign ones too, are at most `max_bytes`
//!   at every instant: room is claimed under a lock that all processes share, before a file is made.
//! - **Order.** Oldest use first, tails before heads; never a record that is held, that the new one hangs
//!   below, or, if there is another, the one written last.
//! - **Failures.** No method panics or blocks on another process but for the lock of the folder; only
//!   [`Folder::contains`], [`Folder::hold`] and [`Folder::stats`] are free of I/O, and so may be called where
//!   nothing may wait. A folder that cannot be used is off, with a reason, and tried again each minute.

mod gate;
mod index;
mod ledger;
mod put;
mod room;
mod scan;
mod stats;
mod tend;

use std::{
    collections::BTreeSet,
    fmt, io,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub use room::Put;
pub use stats::{State, Stats};

use crate::{
    clock::Clock,
    files::{Files, Handle, Open},
    name::Name,
};
use gate::Root;
use index::Index;
use ledger::Ledger;
use stats::Counters;

/// A folder that is off is tried again after this, and a pause ends.
pub const RETRY: Duration = Duration::from_secs(60);

/// How a folder is used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Made where it is missing, with mode 0700; one that is there gets that mode.
    pub root: PathBuf,
    /// Limit of the bytes of all files in it. Each process keeps to its own; so the smallest one holds.
    pub max_bytes: u64,
    /// Bytes of the volume that stay free, as far as evicting our own records can see to it.
    pub reserve: u64,
    /// Whether records survive a loss of power: data and folders are synced.
    pub durable: bool,
}

/// Why a record was not written.
#[derive(Debug)]
pub enum Refusal {
    /// The queue's bytes would exceed its limit.
    QueueFull,
    /// The segment above it is not on disk, nor in the queue.
    Parent,
    /// Larger than the limit of the whole folder.
    TooLarge,
    /// All that may be evicted would not make room below the limit.
    Room,
    /// All that may be evicted would not bring the volume's free space above the reserve.
    Reserve,
    /// The volume was full a short time ago.
    Paused,
    /// Writing failed too often.
    ReadOnly,
    /// The folder cannot be used.
    Off,
    /// The writer was closed.
    Closed,
    /// Given up on request.
    Cancelled,
    /// The record contradicts itself; the text says how.
    Invalid(String),
    /// The file system failed.
    Io(io::Error),
}

impl Refusal {
    /// The reason's name in [`Stats`].
    pub fn reason(&self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Parent => "parent_missing",
            Self::TooLarge => "too_large",
            Self::Room => "no_room",
            Self::Reserve => "reserve",
            Self::Paused => "paused",
            Self::ReadOnly => "read_only",
            Self::Off => "off",
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
            Self::Invalid(_) => "invalid",
            Self::Io(_) => "io_error",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text) => f.write_str(text),
            Self::Io(error) => error.fmt(f),
            other => f.write_str(other.reason()),
        }
    }
}

/// A folder of records. Share it in an [`Arc`]; all methods may be called from any thread.
pub struct Folder {
    settings: Settings,
    files: Arc<dyn Files>,
    clock: Arc<dyn Clock>,
    /// What needs the lock that processes share. Taken before `index` or any other, and kept during I/O.
    gate: Mutex<Option<Root>>,
    /// Kept only for moments, never during I/O.
    index: Mutex<Index>,
    /// The record written last.
    last: Mutex<Option<Name>>,
    mode: Mutex<stats::Mode>,
    counters: Mutex<Counters>,
    ready: (Mutex<bool>, Condvar),
    /// The ledger may be too high.
    suspected: AtomicBool,
    /// Folders whose new entries are not durable yet.
    unsynced: Mutex<BTreeSet<PathBuf>>,
    serials: AtomicU64,
    stored: AtomicU64,
    used: AtomicU64,
}

/// A thread that panicked with a lock held has left no half-done step in what these locks protect.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When `timeout` is over; a day from now at most, since some clocks cannot add more.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(Duration::from_secs(86_400))
}

impl Folder {
    /// Returns at once; a thread makes or scans the folder meanwhile. Reads do not wait for it, writes do.
    /// A folder that cannot be used gives no error here: [`Stats::state`] has it.
    pub fn open(settings: Settings, files: Arc<dyn Files>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let folder = Arc::new(Self {
            settings,
            files,
            clock,
            gate: Mutex::default(),
            index: Mutex::default(),
            last: Mutex::default(),
            mode: Mutex::default(),
            counters: Mutex::default(),
            ready: (Mutex::new(false), Condvar::new()),
            suspected: AtomicBool::new(false),
            unsynced: Mutex::default(),
            serials: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            used: AtomicU64::new(0),
        });
        let opened = Arc::clone(&folder);
        let scan = move || {
            let _ = opened.locked(|_| Ok(()));
            *lock(&opened.ready.0) = true;
            opened.ready.1.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("kvcache-scan".into()).spawn(scan) {
            folder.turn_off(&error);
        }
        folder
    }

    /// Waits until the first scan has ended, well or not; `false` after `timeout`.
    pub fn wait_ready(&self, timeout: Duration) -> bool {
        let end = deadline(timeout);
        let mut ready = lock(&self.ready.0);
        while !*ready {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            ready = self.ready.1.wait_timeout(ready, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// How the folder is used.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether this process knows of the record: from the scan, or because it wrote it. O(1), no I/O; another
    /// process may have removed it since.
    pub fn contains(&self, name: &Name) -> bool {
        lock(&self.index).get(name).is_some()
    }

    /// Keeps records from being evicted by this process until the guard is dropped. Names may be unknown.
    /// O(records · log n), no I/O.
    pub fn hold(self: &Arc<Self>, names: &[Name]) -> Hold {
        let mut index = lock(&self.index);
        for name in names {
            index.hold(name);
        }
        Hold { folder: Arc::clone(self), names: names.to_vec() }
    }

    /// Whether the first scan has ended.
    pub(crate) fn is_ready(&self) -> bool {
        *lock(&self.ready.0)
    }

    /// Forgets a record that turned out to be gone.
    pub(crate) fn forget(&self, name: &Name) {
        lock(&self.index).remove(name);
    }

    /// Opens a record's file.
    pub(crate) fn open_record(&self, name: &Name) -> io::Result<Box<dyn Handle>> {
        self.files.open(&self.path(name.path()), Open::Read)
    }

    /// A time of use later than all before in this process.
    fn tick(&self) -> Duration {
        self.ticks(1).next().unwrap_or_default()
    }

    /// Times of use for a path of `count` records, later than all before in this process; the head's is the
    /// last.
    pub(crate) fn ticks(&self, count: usize) -> impl Iterator<Item = Duration> {
        let now = u64::try_from(self.clock.now().as_nanos()).unwrap_or(u64::MAX);
        let count = count as u64;
        let first = move |last: u64| now.max(last.saturating_add(1));
        let next = |last: u64| Some(first(last).saturating_add(count));
        let last = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        (0..count).rev().map(move |step| Duration::from_nanos(first(last).saturating_add(step)))
    }

    fn serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    fn suspect(&self) {
        self.suspected.store(true, Ordering::Relaxed);
    }

    fn is_suspect(&self) -> bool {
        self.suspected.load(Ordering::Relaxed)
    }

    fn note(&self, ledger: &Ledger) {
        self.stored.store(ledger.stored + ledger.claimed(), Ordering::Relaxed);
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Keeps records from eviction: see [`Folder::hold`].
#[derive(Debug)]
pub struct Hold {
    folder: Arc<Folder>,
    names: Vec<Name>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut index = lock(&self.folder.index);
        for name in &self.names {
            index.release(name);
        }
    }
}
