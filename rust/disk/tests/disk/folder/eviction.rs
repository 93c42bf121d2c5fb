//! Room, eviction order, the reserve, and foreign files that take room.

use std::{fs, os::unix::ffi::OsStrExt, sync::Arc};

use kvcache_disk::folder::{Put, Refusal, Settings};

use super::{LEDGER, RECORD, path, put, there};
use crate::{
    faults::{Faults, Plan},
    make::{HandClock, chain, checkpoint, disk_usage, namer, open, plain, reads, segment, settings, tokens},
};

#[test]
fn the_oldest_is_evicted_first_and_tails_before_heads() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), LEDGER + 7 * RECORD);
    let (a, b, c, d) = (path(1), path(2), path(3), path(4));
    for record in a.iter().chain(&b).chain([&d[0]]) {
        put(&folder, record);
    }
    put(&folder, &c[0]);
    assert_eq!(there(&folder, &a), [true, true, false]);
    put(&folder, &c[1]);
    put(&folder, &c[2]);
    assert_eq!((there(&folder, &a), there(&folder, &b)), (vec![false; 3], vec![true; 3]));
    // Reading b makes it more recent than d. c[2] is the last one written.
    for record in &b {
        assert!(reads(&folder, record));
    }
    put(&folder, &a[0]);
    assert_eq!((there(&folder, &b), there(&folder, &d)), (vec![true; 3], vec![false; 3]));
    put(&folder, &a[1]);
    assert_eq!((there(&folder, &b), there(&folder, &c)), (vec![true; 3], vec![true, true, false]));
    assert_eq!(folder.stats().dropped_by_reason["limit"], 5);
    folder.check().unwrap();
}

#[test]
fn the_order_survives_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = (path(1), path(2));
    let folder = plain(root.path(), 1 << 20);
    for record in a.iter().chain(&b) {
        put(&folder, record);
    }
    folder.touch(&a.iter().map(|record| record.spec.name).collect::<Vec<_>>());
    folder.leave();
    let folder = plain(root.path(), LEDGER + 6 * RECORD);
    put(&folder, &path(3)[0]);
    assert_eq!((there(&folder, &a), there(&folder, &b)), (vec![true; 3], vec![true, true, false]));
}

#[test]
fn the_child_of_a_split_node_is_evicted_before_its_parent_even_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let namer = namer("m");
    let one = segment(&namer, &tokens(1, 64), 0, 64, None);
    let mut other = tokens(1, 64);
    other[40..].fill(9);
    // The tree was split at 40, so the child starts in the middle of its parent.
    let child = segment(&namer, &other, 40, 64, Some(one.spec.name));
    let folder = plain(root.path(), 1 << 20);
    put(&folder, &one);
    put(&folder, &child);
    folder.leave();
    let bytes = disk_usage(root.path());
    let folder = plain(root.path(), 1 << 20);
    folder.evict_to(bytes - 1).unwrap();
    assert_eq!(there(&folder, &[one, child]), [true, false]);
}

#[test]
fn a_checkpoint_is_evicted_before_its_segment() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 20);
    let segment = path(1).remove(0);
    let state = checkpoint(&segment);
    assert!(matches!(folder.put(&state.spec, &state.slices()), Err(Refusal::Parent)));
    put(&folder, &segment);
    put(&folder, &state);
    assert!(reads(&folder, &state));
    folder.evict_to(disk_usage(root.path()) - 1).unwrap();
    assert_eq!(there(&folder, &[segment, state]), [true, false]);
}

#[test]
fn paths_have_no_gaps() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 20);
    let a = path(1);
    assert!(matches!(folder.put(&a[1].spec, &a[1].slices()), Err(Refusal::Parent)));
    put(&folder, &a[0]);
    put(&folder, &a[1]);
    assert!(matches!(folder.put(&a[1].spec, &a[1].slices()), Ok(Put::Duplicate)));
    assert_eq!(folder.stats().written_bytes, 2 * RECORD);
}

