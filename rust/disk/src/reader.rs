//! Reading many records at once, by several threads, until a deadline.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    folder::{Folder, Hold, deadline},
    name::{Identity, Media, Name},
    record::{Damage, Failure, Header, read_header, read_range},
};

/// Owns the memory that a record is read into, and gives it back with the outcome. A read that a stalled disk
/// keeps beyond the deadline keeps it, and drops it when the disk answers: so no thread ever writes into
/// memory that somebody else uses.
pub trait Destination: Send + 'static {
    /// The slices that [`read_range`] asks for: array by array, for each index of the axes before that of
    /// tokens one of the range's rows. Called once, on a reading thread.
    fn slices(&mut self) -> Vec<&mut [u8]>;
}

impl Destination for Vec<Vec<u8>> {
    fn slices(&mut self) -> Vec<&mut [u8]> {
        self.iter_mut().map(Vec::as_mut_slice).collect()
    }
}

/// One record, or a part of one, that is wanted.
#[derive(Debug)]
pub struct Want<D> {
    /// Its name.
    pub name: Name,
    /// What it must have been written for.
    pub identity: Arc<Identity>,
    /// Position in the prompt of the first token wanted. For arrays that cannot be cut this changes nothing.
    pub start: usize,
    /// The tokens wanted, which the record must have at that position.
    pub tokens: Vec<u32>,
    /// The media spans that overlap these tokens, which must be the record's.
    pub media: Vec<Media>,
    /// Where the bytes go.
    pub destination: D,
}

/// What became of a [`Want`].
#[derive(Debug)]
pub enum Outcome<D> {
    /// Read, and equal to what was written: names, header, tokens, and a checksum over every byte.
    Read {
        /// What the record says of itself.
        header: Box<Header>,
        /// The memory, filled.
        destination: D,
    },
    /// No such file.
    Missing,
    /// The file ends too early. Removed.
    Short,
    /// A checksum or the header is wrong; the text says which. Removed.
    Corrupt(&'static str),
    /// The header is whole, and that of another name or identity. Removed.
    Misplaced,
    /// The record has other tokens or media. Removed.
    OtherTokens,
    /// The device failed. Removed.
    Broken(io::Error),
    /// The file system failed in a way that is not the record's fault. The record stays.
    Unreadable(io::Error),
    /// The destination's slices are not those that the record asks for. The record stays.
    Unfit,
    /// Not done at the deadline, or never begun since earlier reads are still stuck. The record stays; the
    /// destination is lost.
    Late,
    /// An earlier record of the same call could not be read.
    Skipped,
}

impl<D> Outcome<D> {
    /// The reason's name in [`Stats`](crate::folder::Stats).
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Missing => "missing",
            Self::Short => "short",
            Self::Corrupt(_) => "corrupt",
            Self::Misplaced => "misplaced",
            Self::OtherTokens => "other_tokens",
            Self::Broken(_) => "io_error",
            Self::Unreadable(_) => "unreadable",
            Self::Unfit => "unfit",
            Self::Late => "late",
            Self::Skipped => "skipped",
        }
    }

    /// Whether it was read.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }
}

/// Reads records of one folder.
#[derive(Debug)]
pub struct Reader {
    folder: Arc<Folder>,
    threads: usize,
    /// Threads of calls that have returned late: the disk has them still.
    stuck: Arc<AtomicUsize>,
}

/// Bytes of the next record that are asked for ahead of time.
const READ_AHEAD: u64 = 32 << 20;

/// What the threads of one call share.
struct Jobs<D> {
    folder: Arc<Folder>,
    queue: Mutex<VecDeque<(usize, Duration, Want<D>)>>,
    /// Records after this one are of no use.
    first_failure: AtomicUsize,
    abandoned: AtomicBool,
    /// Until all are read, or, where that is late, until the last thread has ended.
    hold: Mutex<Option<Hold>>,
    crew: Mutex<Crew>,
    stuck: Arc<AtomicUsize>,
}

/// The threads of one call.
#[derive(Default)]
struct Crew {
    live: usize,
    /// The call has returned without them: they are counted as stuck.
    late: bool,
}

