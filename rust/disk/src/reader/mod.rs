//! Reads many records at once, on several threads, until a deadline.

mod jobs;
mod want;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use crate::folder::{Folder, deadline};
use jobs::Jobs;

pub use want::{Destination, Outcome, Want};

/// Reads records of one folder.
#[derive(Debug)]
pub struct Reader {
    folder: Arc<Folder>,
    threads: usize,
    /// Threads that have outlived their call because the disk still blocks them.
    stuck: Arc<AtomicUsize>,
}

impl Reader {
    /// Creates a reader that uses up to `threads` threads per call. They end with the call, or when the disk
    /// releases them. While `threads` of them are stuck, calls return `Late` at once, so a disk that hangs
    /// costs one deadline in all instead of one per call, and at most twice `threads` threads.
    pub fn new(folder: Arc<Folder>, threads: usize) -> Self {
        Self { folder, threads: threads.max(1), stuck: Arc::default() }
    }

    /// Reads the records of a path, ordered from head to tail, and returns their outcomes in that order.
    /// Returns within `timeout`, whatever the disk does. After a failure, later records not yet started are
    /// skipped. This process evicts none of them during the call. Records that are read and verified become
    /// the most recently used; damaged ones are removed; nothing else changes. Never panics.
    pub fn read<D: Destination>(&self, wants: Vec<Want<D>>, timeout: Duration) -> Vec<Outcome<D>> {
        let (began, end) = (Instant::now(), deadline(timeout));
        let mut outcomes: Vec<Outcome<D>> = wants.iter().map(|_| Outcome::Late).collect();
        let jobs = Jobs::new(&self.folder, wants, &self.stuck);
        let (sender, receiver) = mpsc::channel();
        if self.stuck.load(Ordering::Relaxed) < self.threads {
            for _ in 0..self.threads.min(outcomes.len()) {
                jobs.start_thread(sender.clone());
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
            jobs.finish();
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
