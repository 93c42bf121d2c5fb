//! A full volume, a failing device, an unwritable folder, a deleted folder.

use std::{fs, sync::Arc, time::Duration};

use kvcache_disk::{
    files::OsFiles,
    folder::{Folder, Put, Refusal, State},
};
use rustix::io::Errno;

use super::records;
use crate::{
    faults::{Faults, Op, Plan},
    make::{HandClock, open, reads, settings},
};

fn io_error(put: &Result<Put, Refusal>) -> bool {
    matches!(put, Err(Refusal::Io(_)))
}

#[test]
fn a_full_volume_evicts_as_much_as_it_needs_and_pauses() {
    let root = tempfile::tempdir().unwrap();
    let (files, clock) = (Faults::new(), HandClock::new());
    let folder = open(settings(root.path(), 1 << 30), Arc::clone(&files) as _, &clock);
    let paths = records();
    for record in paths[0][..3].iter().chain(&paths[1]) {
        folder.put(&record.spec, &record.slices()).unwrap();
    }
    let full =
        Plan { fail: Some((0, Errno::NOSPC.raw_os_error(), true)), only: Some(Op::Write), ..Plan::default() };
    files.plan(full);
    let before = folder.stats().records;
    let [a, b, ..] = &paths[2][..] else { unreachable!() };
    assert!(io_error(&folder.put(&a.spec, &a.slices())));
    assert!(folder.stats().records + 2 >= before, "{:?}", folder.stats());
    assert!(matches!(folder.put(&a.spec, &a.slices()), Err(Refusal::Paused)));
    files.resume();
    assert!(matches!(folder.put(&b.spec, &b.slices()), Err(Refusal::Paused)), "still");
    clock.advance(Duration::from_secs(61));
    folder.put(&a.spec, &a.slices()).unwrap();
    assert!(reads(&folder, a));
    folder.check().unwrap();
}

#[test]
fn three_device_errors_make_a_folder_read_only() {
    let root = tempfile::tempdir().unwrap();
    let (files, clock) = (Faults::new(), HandClock::new());
    let folder = open(settings(root.path(), 1 << 30), Arc::clone(&files) as _, &clock);
    let paths = records();
    let [first, second, ..] = &paths[1][..] else { unreachable!() };
    folder.put(&first.spec, &first.slices()).unwrap();
    let broken =
        Plan { fail: Some((0, Errno::IO.raw_os_error(), true)), only: Some(Op::Sync), ..Plan::default() };
    files.plan(broken);
    folder.put(&second.spec, &second.slices()).unwrap();
    files.plan(Plan { only: Some(Op::Rename), ..broken });
    for _ in 0..3 {
        assert!(io_error(&folder.put(&paths[2][0].spec, &paths[2][0].slices())));
    }
    files.resume();
    clock.advance(Duration::from_secs(3600));
    assert!(matches!(folder.put(&paths[2][0].spec, &paths[2][0].slices()), Err(Refusal::ReadOnly)));
    assert!(matches!(folder.stats().state, State::ReadOnly(_)));
    assert!(reads(&folder, first), "reads still work");
    folder.check().unwrap();
}

#[test]
fn an_unwritable_folder_is_off_and_retried_every_minute() {
    let root = tempfile::tempdir().unwrap();
    let (files, clock) = (Faults::new(), HandClock::new());
    let refuse = Plan {
        fail: Some((0, Errno::ACCESS.raw_os_error(), true)),
        only: Some(Op::MakeFolder),
        ..Plan::default()
    };
    files.plan(refuse);
    let folder = open(settings(&root.path().join("a/b"), 1 << 30), Arc::clone(&files) as _, &clock);
    let State::Off(reason) = folder.stats().state else { panic!("{:?}", folder.stats()) };
    assert!(reason.contains("ermission"), "{reason}");
    let record = &records()[1][0];
    files.resume();
    assert!(matches!(folder.put(&record.spec, &record.slices()), Err(Refusal::Off)));
    assert_eq!(files.calls(), [], "no call before the minute is over");
    clock.advance(Duration::from_secs(61));
    folder.put(&record.spec, &record.slices()).unwrap();
    assert_eq!(folder.stats().state, State::On);
    assert!(reads(&folder, record));
}

#[test]
fn a_folder_deleted_by_others_is_created_again() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("kv");
    let clock = HandClock::new();
    let folder: Arc<Folder> = open(settings(&path, 1 << 30), Arc::new(OsFiles), &clock);
    let record = &records()[1][0];
    for _ in 0..3 {
        folder.put(&record.spec, &record.slices()).unwrap();
        assert!(reads(&folder, record));
        fs::remove_dir_all(&path).unwrap();
        assert!(!reads(&folder, record));
        folder.rescan().unwrap();
        assert_eq!(folder.stats().records, 0);
        folder.check().unwrap();
    }
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(folder.put(&record.spec, &record.slices()).unwrap(), Put::Written, "without a scan first");
}
