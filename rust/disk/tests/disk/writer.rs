//! The write queue: bounded, non-blocking, without gaps in paths.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use kvcache_disk::{
    folder::{Put, Refusal},
    writer::{Cancelled, Source, Submitted, Writer},
};

use crate::{
    faults::{Faults, Op, Plan},
    make::{HandClock, PATIENCE, Record, chain, checkpoint, namer, open, plain, reads, settings, tokens},
};

const PAYLOAD: u64 = 2 * 512;

fn path(seed: u32) -> Vec<Record> {
    chain(&namer("m"), &tokens(seed, 160), &[32, 64, 96, 128, 160])
}

fn submit(writer: &Writer, record: &Record) -> Result<Submitted, Refusal> {
    writer.submit(record.spec.clone(), Box::new(record.arrays.clone()))
}

fn is_queued(submitted: &Result<Submitted, Refusal>) -> bool {
    matches!(submitted, Ok(Submitted::Queued))
}

#[test]
fn submitted_records_are_on_disk_after_a_flush_and_written_once() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let writer = Writer::new(Arc::clone(&folder), 1 << 20);
    let mut path = path(1);
    path.push(checkpoint(&path[4]));
    for record in &path {
        assert!(is_queued(&submit(&writer, record)));
        assert!(matches!(submit(&writer, record), Ok(Submitted::Duplicate)));
    }
    assert!(writer.flush(PATIENCE));
    let written = folder.stats().written_bytes;
    for record in &path {
        assert!(matches!(submit(&writer, record), Ok(Submitted::Duplicate)));
        assert!(reads(&folder, record));
    }
    assert_eq!((folder.stats().written_bytes, writer.pending_bytes()), (written, 0));
    let finished = writer.take_finished();
    assert_eq!(finished.len(), 6);
    for ((name, put), record) in finished.iter().zip(&path) {
        assert_eq!(*name, record.spec.name);
        assert!(matches!(put, Ok(Put::Written)));
    }
    assert!(writer.close(PATIENCE));
    assert!(matches!(submit(&writer, &path[0]), Err(Refusal::Closed)));
}

/// A disk that hangs in the middle of a write.
fn stalled() -> (tempfile::TempDir, Arc<Faults>, Arc<kvcache_disk::folder::Folder>, Writer, Vec<Record>) {
    let root = tempfile::tempdir().unwrap();
    let (files, clock) = (Faults::new(), HandClock::new());
    let folder = open(settings(root.path(), 1 << 30), Arc::clone(&files) as _, &clock);
    let writer = Writer::new(Arc::clone(&folder), 3 * PAYLOAD);
    files.plan(Plan { stall: Some(Op::Touch), ..Plan::default() });
    let path = path(1);
    assert!(is_queued(&submit(&writer, &path[0])));
    while writer.cancel(&path[0].spec.name) != Cancelled::Writing {
        if !writer.is_pending(&path[0].spec.name) {
            // Cancelled before the write began: try again.
            assert!(is_queued(&submit(&writer, &path[0])));
        }
        thread::yield_now();
    }
    writer.take_finished();
    (root, files, folder, writer, path)
}

#[test]
fn a_full_queue_refuses_everything_below_and_never_waits() {
    let (_root, files, folder, writer, path) = stalled();
    assert!(is_queued(&submit(&writer, &path[1])));
    assert!(is_queued(&submit(&writer, &path[2])));
    assert!(matches!(submit(&writer, &path[3]), Err(Refusal::QueueFull)));
    assert!(matches!(submit(&writer, &path[4]), Err(Refusal::Parent)));
    assert_eq!(writer.pending_bytes(), 3 * PAYLOAD);
    assert!(!writer.flush(Duration::from_millis(10)));
    files.resume();
    assert!(writer.flush(PATIENCE));
    let readable: Vec<bool> = path.iter().map(|record| reads(&folder, record)).collect();
    assert_eq!(readable, [true, true, true, false, false]);
    let stats = folder.stats();
    assert_eq!((stats.refused_by_reason["queue_full"], stats.refused_by_reason["parent_missing"]), (1, 1));
    for record in &path[3..] {
        assert!(is_queued(&submit(&writer, record)), "a later store completes the path");
    }
    assert!(writer.flush(PATIENCE));
    assert!(reads(&folder, &path[4]));
}

#[test]
fn a_record_larger_than_the_queue_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let writer = Writer::new(plain(root.path(), 1 << 30), PAYLOAD - 1);
    assert!(matches!(submit(&writer, &path(1)[0]), Err(Refusal::QueueFull)));
}

