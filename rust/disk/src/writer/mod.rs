//! Writes records in the background: one thread, and a queue that is bounded in bytes and never blocks.

mod queue;

use std::{
    collections::HashSet,
    mem,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    folder::{Folder, Put, Refusal, deadline},
    name::Name,
    record::Spec,
};
use queue::Shared;

/// Owns the bytes of a record's arrays until they are written. Dropped on the writer's thread or, if the
/// record is refused or cancelled, on the caller's.
pub trait Source: Send {
    /// Returns the arrays in the order of [`Spec::arrays`].
    ///
    /// Caller guarantees: called at most once, on the writer's thread.
    /// Must: keep the bytes unchanged until the source is dropped.
    fn arrays(&self) -> Vec<&[u8]>;
}

impl Source for Vec<Vec<u8>> {
    fn arrays(&self) -> Vec<&[u8]> {
        self.iter().map(Vec::as_slice).collect()
    }
}

/// The result of [`Writer::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// Added to the queue.
    Queued,
    /// Already queued or, as far as this process knows, on disk; the source is dropped. If another process
    /// has removed the record, the writer's thread notices, and the next submission is queued.
    Duplicate,
}

/// The result of [`Writer::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// Removed from the queue along with everything queued below it. The sources are dropped.
    Removed,
    /// Being written right now. Its source lives until the write ends.
    Writing,
    /// Not in the queue.
    Absent,
}

/// Writes records into a folder, in order of submission.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread. The arrays of all queued records, including the one being written, hold at most
    /// `max_bytes`; a larger record is never written.
    pub fn new(folder: Arc<Folder>, max_bytes: u64) -> Self {
        let shared = Arc::new(Shared { folder, queue: Mutex::default(), changed: Condvar::new(), max_bytes });
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("kvcache-write".into()).spawn(move || worker.run()).ok();
        shared.lock().closed = thread.is_none();
        Self { shared, thread: Mutex::new(thread) }
    }

    /// Queues a record. Never waits for the disk, does no I/O and copies no bytes. O(arrays).
    ///
    /// Submit a path from head to tail. If a record is refused, all records below it are refused too, with
    /// [`Refusal::Parent`], so a path never has gaps. Refusals count in the folder's stats.
    ///
    /// # Errors
    /// Why the record is not queued. The source is dropped.
    pub fn submit(&self, spec: Spec, source: Box<dyn Source>) -> Result<Submitted, Refusal> {
        let submitted = self.shared.submit(spec, source);
        match &submitted {
            Ok(Submitted::Duplicate) => self.shared.folder.count_duplicate(),
            Err(refusal) => self.shared.folder.count_refusal(refusal),
            Ok(Submitted::Queued) => {}
        }
        submitted
    }

    /// Whether the record is queued or being written.
    pub fn is_pending(&self, name: &Name) -> bool {
        self.shared.lock().names.contains(name)
    }

    /// Bytes of the queued arrays, including the record being written.
    pub fn pending_bytes(&self) -> u64 {
        self.shared.lock().bytes
    }

    /// The records finished since the last call, in order: written, already on disk, or refused. At most the
    /// last 65,536; for older ones ask [`Folder::contains`].
    pub fn take_finished(&self) -> Vec<(Name, Result<Put, Refusal>)> {
        mem::take(&mut self.shared.lock().finished).into()
    }

    /// Removes a record from the queue, along with everything queued below it. Never waits.
    pub fn cancel(&self, name: &Name) -> Cancelled {
        let queue = self.shared.lock();
        if queue.writing == Some(*name) {
            return Cancelled::Writing;
        }
        let mut doomed = HashSet::new();
        if queue.names.contains(name) {
            doomed.insert(*name);
        }
        // Parents are queued before their children.
        for item in &queue.items {
            if item.spec.parent.is_some_and(|parent| doomed.contains(&parent)) {
                doomed.insert(item.spec.name);
            }
        }
        let removes = !doomed.is_empty();
        self.shared.discard(queue, |item| doomed.contains(&item.spec.name), || Refusal::Cancelled);
        if removes { Cancelled::Removed } else { Cancelled::Absent }
    }

    /// Removes all records from the queue for which `doomed` is true. It must also be true for all records
    /// below them.
    pub fn cancel_where(&self, mut doomed: impl FnMut(&Name) -> bool) {
        self.shared.discard(self.shared.lock(), |item| doomed(&item.spec.name), || Refusal::Cancelled);
    }

    /// Waits until nothing is queued or being written, including records submitted during the wait. Returns
    /// `false` after `timeout`.
    pub fn flush(&self, timeout: Duration) -> bool {
        let end = deadline(timeout);
        let mut queue = self.shared.lock();
        while !queue.names.is_empty() || !queue.unconfirmed.is_empty() || queue.confirming {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            let waited = self.shared.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Stops accepting records, writes the queued ones for at most `timeout`, discards the rest, and ends the
    /// thread. Returns `false` if any were discarded or a write is still blocked in the system; the thread
    /// then keeps its source and ends when the system call returns. A second call does nothing.
    pub fn close(&self, timeout: Duration) -> bool {
        self.shared.lock().closed = true;
        let drained = self.flush(timeout);
        let mut queue = self.shared.lock();
        queue.unconfirmed.clear();
        queue.stopped = true;
        let stuck = queue.writing.is_some();
        self.shared.discard(queue, |_| true, || Refusal::Closed);
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| !stuck) {
            let _ = thread.join();
        }
        drained
    }
}

impl Drop for Writer {
    /// Like [`close`](Self::close), without waiting.
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}
