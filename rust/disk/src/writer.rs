//! Writing after the fact: one thread, and a queue bounded in bytes that never makes its caller wait.

use std::{
    collections::{HashSet, VecDeque},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    folder::{Folder, Put, Refusal, deadline},
    name::Name,
    record::Spec,
};

/// Owns the bytes of a record's arrays until they are written. Dropped on the writer's thread, or, where the
/// record is refused or cancelled, on the caller's.
pub trait Source: Send {
    /// The arrays in the order of [`Spec::arrays`]. Called at most once, on the writer's thread. The
    /// implementation guarantees that nothing changes the bytes before it is dropped.
    fn arrays(&self) -> Vec<&[u8]>;
}

impl Source for Vec<Vec<u8>> {
    fn arrays(&self) -> Vec<&[u8]> {
        self.iter().map(Vec::as_slice).collect()
    }
}

/// What became of a record at [`Writer::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// In the queue.
    Queued,
    /// In the queue, or on disk as far as this process knows: nothing is kept. Where another process has
    /// removed it, the thread finds out, and the next submission is queued.
    Duplicate,
}

/// What [`Writer::cancel`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// Given up, with all that was queued below it; the sources are dropped.
    Removed,
    /// Being written at this moment: its source lives on until that ends.
    Writing,
    /// Not in the queue.
    Absent,
}

/// Endings kept for [`Writer::take_finished`] at most; older ones are dropped.
const MAX_FINISHED: usize = 1 << 16;

/// Doubts kept at most.
const MAX_DOUBTS: usize = 4096;

/// Records written between two syncs of folders at most.
const BATCH: usize = 32;

struct Item {
    spec: Spec,
    source: Box<dyn Source>,
    bytes: u64,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Of `items`, and of the one being written.
    names: HashSet<Name>,
    bytes: u64,
    /// Records said to be on disk already: whether they are is looked up on the thread.
    doubts: VecDeque<Name>,
    looking: bool,
    writing: Option<Name>,
    finished: VecDeque<(Name, Result<Put, Refusal>)>,
    closed: bool,
    stopped: bool,
}

struct Shared {
    folder: Arc<Folder>,
    queue: Mutex<Queue>,
    changed: Condvar,
    max_bytes: u64,
}

/// Writes records into a folder, in the order in which they come.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread. The arrays of all records in the queue, the one being written included, have at
    /// most `max_bytes` bytes; a larger record is never written.
    pub fn new(folder: Arc<Folder>, max_bytes: u64) -> Self {
        let shared = Arc::new(Shared { folder, queue: Mutex::default(), changed: Condvar::new(), max_bytes });
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("kvcache-write".into()).spawn(move || worker.run()).ok();
        shared.lock().closed = thread.is_none();
        Self { shared, thread: Mutex::new(thread) }
    }

    /// Queues a record. Never waits for the disk, does no I/O, copies no bytes: O(arrays).
    ///
    /// Submit a path from head to tail. Where one record is refused, all below it are refused too, for
    /// [`Refusal::Parent`]: so there is never a hole. Refusals are counted in the folder's stats.
    ///
    /// # Errors
    /// Why it is not in the queue. The source is dropped.
    pub fn submit(&self, spec: Spec, source: Box<dyn Source>) -> Result<Submitted, Refusal> {
        let submitted = self.shared.submit(spec, source);
        match &submitted {
            Ok(Submitted::Duplicate) => self.shared.folder.count_duplicate(),
            Err(refusal) => self.shared.folder.count_refusal(refusal),
            Ok(Submitted::Queued) => {}
        }
        submitted
    }

    /// Whether the record is in the queue or being written.
    pub fn is_pending(&self, name: &Name) -> bool {
        self.shared.lock().names.contains(name)
    }

    /// Bytes of arrays in the queue, the record being written included.
    pub fn pending_bytes(&self) -> u64 {
        self.shared.lock().bytes
    }

    /// What ended since the last call, in order: written, there already, or refused. The last 65,536 at most;
    /// [`Folder::contains`] has the rest.
    pub fn take_finished(&self) -> Vec<(Name, Result<Put, Refusal>)> {
        mem::take(&mut self.shared.lock().finished).into()
    }

    /// Gives a queued record up, and what is queued below it. Never waits.
    pub fn cancel(&self, name: &Name) -> Cancelled {
        let queue = self.shared.lock();
        if queue.writing == Some(*name) {
            return Cancelled::Writing;
        }
        let mut doomed = HashSet::new();
        if queue.names.contains(name) {
            doomed.insert(*name);
        }
        // Parents come before their children.
        for item in &queue.items {
            if item.spec.parent.is_some_and(|parent| doomed.contains(&parent)) {
                doomed.insert(item.spec.name);
            }
        }
        let found = !doomed.is_empty();
        self.shared.give_up(queue, |item| doomed.contains(&item.spec.name), || Refusal::Cancelled);
        if found { Cancelled::Removed } else { Cancelled::Absent }
    }

    /// Gives all queued records up that `doomed` names. It has to name what hangs below them too.
    pub fn cancel_where(&self, mut doomed: impl FnMut(&Name) -> bool) {
        self.shared.give_up(self.shared.lock(), |item| doomed(&item.spec.name), || Refusal::Cancelled);
    }

    /// Waits until nothing is queued or being written; `false` after `timeout`. Records submitted meanwhile
    /// are waited for, too.
    pub fn flush(&self, timeout: Duration) -> bool {
        let end = deadline(timeout);
        let mut queue = self.shared.lock();
        while !queue.names.is_empty() || !queue.doubts.is_empty() || queue.looking {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            let waited = self.shared.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Takes no more records, writes queued ones for at most `timeout`, gives the rest up, and ends the
    /// thread. `false` where something was given up or a write is still stuck in the system; its thread then
    /// ends when the system lets it, and keeps the source until then. A second call does nothing.
    pub fn close(&self, timeout: Duration) -> bool {
        self.shared.lock().closed = true;
        let drained = self.flush(timeout);
        let mut queue = self.shared.lock();
        queue.doubts.clear();
        queue.stopped = true;
        let stuck = queue.writing.is_some();
        self.shared.give_up(queue, |_| true, || Refusal::Closed);
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| !stuck) {
            let _ = thread.join();
        }
        drained
    }
}