#[test]
fn cancelling_a_record_cancels_those_below_it() {
    let (_root, files, folder, writer, path) = stalled();
    let other = chain(&namer("m"), &tokens(2, 32), &[32]).remove(0);
    assert!(is_queued(&submit(&writer, &path[1])));
    assert!(is_queued(&submit(&writer, &path[2])));
    assert_eq!(writer.cancel(&path[1].spec.name), Cancelled::Removed);
    assert_eq!(writer.cancel(&path[2].spec.name), Cancelled::Absent);
    assert_eq!(writer.pending_bytes(), PAYLOAD);
    assert!(is_queued(&submit(&writer, &other)));
    files.resume();
    assert!(writer.flush(PATIENCE));
    assert!(reads(&folder, &path[0]) && reads(&folder, &other) && !reads(&folder, &path[1]));
    assert_eq!(folder.stats().records, 2);
}

/// Counts its drops.
struct Loud(Vec<Vec<u8>>, Arc<AtomicUsize>);

impl Source for Loud {
    fn arrays(&self) -> Vec<&[u8]> {
        self.0.iter().map(Vec::as_slice).collect()
    }
}

impl Drop for Loud {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn closing_on_a_stalled_disk_discards_the_queue_and_drops_every_source_once() {
    let (_root, files, folder, writer, path) = stalled();
    let drops = Arc::new(AtomicUsize::new(0));
    for record in &path[1..3] {
        let source = Box::new(Loud(record.arrays.clone(), Arc::clone(&drops)));
        assert!(is_queued(&writer.submit(record.spec.clone(), source)));
    }
    let refused = Box::new(Loud(path[3].arrays.clone(), Arc::clone(&drops)));
    assert!(writer.submit(path[3].spec.clone(), refused).is_err());
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert!(!writer.close(Duration::from_millis(10)), "close returns although the disk hangs");
    assert_eq!(drops.load(Ordering::Relaxed), 3);
    drop(writer);
    assert_eq!(folder.stats().refused_by_reason["closed"], 2);
    files.resume();
    // The write in progress still completes.
    while !reads(&folder, &path[0]) {
        thread::yield_now();
    }
}

#[test]
fn sources_are_dropped_once_written_and_may_panic() {
    struct Bad;
    impl Source for Bad {
        fn arrays(&self) -> Vec<&[u8]> {
            panic!("on purpose")
        }
    }
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let writer = Writer::new(Arc::clone(&folder), 1 << 20);
    let path = path(1);
    let drops = Arc::new(AtomicUsize::new(0));
    assert!(is_queued(&writer.submit(path[0].spec.clone(), Box::new(Bad))));
    assert!(writer.flush(PATIENCE));
    assert!(is_queued(
        &writer.submit(path[0].spec.clone(), Box::new(Loud(path[0].arrays.clone(), Arc::clone(&drops))))
    ));
    assert!(writer.flush(PATIENCE));
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    let wrong = vec![vec![0_u8; 3]; 2];
    assert!(is_queued(&writer.submit(path[1].spec.clone(), Box::new(wrong))));
    assert!(writer.flush(PATIENCE));
    let finished = writer.take_finished();
    assert!(matches!(finished[0].1, Err(Refusal::Invalid(_))));
    assert!(matches!(finished[1].1, Ok(Put::Written)));
    assert!(matches!(finished[2].1, Err(Refusal::Invalid(_))));
    assert!(reads(&folder, &path[0]));
}

#[test]
fn concurrent_submissions() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let writer = Writer::new(Arc::clone(&folder), 1 << 30);
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    thread::scope(|scope| {
        for seed in 0..4 {
            let (writer, sender) = (&writer, &sender);
            scope.spawn(move || {
                for seed in [seed, seed / 2 + 10, 20] {
                    let path = path(seed);
                    for record in &path {
                        submit(writer, record).unwrap();
                    }
                    sender.lock().unwrap().send(path).unwrap();
                }
            });
        }
    });
    assert!(writer.flush(PATIENCE));
    for record in receiver.try_iter().flatten() {
        assert!(reads(&folder, &record));
    }
    assert_eq!(folder.stats().written_records, 5 * (4 + 2 + 1));
    folder.check().unwrap();
}

#[test]
fn a_durable_folder_syncs_every_file_and_each_folder_once_per_batch() {
    let root = tempfile::tempdir().unwrap();
    let (files, clock) = (Faults::new(), HandClock::new());
    let settings = kvcache_disk::folder::Settings { durable: true, ..settings(root.path(), 1 << 30) };
    let folder = open(settings, Arc::clone(&files) as _, &clock);
    let writer = Writer::new(Arc::clone(&folder), 1 << 20);
    files.plan(Plan { stall: Some(Op::Touch), ..Plan::default() });
    let path = path(1);
    for record in &path {
        assert!(is_queued(&submit(&writer, record)));
    }
    files.resume();
    assert!(writer.flush(PATIENCE));
    let syncs = files.calls().iter().filter(|&&op| op == Op::Sync).count();
    // Five files, of which the first may be synced before the count starts; and the folders of five starts,
    // layout, namespace and root.
    assert!((4 + 8..=5 + 8 + 4).contains(&syncs), "{syncs}");
}
