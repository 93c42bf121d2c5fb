//! One folder of records: bounded, private, and shared by processes.
//!
//! - **Room.** The files in the folder, including temporary and foreign ones, never hold more than `max_bytes`
//!   bytes: room is claimed before a file is created, under a lock shared by all processes.
//! - **Eviction order.** Least recently used first, tails before heads. Never a record that is held, or the
//!   parent of the record being written; the last one written only if there is no other.
//! - **Failures.** No method panics, or blocks on another process except for the folder's lock. Only
//!   [`Folder::contains`], [`Folder::hold`] and [`Folder::stats`] do no I/O, so only they may be called where
//!   waiting is not acceptable. A folder that cannot be used is off, with a reason, and retried every minute.

mod evict;
mod gate;
mod index;
mod ledger;
mod maintenance;
mod put;
mod room;
mod scan;
mod stats;

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

/// How long a folder stays off before a retry, and how long a pause lasts.
pub const RETRY: Duration = Duration::from_secs(60);

/// The settings of a folder.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The root. Created with mode 0700 if missing; an existing folder is set to that mode.
    pub root: PathBuf,
    /// Maximum bytes of all files in it. Each process obeys its own limit, so the smallest wins.
    pub max_bytes: u64,
    /// Bytes to keep free on the volume, as far as evicting our own records can achieve that.
    pub reserve: u64,
    /// Whether to sync data and folders, so that records survive a power failure.
    pub durable: bool,
}

/// Why a record was not written.
#[derive(Debug)]
pub enum Refusal {
    /// The queue would exceed its limit.
    QueueFull,
    /// Its parent is neither on disk nor in the queue.
    Parent,
    /// It is larger than the limit of the whole folder.
    TooLarge,
    /// Evicting every evictable record would not make enough room under the limit.
    Room,
    /// Evicting every evictable record would not bring the volume's free space up to the reserve.
    Reserve,
    /// The volume was full less than a minute ago.
    Paused,
    /// Writing has failed too often, or is not permitted.
    ReadOnly,
    /// The folder cannot be used.
    Off,
    /// The writer is closed.
    Closed,
    /// Cancelled by the caller.
    Cancelled,
    /// The record is inconsistent; the text says how.
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

/// A folder of records. Share it in an [`Arc`] and call it from any thread.
pub struct Folder {
    settings: Settings,
    files: Arc<dyn Files>,
    clock: Arc<dyn Clock>,
    /// Serialises use of the folder's cross-process lock. Locked before any other mutex, and held during I/O.
    gate: Mutex<Option<Root>>,
    /// Locked only briefly, never during I/O.
    index: Mutex<Index>,
    /// The record written last.
    last: Mutex<Option<Name>>,
    mode: Mutex<stats::Mode>,
    counters: Mutex<Counters>,
    ready: (Mutex<bool>, Condvar),
    /// The ledger may be too high, so a scan may find room.
    suspected: AtomicBool,
    /// Folders whose new entries are not durable yet.
    unsynced: Mutex<BTreeSet<PathBuf>>,
    serials: AtomicU64,
    stored: AtomicU64,
    used: AtomicU64,
}

/// No panic leaves what these locks protect half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The instant at which `timeout` ends. Capped at one day, since adding more overflows on some systems.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(Duration::from_secs(86_400))
}

impl Folder {
    /// Opens a folder. Returns at once; a background thread creates or scans it. Writes wait for the scan,
    /// reads do not. A folder that cannot be used is not an error here: see [`Stats::state`].
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

    /// Waits until the first scan has ended, successfully or not. Returns `false` after `timeout`.
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

    /// The folder's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether this process knows of the record, from a scan or because it wrote it. Another process may have
    /// removed it since. O(1), no I/O.
    pub fn contains(&self, name: &Name) -> bool {
        lock(&self.index).get(name).is_some()
    }

    /// Protects records from eviction by this process until the guard is dropped. Unknown names are allowed.
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

    /// Removes a record from the index whose file is gone.
    pub(crate) fn forget(&self, name: &Name) {
        lock(&self.index).remove(name);
    }

    /// Opens a record's file.
    pub(crate) fn open_record(&self, name: &Name) -> io::Result<Box<dyn Handle>> {
        self.files.open(&self.path(name.path()), Open::Read)
    }

    /// A time of use later than all earlier ones in this process.
    fn tick(&self) -> Duration {
        self.ticks(1).next().unwrap_or_default()
    }

    /// Times of use for a path of `count` records, later than all earlier ones in this process. The head gets
    /// the latest.
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

/// Protects records from eviction: see [`Folder::hold`].
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