#[test]
fn a_path_longer_than_the_limit_keeps_its_head() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), LEDGER + 2 * RECORD);
    let (a, b) = (path(1), path(2));
    put(&folder, &a[0]);
    put(&folder, &a[1]);
    assert!(matches!(folder.put(&a[2].spec, &a[2].slices()), Err(Refusal::Room)));
    assert_eq!(there(&folder, &a), [true, true, false]);
    // Another path replaces it.
    put(&folder, &b[0]);
    put(&folder, &b[1]);
    assert!(reads(&folder, &b[1]));
    let small = tempfile::tempdir().unwrap();
    let folder = plain(small.path(), LEDGER + RECORD - 1);
    assert!(matches!(folder.put(&a[0].spec, &a[0].slices()), Err(Refusal::Room | Refusal::TooLarge)));
    let folder = plain(&small.path().join("b"), RECORD - 1);
    assert!(matches!(folder.put(&a[0].spec, &a[0].slices()), Err(Refusal::TooLarge)));
}

#[test]
fn held_records_stay() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), LEDGER + 3 * RECORD);
    let a = path(1);
    for record in &a {
        put(&folder, record);
    }
    let hold = folder.hold(&a.iter().map(|record| record.spec.name).collect::<Vec<_>>());
    let b = path(2);
    assert!(matches!(folder.put(&b[0].spec, &b[0].slices()), Err(Refusal::Room)));
    drop(hold);
    put(&folder, &b[0]);
}

#[test]
fn other_namespaces_and_foreign_files_count_towards_the_limit() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), LEDGER + 4 * RECORD);
    for namespace in ["a", "b", "c"] {
        put(&folder, &chain(&namer(namespace), &tokens(1, 32), &[32])[0]);
    }
    fs::create_dir(root.path().join("mine")).unwrap();
    fs::write(root.path().join("mine/notes.txt"), vec![0; 20_000]).unwrap();
    folder.rescan().unwrap();
    put(&folder, &path(1)[0]);
    assert_eq!(folder.stats().records, 2);
    assert!(disk_usage(root.path()) <= LEDGER + 4 * RECORD);
    let no_text = std::ffi::OsStr::from_bytes(b"mine/\xFF");
    if fs::write(root.path().join(no_text), vec![0; 40_000]).is_err() {
        // The file system accepts only UTF-8 names.
        fs::write(root.path().join("mine/text"), vec![0; 40_000]).unwrap();
    }
    fs::write(root.path().join("mine/notes.txt"), vec![0; 20_000]).unwrap();
    folder.rescan().unwrap();
    let b = path(2);
    assert!(matches!(folder.put(&b[0].spec, &b[0].slices()), Err(Refusal::Room)));
    assert_eq!(folder.clear().unwrap(), 2);
    assert_eq!(fs::read(root.path().join("mine/notes.txt")).unwrap().len(), 20_000, "not ours");
    folder.check().unwrap();
}

#[test]
fn a_folder_over_its_limit_is_trimmed_on_opening() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 20);
    let (a, b) = (path(1), path(2));
    for record in a.iter().chain(&b) {
        put(&folder, record);
    }
    drop(folder);
    let folder = plain(root.path(), LEDGER + 4 * RECORD);
    assert!(disk_usage(root.path()) <= LEDGER + 4 * RECORD);
    assert_eq!((there(&folder, &a), there(&folder, &b)), (vec![true, false, false], vec![true; 3]));
}

#[test]
fn the_reserve_is_kept_and_a_volume_filled_by_others_evicts_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (files, clock) = (Faults::new(), HandClock::new());
    let settings = Settings { reserve: 1_000_000, ..settings(root.path(), 1 << 30) };
    let folder = open(settings, Arc::clone(&files) as _, &clock);
    let a = path(1);
    files.plan(Plan { available: Some(2_000_000), ..Plan::default() });
    for record in &a {
        put(&folder, record);
    }
    // Evicting all our records would not restore the reserve, so none is evicted.
    files.plan(Plan { available: Some(900_000), ..Plan::default() });
    let b = path(2);
    assert!(matches!(folder.put(&b[0].spec, &b[0].slices()), Err(Refusal::Reserve)));
    assert_eq!(there(&folder, &a), [true; 3]);
    // Evictions free nothing, as on a volume with snapshots: evict no more than was lacking.
    files.plan(Plan { available: Some(1_000_000), ..Plan::default() });
    assert!(matches!(folder.put(&b[0].spec, &b[0].slices()), Err(Refusal::Reserve)));
    assert_eq!(there(&folder, &a), [true, true, false]);
    folder.check().unwrap();
}