impl Reader {
    /// Reads with up to `threads` threads a call; they live as long as the call, or as the disk keeps them.
    /// While it keeps as many as a call would start, calls give up at once: so a disk that hangs costs one
    /// deadline, not one each, and no more than twice as many threads.
    pub fn new(folder: Arc<Folder>, threads: usize) -> Self {
        Self { folder, threads: threads.max(1), stuck: Arc::default() }
    }

    /// Reads a path's records, in order from head to tail, and gives their outcomes in that order. Returns at
    /// the latest when `timeout` is over, whatever the disk does. Where one fails, later ones not yet begun
    /// are skipped. No record is evicted by this process meanwhile. What was read and verified counts as used
    /// now; what is no good is removed; nothing else changes. Never panics.
    pub fn read<D: Destination>(&self, wants: Vec<Want<D>>, timeout: Duration) -> Vec<Outcome<D>> {
        let (began, end) = (Instant::now(), deadline(timeout));
        let mut outcomes: Vec<Outcome<D>> = wants.iter().map(|_| Outcome::Late).collect();
        let names: Vec<Name> = wants.iter().map(|want| want.name).collect();
        let ticks = self.folder.ticks(wants.len());
        let jobs = Arc::new(Jobs {
            queue: Mutex::new(
                wants.into_iter().zip(ticks).enumerate().map(|(i, (w, t))| (i, t, w)).collect(),
            ),
            folder: Arc::clone(&self.folder),
            first_failure: AtomicUsize::new(usize::MAX),
            abandoned: AtomicBool::new(false),
            hold: Mutex::new(Some(self.folder.hold(&names))),
            crew: Mutex::default(),
            stuck: Arc::clone(&self.stuck),
        });
        let (sender, receiver) = mpsc::channel();
        let hangs = self.stuck.load(Ordering::Relaxed) >= self.threads;
        for _ in 0..if hangs { 0 } else { self.threads.min(outcomes.len()) } {
            let (crew, sender) = (Arc::clone(&jobs), sender.clone());
            lock(&jobs.crew).live += 1;
            let work = move || {
                crew.work(&sender);
                crew.end();
            };
            // Without a thread its share is done by the others, or late.
            if thread::Builder::new().name("kvcache-read".into()).spawn(work).is_err() {
                jobs.end();
            }
        }
        drop(sender);
        let mut pending = outcomes.len();
        while pending > 0 {
            let left = end.saturating_duration_since(Instant::now());
            let Ok((index, outcome)) = receiver.recv_timeout(left) else { break };
            outcomes[index] = outcome;
            pending -= 1;
        }
        if pending == 0 {
            lock(&jobs.hold).take();
        } else {
            jobs.abandon();
        }
        self.count(&outcomes, began.elapsed());
        outcomes
    }

    fn count<D>(&self, outcomes: &[Outcome<D>], time: Duration) {
        let (mut records, mut bytes) = (0, 0);
        for outcome in outcomes {
            if let Outcome::Read { header, .. } = outcome {
                records += 1;
                bytes += header.file_bytes - header.payload;
            } else {
                self.folder.count_miss(outcome.reason());
            }
        }
        self.folder.count_read(records, bytes, time);
    }
}

/// What these locks protect is never half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D> Jobs<D> {
    /// A thread has ended, whenever that is.
    fn end(&self) {
        let mut crew = lock(&self.crew);
        crew.live -= 1;
        if crew.late {
            self.stuck.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The call returns without its threads.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        let mut crew = lock(&self.crew);
        crew.late = true;
        self.stuck.fetch_add(crew.live, Ordering::Relaxed);
    }
}

impl<D: Destination> Jobs<D> {
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
            // So that the disk has work while this record is copied and verified.
            if let Some((name, tokens)) = next
                && tokens * 2 > name.length as usize
                && let Ok(handle) = self.folder.open_record(&name)
            {
                handle.will_read(0, READ_AHEAD);
            }
            let outcome = if index > self.first_failure.load(Ordering::Relaxed) {
                Outcome::Skipped
            } else {
                // A destination may panic; a reader may not.
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
                    // All at once: the disk does not rest while checksums are computed.
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

    /// What a failure means, and what follows for the record.
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
                // A link where a record should be.
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