impl Drop for Writer {
    /// As [`close`](Self::close) without waiting.
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, spec: Spec, source: Box<dyn Source>) -> Result<Submitted, Refusal> {
        self.folder.writable()?;
        let extents = spec.extents().map_err(|error| Refusal::Invalid(error.0))?;
        let bytes = extents.iter().map(|extent| extent.bytes() as u64).sum::<u64>();
        let mut queue = self.lock();
        if queue.closed {
            return Err(Refusal::Closed);
        }
        if queue.names.contains(&spec.name) {
            return Ok(Submitted::Duplicate);
        }
        if self.folder.contains(&spec.name) {
            if queue.doubts.len() < MAX_DOUBTS {
                queue.doubts.push_back(spec.name);
                self.changed.notify_all();
            }
            return Ok(Submitted::Duplicate);
        }
        // Before the scan has ended nobody knows what is on disk; then the writer looks before it writes.
        let known = |parent: &Name| {
            queue.names.contains(parent) || self.folder.contains(parent) || !self.folder.is_ready()
        };
        if !spec.parent.as_ref().is_none_or(known) {
            return Err(Refusal::Parent);
        }
        if bytes > self.max_bytes.saturating_sub(queue.bytes) {
            return Err(Refusal::QueueFull);
        }
        queue.bytes += bytes;
        queue.names.insert(spec.name);
        queue.items.push_back(Item { spec, source, bytes });
        drop(queue);
        self.changed.notify_all();
        Ok(Submitted::Queued)
    }

    /// Takes items out of the queue and drops them once it is unlocked: a source's drop may be slow.
    fn give_up(
        &self,
        mut queue: MutexGuard<'_, Queue>,
        mut doomed: impl FnMut(&Item) -> bool,
        refusal: impl Fn() -> Refusal,
    ) {
        let (given_up, kept): (VecDeque<Item>, _) =
            mem::take(&mut queue.items).into_iter().partition(|item| doomed(item));
        queue.items = kept;
        for item in &given_up {
            queue.bytes -= item.bytes;
            queue.names.remove(&item.spec.name);
            self.folder.count_refusal(&refusal());
            queue.finish(item.spec.name, Err(refusal()));
        }
        drop(queue);
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut unsynced = 0;
        loop {
            let mut queue = self.lock();
            if let Some(name) = queue.doubts.pop_front() {
                queue.looking = true;
                drop(queue);
                self.folder.look(&name);
                self.lock().looking = false;
                self.changed.notify_all();
                continue;
            }
            let item = loop {
                match queue.items.pop_front() {
                    Some(item) => break Some(item),
                    None if queue.stopped => break None,
                    None if unsynced > 0 || !queue.doubts.is_empty() => break None,
                    None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let Some(Item { spec, source, bytes }) = item else {
                let stopped = queue.stopped;
                drop(queue);
                if unsynced > 0 {
                    self.folder.sync();
                    unsynced = 0;
                }
                if stopped {
                    return;
                }
                continue;
            };
            queue.writing = Some(spec.name);
            drop(queue);
            let put = catch_unwind(AssertUnwindSafe(|| self.folder.put(&spec, &source.arrays())));
            let put = put.unwrap_or_else(|_| {
                let refusal = Refusal::Invalid("the source of the record panicked".into());
                self.folder.count_refusal(&refusal);
                Err(refusal)
            });
            let _ = catch_unwind(AssertUnwindSafe(|| drop(source)));
            unsynced += 1;
            // What flush promises includes durability: sync before the last record of a batch is done.
            if unsynced >= BATCH || self.lock().items.is_empty() {
                self.folder.sync();
                unsynced = 0;
            }
            let mut queue = self.lock();
            queue.bytes -= bytes;
            queue.names.remove(&spec.name);
            queue.writing = None;
            queue.finish(spec.name, put);
            drop(queue);
            self.changed.notify_all();
        }
    }
}

impl Queue {
    fn finish(&mut self, name: Name, put: Result<Put, Refusal>) {
        if self.finished.len() == MAX_FINISHED {
            self.finished.pop_front();
        }
        self.finished.push_back((name, put));
    }
}
