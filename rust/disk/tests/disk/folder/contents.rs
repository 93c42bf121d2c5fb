//! Modes, links, damaged and leftover files, other processes' records, removal.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    sync::Arc,
    time::Duration,
};

use kvcache_disk::{
    files::OsFiles,
    folder::{Put, State},
    name::Name,
};

use super::{LEDGER, RECORD, path, put, there};
use crate::make::{HandClock, chain, disk_usage, namer, open, plain, reads, settings, tokens};

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
fn only_temporary_files_of_dead_processes_are_removed() {
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
fn a_damaged_ledger_is_recounted() {
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
fn a_file_of_the_wrong_length_is_replaced() {
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
    assert!(target.exists() && !at.exists(), "the link is removed, its target stays");
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
    assert!(!root.path().join(b[0].spec.name.space.to_string()).exists(), "empty folders are removed");
    assert_eq!(folder.clear().unwrap(), 1);
    assert_eq!(folder.stats().dropped_by_reason["removed"], 4);
}

#[test]
fn headers_lists_a_namespace_and_removes_bad_records() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 20);
    let a = path(1);
    for record in a.iter().chain(&chain(&namer("other"), &tokens(1, 32), &[32])) {
        put(&folder, record);
    }
    folder.leave();
    // One record is damaged, one has the name of another.
    let at = |name: &Name| root.path().join(name.path());
    fs::write(at(&a[2].spec.name), vec![0; 30_000]).unwrap();
    fs::copy(at(&a[0].spec.name), at(&a[1].spec.name)).unwrap();
    let folder = plain(root.path(), 1 << 20);
    let mut specs = Vec::new();
    folder.headers(a[0].spec.name.space, |header, _| {
        specs.push(header.spec);
        true
    });
    assert_eq!(specs, [a[0].spec.clone()]);
    assert_eq!(there(&folder, &a), [true, false, false]);
    assert_eq!(folder.stats().records, 2);
}
