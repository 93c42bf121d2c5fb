//! Processes that are killed while they write.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use kvcache_disk::{
    files::{Files, Open, OsFiles},
    folder::Folder,
    record::{read_header, read_range},
    writer::Writer,
};

use crate::{
    count,
    make::{PATIENCE, Random, chain, data, disk_usage, namer, part, plain, tokens},
};

const MAX_BYTES: u64 = 2 << 20;

/// Starts this binary again, running one test that only children run.
pub(crate) fn child(test: &str, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--quiet"])
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "other tests run it as a child process"]
fn write_forever() {
    let root = std::env::var("KVCACHE_TEST_ROOT").unwrap();
    let seed: u32 = std::env::var("KVCACHE_TEST_SEED").unwrap().parse().unwrap();
    let folder = plain(root.as_ref(), MAX_BYTES);
    let writer = Writer::new(Arc::clone(&folder), 1 << 20);
    for round in 0_u32.. {
        let path = chain(&namer("m"), &tokens(seed + round, 900), &[300, 600, 900]);
        for record in path {
            while writer.submit(record.spec.clone(), Box::new(record.arrays.clone())).is_err() {
                thread::yield_now();
            }
        }
    }
}

/// Reads every record in the folder and compares its bytes with those derived from its header.
pub(crate) fn check_every_record(folder: &Folder) -> usize {
    let names = folder.names();
    for name in &names {
        let handle = OsFiles.open(&folder.settings().root.join(name.path()), Open::Read).unwrap();
        let header = read_header(&*handle).unwrap_or_else(|failure| panic!("{name}: {failure:?}"));
        assert_eq!(header.spec.name, *name);
        let tokens = header.spec.tokens.len();
        let expected = part(&header.spec, &data(&header.spec), 0, tokens);
        let mut slices: Vec<Vec<u8>> = expected.iter().map(|slice| vec![0; slice.len()]).collect();
        let mut borrowed: Vec<&mut [u8]> = slices.iter_mut().map(Vec::as_mut_slice).collect();
        read_range(&*handle, &header, 0..tokens, &mut borrowed).unwrap();
        assert_eq!(slices, expected);
    }
    names.len()
}

#[test]
fn records_published_before_a_kill_are_correct() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_str().unwrap();
    let mut random = Random(11);
    let (mut records, mut after_a_write) = (0, 0);
    for round in 0..count(30, 1000) {
        let seed = (round * 100_000).to_string();
        let mut child =
            child("kill::write_forever", &[("KVCACHE_TEST_ROOT", path), ("KVCACHE_TEST_SEED", &seed)]);
        let before = disk_usage(root.path());
        // Wait until it has started, so that most kills hit a write.
        let mut waited = 0;
        while disk_usage(root.path()) == before && waited < 5000 {
            thread::sleep(Duration::from_millis(1));
            waited += 1;
        }
        thread::sleep(Duration::from_micros(random.below(30_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let folder = plain(root.path(), MAX_BYTES);
        records += check_every_record(&folder);
        after_a_write += usize::from(disk_usage(root.path()) != before);
        folder.check().unwrap();
        let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_str().unwrap().starts_with(".tmp-")), "{left:?}");
        assert!(disk_usage(root.path()) <= MAX_BYTES);
        folder.leave();
    }
    assert!(
        records > 100 && after_a_write > 0,
        "{records} records, {after_a_write} rounds that changed anything"
    );
    let _ = PATIENCE;
}
