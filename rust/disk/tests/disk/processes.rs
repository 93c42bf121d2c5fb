//! Two processes on one folder: the limit holds at every moment, and no result is wrong.

use std::{fs, sync::Arc, time::Duration};

use kvcache_disk::{clock::SystemClock, folder::Folder, reader::Reader};

use crate::{
    count,
    faults::{Event, Faults, Trace},
    kill::{check_every_record, child},
    make::{PATIENCE, Random, chain, namer, plain, reads, settings, tokens},
};

const MAX_BYTES: u64 = 500_000;

#[test]
#[ignore = "other tests run it as a child process"]
fn operate() {
    let variable = |name| std::env::var(name).unwrap();
    let root = variable("KVCACHE_TEST_ROOT");
    let mut random = Random(variable("KVCACHE_TEST_SEED").parse().unwrap());
    let operations: usize = variable("KVCACHE_TEST_OPERATIONS").parse().unwrap();
    let files = Faults::logging(variable("KVCACHE_TEST_LOG").as_ref());
    let folder = Folder::open(settings(root.as_ref(), MAX_BYTES), files, Arc::new(SystemClock));
    assert!(folder.wait_ready(PATIENCE));
    let reader = Reader::new(Arc::clone(&folder), 2);
    let paths: Vec<_> =
        (0..12).map(|seed| chain(&namer("m"), &tokens(seed, 400), &[100, 200, 300, 400])).collect();
    for _ in 0..operations {
        let path = &paths[random.below(paths.len())];
        match random.below(40) {
            0 => folder.evict_to(MAX_BYTES / 2).unwrap(),
            1 => drop(folder.remove(&[path[3].spec.name])),
            2 => folder.rescan().unwrap(),
            3..=19 => {
                let upto = 1 + random.below(4);
                for record in &path[..upto] {
                    let _ = folder.put(&record.spec, &record.slices());
                }
            }
            20..=29 => drop(reads(&folder, &path[random.below(4)])),
            _ => {
                let wants = path.iter().map(|record| record.want(10, 90)).collect();
                for (outcome, record) in reader.read(wants, Duration::from_secs(60)).into_iter().zip(path) {
                    match outcome {
                        kvcache_disk::reader::Outcome::Read { destination, .. } => {
                            assert_eq!(destination, record.part(10, 90));
                        }
                        other => {
                            assert!(["missing", "skipped"].contains(&other.reason()), "{}", other.reason());
                        }
                    }
                }
            }
        }
    }
    let stats = folder.stats();
    assert!(stats.written_records > 0 && stats.read_records > 0 && stats.dropped_by_reason["limit"] > 0);
    let bad: Vec<_> =
        stats.dropped_by_reason.keys().filter(|reason| !["limit", "removed"].contains(*reason)).collect();
    assert_eq!(bad, Vec::<&&str>::new());
}

#[test]
fn the_limit_holds_at_every_moment() {
    let (root, log) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
    let operations = count(300, 10_000).to_string();
    let children: Vec<_> = ["1", "2"]
        .iter()
        .map(|seed| {
            child(
                "processes::operate",
                &[
                    ("KVCACHE_TEST_ROOT", root.path().to_str().unwrap()),
                    ("KVCACHE_TEST_SEED", seed),
                    ("KVCACHE_TEST_LOG", log.path().to_str().unwrap()),
                    ("KVCACHE_TEST_OPERATIONS", &operations),
                ],
            )
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let mut trace = Trace::default();
    let events = fs::read_to_string(log.path()).unwrap();
    for line in events.lines() {
        trace.apply(&Event::parse(line));
        assert!(trace.peak <= MAX_BYTES, "{} bytes", trace.peak);
    }
    assert!(trace.peak > MAX_BYTES * 9 / 10, "the limit was never close: {} bytes", trace.peak);
    let folder = plain(root.path(), MAX_BYTES);
    check_every_record(&folder);
    folder.check().unwrap();
}
