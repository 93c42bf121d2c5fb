//! Room, order of eviction, scans, what is ours and what is not.

use std::{
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    sync::Arc,
    time::Duration,
};

use kvcache_disk::{
    files::OsFiles,
    folder::{Folder, Put, Refusal, Settings, State},
    name::Name,
};

use crate::{
    faults::{Faults, Plan},
    make::{
        HandClock, Record, chain, checkpoint, disk_usage, namer, open, plain, reads, segment, settings,
        tokens,
    },
};

/// Of one record of 32 tokens: header and two arrays.
const RECORD: u64 = 16 * 1024 + 2 * 512;
const LEDGER: u64 = 4096;

fn path(seed: u32) -> Vec<Record> {
    chain(&namer("m"), &tokens(seed, 96), &[32, 64, 96])
}

fn put(folder: &Folder, record: &Record) {
    assert_eq!(folder.put(&record.spec, &record.slices()).unwrap(), Put::Written);
}

fn there(folder: &Folder, records: &[Record]) -> Vec<bool> {
    records.iter().map(|record| folder.settings().root.join(record.spec.name.path()).exists()).collect()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn everything_is_private() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("a/kv");
    let folder = plain(&deep, 1 << 20);
    put(&folder, &path(1)[0]);
    let mut all = vec![deep.clone(), root.path().join("a")];
    while let Some(at) = all.pop() {
        if at.is_dir() {
            assert_eq!(mode(&at), 0o700, "{}", at.display());
            all.extend(
                fs::read_dir(&at)
                    .unwrap()
                    .map(|entry| entry.unwrap().path())
                    .filter(|p| p.starts_with(&deep)),
            );
        } else {
            assert_eq!(mode(&at), 0o600, "{}", at.display());
        }
    }
    drop(folder);
    fs::set_permissions(&deep, fs::Permissions::from_mode(0o755)).unwrap();
    plain(&deep, 1 << 20);
    assert_eq!(mode(&deep), 0o700);
}

#[test]
fn the_oldest_goes_first_and_tails_before_heads() {
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
    // A use makes b younger than d; and c[2] is the one written last.
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
fn a_split_child_goes_before_what_it_hangs_below_even_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let namer = namer("m");
    let one = segment(&namer, &tokens(1, 64), 0, 64, None);
    let mut other = tokens(1, 64);
    other[40..].fill(9);
    // The tree was split at 40: the child starts in the middle of the record above it.
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
fn a_checkpoint_goes_before_its_segment() {
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
fn never_a_hole() {
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
    // Another path is not refused for ever.
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
fn what_is_held_stays() {
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
fn other_namespaces_layouts_and_strange_files_count() {
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
        // A file system that takes only text as names.
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
fn a_folder_over_its_limit_is_trimmed_at_the_start() {
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
fn the_reserve_is_kept_and_a_volume_that_others_fill_purges_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (files, clock) = (Faults::new(), HandClock::new());
    let settings = Settings { reserve: 1_000_000, ..settings(root.path(), 1 << 30) };
    let folder = open(settings, Arc::clone(&files) as _, &clock);
    let a = path(1);
    files.plan(Plan { available: Some(2_000_000), ..Plan::default() });
    for record in &a {
        put(&folder, record);
    }
    // All our records would not bring it back: none goes.
    files.plan(Plan { available: Some(900_000), ..Plan::default() });
    let b = path(2);
    assert!(matches!(folder.put(&b[0].spec, &b[0].slices()), Err(Refusal::Reserve)));
    assert_eq!(there(&folder, &a), [true; 3]);
    // What is evicted does not come back, as with snapshots: no more goes than was lacking.
    files.plan(Plan { available: Some(1_000_000), ..Plan::default() });
    assert!(matches!(folder.put(&b[0].spec, &b[0].slices()), Err(Refusal::Reserve)));
    assert_eq!(there(&folder, &a), [true, true, false]);
    folder.check().unwrap();
}

#[test]
fn temporary_files_of_dead_processes_go_and_those_of_living_ones_stay() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join(".owner-1-1-00000000000000aa"), "").unwrap();
    fs::write(root.path().join(".tmp-00000000000000aa-7"), vec![0; 5000]).unwrap();
    fs::write(root.path().join(".tmp-00000000000000bb-7"), vec![0; 5000]).unwrap();
    let first = plain(root.path(), 1 << 20);
    let names = || {
        let mut names: Vec<String> = fs::read_dir(root.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 2, "{:?}", names());
    let id = names()[1].rsplit_once('-').unwrap().1.to_owned();
    let living = root.path().join(format!(".tmp-{id}-9"));
    fs::write(&living, "").unwrap();
    let second = plain(root.path(), 1 << 20);
    assert!(living.exists());
    first.leave();
    second.rescan().unwrap();
    assert!(!living.exists());
    second.leave();
    assert_eq!(names(), [".ledger"]);
}

#[test]
fn a_damaged_ledger_is_counted_again() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), LEDGER + 3 * RECORD);
    for record in &path(1) {
        put(&folder, record);
    }
    for damage in [vec![], vec![0; 4096], vec![0xFF; 100], vec![7; 5000]] {
        fs::write(root.path().join(".ledger"), damage).unwrap();
        put(&folder, &path(2)[0]);
        assert!(disk_usage(root.path()) <= LEDGER + 3 * RECORD);
        folder.check().unwrap();
        fs::write(root.path().join(".ledger"), "").unwrap();
        folder.remove(&[path(2)[0].spec.name]).unwrap();
    }
}

#[test]
fn a_file_of_another_length_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), LEDGER + 3 * RECORD);
    let record = path(1).remove(0);
    for bytes in [0, 1, 16 * 1024, RECORD - 1, RECORD + 1] {
        fs::create_dir_all(root.path().join(record.spec.name.path()).parent().unwrap()).unwrap();
        fs::write(root.path().join(record.spec.name.path()), vec![0; bytes as usize]).unwrap();
        if bytes % 2 == 0 {
            folder.rescan().unwrap();
        }
        put(&folder, &record);
        assert!(reads(&folder, &record));
        folder.check().unwrap();
    }
}

