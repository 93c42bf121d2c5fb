//! The queue of a writer, and the loop of its thread.

use std::{
    collections::{HashSet, VecDeque},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{Source, Submitted};
use crate::{
    folder::{Folder, Put, Refusal},
    name::Name,
    record::Spec,
};

/// Maximum results kept for [`Writer::take_finished`]. The oldest are dropped.
const MAX_FINISHED: usize = 1 << 16;

/// Maximum names waiting to be confirmed on disk.
const MAX_UNCONFIRMED: usize = 4096;

/// Maximum records written between two syncs of folders.
const BATCH: usize = 32;

pub(super) struct Item {
    pub(super) spec: Spec,
    source: Box<dyn Source>,
    bytes: u64,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) items: VecDeque<Item>,
    /// The names of `items`, and of the record being written.
    pub(super) names: HashSet<Name>,
    pub(super) bytes: u64,
    /// Records that the index lists as on disk. The thread checks that they are.
    pub(super) unconfirmed: VecDeque<Name>,
    pub(super) confirming: bool,
    pub(super) writing: Option<Name>,
    pub(super) finished: VecDeque<(Name, Result<Put, Refusal>)>,
    pub(super) closed: bool,
    pub(super) stopped: bool,
}

pub(super) struct Shared {
    pub(super) folder: Arc<Folder>,
    pub(super) queue: Mutex<Queue>,
    pub(super) changed: Condvar,
    pub(super) max_bytes: u64,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn submit(&self, spec: Spec, source: Box<dyn Source>) -> Result<Submitted, Refusal> {
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
            if queue.unconfirmed.len() < MAX_UNCONFIRMED {
                queue.unconfirmed.push_back(spec.name);
                self.changed.notify_all();
            }
            return Ok(Submitted::Duplicate);
        }
        // Until the scan has ended the index is incomplete. `Folder::put` checks the parent on disk anyway.
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

    /// Removes items from the queue, and drops them after unlocking it, since dropping a source may be slow.
    pub(super) fn discard(
        &self,
        mut queue: MutexGuard<'_, Queue>,
        mut doomed: impl FnMut(&Item) -> bool,
        refusal: impl Fn() -> Refusal,
    ) {
        let (discarded, kept): (VecDeque<Item>, _) =
            mem::take(&mut queue.items).into_iter().partition(|item| doomed(item));
        queue.items = kept;
        for item in &discarded {
            queue.bytes -= item.bytes;
            queue.names.remove(&item.spec.name);
            self.folder.count_refusal(&refusal());
            queue.finish(item.spec.name, Err(refusal()));
        }
        drop(queue);
        self.changed.notify_all();
    }

    pub(super) fn run(&self) {
        let mut unsynced = 0;
        loop {
            let mut queue = self.lock();
            if let Some(name) = queue.unconfirmed.pop_front() {
                queue.confirming = true;
                drop(queue);
                self.folder.confirm(&name);
                self.lock().confirming = false;
                self.changed.notify_all();
                continue;
            }
            let item = loop {
                match queue.items.pop_front() {
                    Some(item) => break Some(item),
                    None if queue.stopped => break None,
                    None if unsynced > 0 || !queue.unconfirmed.is_empty() => break None,
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
            // `flush` guarantees durability, so sync before the last record of a batch counts as finished.
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
