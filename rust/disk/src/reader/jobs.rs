//! The threads of one call, and the reads they do.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use rustix::io::Errno;

use super::{Destination, Outcome, Want};
use crate::{
    folder::{Folder, Hold},
    name::{Media, Name},
    record::{Damage, Failure, read_header, read_range},
};

/// Bytes of the next record to prefetch.
const READ_AHEAD: u64 = 32 << 20;

/// State shared by the threads of one call.
pub(super) struct Jobs<D> {
    folder: Arc<Folder>,
    queue: Mutex<VecDeque<(usize, Duration, Want<D>)>>,
    /// Records after this one are useless.
    first_failure: AtomicUsize,
    abandoned: AtomicBool,
    /// Kept until all records are read or, after the deadline, until the last thread ends.
    hold: Mutex<Option<Hold>>,
    workers: Mutex<Workers>,
    stuck: Arc<AtomicUsize>,
}

/// The threads of one call.
#[derive(Default)]
struct Workers {
    live: usize,
    /// The call has returned without them, so they count as stuck.
    late: bool,
}

/// No panic leaves what these locks protect half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D> Jobs<D> {
    /// Counts a thread that ends, during the call or after it.
    fn end(&self) {
        let mut workers = lock(&self.workers);
        workers.live -= 1;
        if workers.late {
            self.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Releases the hold, once all records are read.
    pub(super) fn finish(&self) {
        lock(&self.hold).take();
    }

    /// Marks the call as returned without its threads.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        let mut workers = lock(&self.workers);
        workers.late = true;
        self.stuck.fetch_add(workers.live, Ordering::Relaxed);
    }
}

impl<D: Destination> Jobs<D> {
    /// Queues `wants`, and holds their records.
    pub(super) fn new(folder: &Arc<Folder>, wants: Vec<Want<D>>, stuck: &Arc<AtomicUsize>) -> Arc<Self> {
        let names: Vec<Name> = wants.iter().map(|want| want.name).collect();
        let ticks = folder.ticks(wants.len());
        let jobs = wants.into_iter().zip(ticks).enumerate().map(|(index, (want, used))| (index, used, want));
        Arc::new(Self {
            queue: Mutex::new(jobs.collect()),
            folder: Arc::clone(folder),
            first_failure: AtomicUsize::new(usize::MAX),
            abandoned: AtomicBool::new(false),
            hold: Mutex::new(Some(folder.hold(&names))),
            workers: Mutex::default(),
            stuck: Arc::clone(stuck),
        })
    }

    /// Starts one thread. If that fails, the others do its share, or it is late.
    pub(super) fn start_thread(self: &Arc<Self>, sender: mpsc::Sender<(usize, Outcome<D>)>) {
        let jobs = Arc::clone(self);
        lock(&self.workers).live += 1;
        let work = move || {
            jobs.work(&sender);
            jobs.end();
        };
        if thread::Builder::new().name("kvcache-read".into()).spawn(work).is_err() {
            self.end();
        }
    }

    fn work(&self, sender: &mpsc::Sender<(usize, Outcome<D>)>) {
        loop {
            let (job, next) = {
                let mut queue = lock(&self.queue);
                (queue.pop_front(), queue.front().map(|(_, _, want)| (want.name, want.tokens.len())))
            };
            let Some((index, used, want)) = job else { return };
            if self.abandoned.load(Ordering::Relaxed) {
                return;
            }
            // Prefetch the next record, so that the disk is busy while this one is copied and verified.
            if let Some((name, tokens)) = next
                && tokens * 2 > name.length as usize
                && let Ok(handle) = self.folder.open_record(&name)
            {
                handle.will_read(0, READ_AHEAD);
            }
            let outcome = if index > self.first_failure.load(Ordering::Relaxed) {
                Outcome::Skipped
            } else {
                // A destination may panic; a reader must not.
                let name = want.name;
                let outcome = catch_unwind(AssertUnwindSafe(|| self.read(want))).unwrap_or(Outcome::Unfit);
                if outcome.is_read() {
                    self.folder.touch_at(&name, used);
                } else {
                    self.first_failure.fetch_min(index, Ordering::Relaxed);
                }
                outcome
            };
            if sender.send((index, outcome)).is_err() {
                return;
            }
        }
    }

    fn read(&self, mut want: Want<D>) -> Outcome<D> {
        let name = want.name;
        let handle = match self.folder.open_record(&name) {
            Ok(handle) => handle,
            Err(error) => return self.failed(&name, None, error.into()),
        };
        let identity = match handle.stat() {
            Ok(stat) => {
                if want.tokens.len() * 2 > name.length as usize {
                    // Prefetch the whole file, so that the disk is busy while checksums are computed.
                    handle.will_read(0, stat.bytes);
                }
                stat.identity
            }
            Err(error) => return self.failed(&name, None, error.into()),
        };
        let header = match read_header(&*handle) {
            Ok(header) => header,
            Err(failure) => return self.failed(&name, Some(identity), failure),
        };
        let spec = &header.spec;
        if spec.name != name || spec.identity != want.identity {
            self.folder.discard(&name, Some(identity), "misplaced");
            return Outcome::Misplaced;
        }
        let end = want.start.saturating_add(want.tokens.len());
        let overlaps =
            |span: &&Media| span.start < end && span.start.saturating_add(span.length) > want.start;
        let range =
            want.start.checked_sub(spec.start).map(|start| start..start.saturating_add(want.tokens.len()));
        let same = range.clone().and_then(|range| spec.tokens.get(range)) == Some(&want.tokens[..])
            && spec.media.iter().filter(overlaps).eq(&want.media);
        let Some(range) = range.filter(|_| same) else {
            self.folder.discard(&name, Some(identity), "other_tokens");
            return Outcome::OtherTokens;
        };
        match read_range(&*handle, &header, range, &mut want.destination.slices()) {
            Ok(()) => {}
            Err(failure) => return self.failed(&name, Some(identity), failure),
        }
        Outcome::Read { header: Box::new(header), destination: want.destination }
    }

    /// Maps a failure to an outcome, and removes or forgets the record if it is at fault.
    fn failed(&self, name: &Name, identity: Option<(u64, u64)>, failure: Failure) -> Outcome<D> {
        let discard = |reason| self.folder.discard(name, identity, reason);
        match failure {
            Failure::Slices => Outcome::Unfit,
            Failure::Damaged(Damage::Short) => {
                discard("short");
                Outcome::Short
            }
            Failure::Damaged(Damage::Corrupt(what)) => {
                discard("corrupt");
                Outcome::Corrupt(what)
            }
            Failure::Io(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => {
                    self.folder.forget(name);
                    Outcome::Missing
                }
                // A symbolic link in place of a record.
                Some(Errno::LOOP) => {
                    discard("corrupt");
                    Outcome::Corrupt("type of the file")
                }
                Some(Errno::IO) => {
                    discard("io_error");
                    Outcome::Broken(error)
                }
                _ => Outcome::Unreadable(error),
            },
        }
    }
}