#[test]
fn links_are_not_followed() {
    let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = plain(root.path(), 1 << 20);
    let record = path(1).remove(0);
    put(&folder, &record);
    let at = root.path().join(record.spec.name.path());
    let target = elsewhere.path().join("record");
    fs::rename(&at, &target).unwrap();
    symlink(&target, &at).unwrap();
    assert!(!reads(&folder, &record));
    assert!(target.exists() && !at.exists(), "the link goes, its target stays");
    put(&folder, &record);
    assert!(reads(&folder, &record));
    assert_eq!(fs::metadata(&target).unwrap().nlink(), 1);
}

#[test]
fn a_root_that_is_a_link_is_used() {
    let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let link = root.path().join("kv");
    symlink(elsewhere.path(), &link).unwrap();
    let folder = plain(&link, 1 << 20);
    assert_eq!(folder.stats().state, State::On);
    put(&folder, &path(1)[0]);
}

#[test]
fn a_root_that_is_a_file_is_off() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("kv"), "x").unwrap();
    let folder = plain(&root.path().join("kv"), 1 << 20);
    assert!(matches!(folder.stats().state, State::Off(_)));
    assert!(!reads(&folder, &path(1)[0]));
    assert_eq!(fs::read(root.path().join("kv")).unwrap(), b"x");
}

#[test]
fn two_folders_of_one_root_see_each_others_records() {
    let root = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let limit = LEDGER + 4 * RECORD;
    let one = open(settings(root.path(), limit), Arc::new(OsFiles), &clock);
    let two = open(settings(root.path(), limit), Arc::new(OsFiles), &clock);
    let (a, b) = (path(1), path(2));
    for record in &a {
        put(&one, record);
        assert!(reads(&two, record));
        assert!(matches!(two.put(&record.spec, &record.slices()), Ok(Put::Duplicate)));
        clock.advance(Duration::from_secs(1));
    }
    for record in &b {
        put(&two, record);
        assert!(disk_usage(root.path()) <= limit);
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!((there(&one, &a), there(&one, &b)), (vec![true, false, false], vec![true; 3]));
    one.check().unwrap();
    two.check().unwrap();
}

#[test]
fn namespaces_and_old_records_can_be_removed() {
    let root = tempfile::tempdir().unwrap();
    let clock = HandClock::new();
    let folder = open(settings(root.path(), 1 << 20), Arc::new(OsFiles), &clock);
    let (a, b) = (path(1), chain(&namer("other"), &tokens(1, 96), &[32, 64, 96]));
    for record in &a {
        put(&folder, record);
    }
    clock.advance(Duration::from_secs(10));
    for record in &b {
        put(&folder, record);
    }
    let time = Duration::from_secs(1_800_000_005);
    assert_eq!(folder.expire(time).unwrap(), 3);
    assert_eq!((there(&folder, &a), there(&folder, &b)), (vec![false; 3], vec![true; 3]));
    put(&folder, &a[0]);
    assert_eq!(folder.remove_namespace(b[0].spec.name.space).unwrap(), 3);
    assert_eq!((there(&folder, &a)[0], there(&folder, &b)), (true, vec![false; 3]));
    assert!(!root.path().join(b[0].spec.name.space.to_string()).exists(), "empty folders go");
    assert_eq!(folder.clear().unwrap(), 1);
    assert_eq!(folder.stats().dropped_by_reason["removed"], 4);
}

#[test]
fn headers_give_a_namespace_back() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 20);
    let a = path(1);
    for record in a.iter().chain(&chain(&namer("other"), &tokens(1, 32), &[32])) {
        put(&folder, record);
    }
    folder.leave();
    // One damaged, one under another's name.
    let at = |name: &Name| root.path().join(name.path());
    fs::write(at(&a[2].spec.name), vec![0; 30_000]).unwrap();
    fs::copy(at(&a[0].spec.name), at(&a[1].spec.name)).unwrap();
    let folder = plain(root.path(), 1 << 20);
    let mut found = Vec::new();
    folder.headers(a[0].spec.name.space, |header, _| {
        found.push(header.spec);
        true
    });
    assert_eq!(found, [a[0].spec.clone()]);
    assert_eq!(there(&folder, &a), [true, false, false]);
    assert_eq!(folder.stats().records, 2);
}
