//! Many records in one call: ranges, damaged files, wrong identities, deadlines.

use std::{fs, sync::Arc, time::Duration};

use kvcache_disk::{
    Digest,
    folder::Folder,
    name::{Identity, Media},
    reader::{Outcome, Reader, Want},
};

use crate::{
    count,
    faults::{Faults, Op, Plan},
    make::{HandClock, PATIENCE, Random, Record, chain, namer, open, plain, reads, settings, tokens},
};

fn filled(folder: &Arc<Folder>, seed: u32, records: usize) -> Vec<Record> {
    let cuts: Vec<usize> = (1..=records).map(|i| i * 300).collect();
    let path = chain(&namer("m"), &tokens(seed, records * 300), &cuts);
    for record in &path {
        folder.put(&record.spec, &record.slices()).unwrap();
    }
    path
}

type Outcomes = Vec<Outcome<Vec<Vec<u8>>>>;

fn reasons(outcomes: &Outcomes) -> Vec<&'static str> {
    outcomes.iter().map(Outcome::reason).collect()
}

#[test]
fn any_ranges_of_a_path_on_any_number_of_threads() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let path = filled(&folder, 1, 12);
    let mut random = Random(5);
    for threads in [1, 2, 4, 8, 50] {
        let reader = Reader::new(Arc::clone(&folder), threads);
        for _ in 0..10 {
            let ranges: Vec<(usize, usize)> = path
                .iter()
                .map(|_| {
                    let from = random.below(300);
                    (from, from + 1 + random.below(300 - from))
                })
                .collect();
            let wants =
                path.iter().zip(&ranges).map(|(record, range)| record.want(range.0, range.1)).collect();
            let outcomes = reader.read(wants, PATIENCE);
            for ((outcome, record), range) in outcomes.into_iter().zip(&path).zip(&ranges) {
                let Outcome::Read { destination, .. } = outcome else { panic!("{}", outcome.reason()) };
                assert_eq!(destination, record.part(range.0, range.1));
            }
        }
    }
    assert!(Reader::new(folder, 4).read(Vec::<Want<Vec<Vec<u8>>>>::new(), PATIENCE).is_empty());
}

#[test]
fn a_failed_record_is_removed_and_later_ones_are_skipped() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let path = filled(&folder, 1, 5);
    let at = root.path().join(path[2].spec.name.path());
    let mut bytes = fs::read(&at).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&at, bytes).unwrap();
    let reader = Reader::new(Arc::clone(&folder), 1);
    let wants = || path.iter().map(|record| record.want(0, 300)).collect();
    assert_eq!(reasons(&reader.read(wants(), PATIENCE)), ["read", "read", "corrupt", "skipped", "skipped"]);
    assert!(!at.exists());
    assert_eq!(reasons(&reader.read(wants(), PATIENCE)), ["read", "read", "missing", "skipped", "skipped"]);
    assert_eq!(folder.stats().dropped_by_reason["corrupt"], 1);
    // Storing it again makes the remaining tail usable again.
    folder.put(&path[2].spec, &path[2].slices()).unwrap();
    assert_eq!(reasons(&reader.read(wants(), PATIENCE)), ["read"; 5]);
    folder.check().unwrap();
}

#[test]
fn a_part_is_served_while_another_part_is_damaged() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let path = filled(&folder, 1, 1);
    let at = root.path().join(path[0].spec.name.path());
    let mut bytes = fs::read(&at).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&at, bytes).unwrap();
    let reader = Reader::new(Arc::clone(&folder), 1);
    // The last step covers tokens 256 to 300.
    assert_eq!(reasons(&reader.read(vec![path[0].want(0, 256)], PATIENCE)), ["read"]);
    assert_eq!(reasons(&reader.read(vec![path[0].want(0, 257)], PATIENCE)), ["corrupt"]);
}

#[test]
fn swapped_renamed_and_foreign_files_are_misses() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let path = filled(&folder, 1, 3);
    let at = |record: &Record| root.path().join(record.spec.name.path());
    let spare = root.path().join("spare");
    fs::rename(at(&path[1]), &spare).unwrap();
    fs::rename(at(&path[2]), at(&path[1])).unwrap();
    fs::rename(&spare, at(&path[2])).unwrap();
    assert!(reads(&folder, &path[0]));
    let reader = Reader::new(Arc::clone(&folder), 1);
    for record in &path[1..] {
        assert_eq!(reasons(&reader.read(vec![record.want(0, 300)], PATIENCE)), ["misplaced"]);
        assert!(!at(record).exists());
    }
    // A record of another namespace, layout, rank or grain under this name.
    let change: [fn(&mut Identity); 5] = [
        |identity| identity.namespace = "other".into(),
        |identity| identity.layout = "other".into(),
        |identity| identity.rank = 1,
        |identity| identity.ranks = 2,
        |identity| identity.segment_tokens = 7,
    ];
    for change in change {
        let mut record = path[0].clone();
        change(Arc::make_mut(&mut record.spec.identity));
        folder.remove(&[record.spec.name]).unwrap();
        folder.put(&record.spec, &record.slices()).unwrap();
        assert_eq!(reasons(&reader.read(vec![path[0].want(0, 300)], PATIENCE)), ["misplaced"]);
    }
    for content in [vec![], vec![0], vec![0; 16], vec![0; 100_000]] {
        fs::create_dir_all(at(&path[0]).parent().unwrap()).unwrap();
        fs::write(at(&path[0]), content).unwrap();
        assert!(!reads(&folder, &path[0]));
        assert!(!at(&path[0]).exists());
    }
    fs::create_dir_all(at(&path[0])).unwrap();
    assert!(!reads(&folder, &path[0]), "a folder is not a record");
}

type Break = fn(&mut Want<Vec<Vec<u8>>>);

#[test]
fn records_with_other_tokens_or_media_are_misses() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let reader = Reader::new(Arc::clone(&folder), 1);
    let mut record = chain(&namer("m"), &tokens(1, 300), &[300]).remove(0);
    let media = |digest| Media { start: 100, length: 50, digest: Digest([digest; 32]) };
    record.spec.media = vec![media(1)];
    let breaks: [Break; 6] = [
        |want| want.tokens[7] += 1,
        |want| want.start += 1,
        |want| want.start = usize::MAX,
        |want| want.media.clear(),
        |want| want.media[0].digest.0[31] ^= 1,
        |want| want.media[0].length += 1,
    ];
    for broken in breaks {
        folder.put(&record.spec, &record.slices()).unwrap();
        assert_eq!(reasons(&reader.read(vec![record.want(0, 300)], PATIENCE)), ["read"]);
        assert_eq!(
            reasons(&reader.read(vec![record.want(0, 100)], PATIENCE)),
            ["read"],
            "there are no media in that range"
        );
        let mut want = record.want(0, 300);
        broken(&mut want);
        assert_eq!(reasons(&reader.read(vec![want], PATIENCE)), ["other_tokens"]);
    }
    // A caller's mistake does not remove the record.
    folder.put(&record.spec, &record.slices()).unwrap();
    let mut want = record.want(0, 300);
    want.destination.pop();
    assert_eq!(reasons(&reader.read(vec![want], PATIENCE)), ["unfit"]);
    assert!(reads(&folder, &record));
}

#[test]
fn a_stalled_disk_causes_late_misses_and_does_not_pile_up_threads() {
    for op in [Op::Open, Op::HandleStat, Op::Read, Op::Touch] {
        let root = tempfile::tempdir().unwrap();
        let (files, clock) = (Faults::new(), HandClock::new());
        let folder = open(settings(root.path(), 1 << 30), Arc::clone(&files) as _, &clock);
        let path = filled(&folder, 1, 4);
        let reader = Reader::new(Arc::clone(&folder), 2);
        let wants = || path.iter().map(|record| record.want(0, 300)).collect::<Vec<_>>();
        files.plan(Plan { stall: Some(op), ..Plan::default() });
        for _ in 0..5 {
            assert_eq!(reasons(&reader.read(wants(), Duration::from_millis(20))), ["late"; 4], "{op:?}");
        }
        // Reads recover, and no record is lost.
        files.resume();
        let mut tries = 0;
        while reasons(&reader.read(wants(), PATIENCE)) != ["read"; 4] {
            tries += 1;
            assert!(tries < 10_000, "{op:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(folder.stats().dropped_by_reason.len(), 0);
    }
}

/// There is no false miss, however many calls run at once and however late their threads end.
#[test]
fn concurrent_calls() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let path = filled(&folder, 1, 3);
    let reader = Reader::new(Arc::clone(&folder), 1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..count(50, 1000) {
                    let wants = path.iter().map(|record| record.want(1, 2)).collect();
                    assert_eq!(reasons(&reader.read(wants, PATIENCE)), ["read"; 3]);
                }
            });
        }
    });
}

#[test]
fn a_panicking_destination_is_a_miss() {
    struct Bad;
    impl kvcache_disk::reader::Destination for Bad {
        fn slices(&mut self) -> Vec<&mut [u8]> {
            panic!("on purpose")
        }
    }
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let path = filled(&folder, 1, 1);
    let Want { name, identity, start, tokens, media, .. } = path[0].want(0, 300);
    let want = Want { name, identity, start, tokens, media, destination: Bad };
    assert_eq!(Reader::new(folder, 1).read(vec![want], PATIENCE)[0].reason(), "unfit");
}

/// Flips and truncates the file itself, as `records.rs` does in memory.
#[test]
fn damaged_files_never_yield_wrong_bytes() {
    let root = tempfile::tempdir().unwrap();
    let folder = plain(root.path(), 1 << 30);
    let path = filled(&folder, 1, 1);
    let at = root.path().join(path[0].spec.name.path());
    let whole = fs::read(&at).unwrap();
    let mut random = Random(9);
    for _ in 0..count(300, 5000) {
        let mut bytes = whole.clone();
        if random.below(3) == 0 {
            bytes.truncate(random.below(bytes.len()));
        } else {
            for _ in 0..=random.below(4) {
                let byte = random.below(bytes.len());
                bytes[byte] ^= 1 << random.below(8);
            }
        }
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, &bytes).unwrap();
        assert!(!reads(&folder, &path[0]) || bytes == whole);
        assert_eq!(at.exists(), bytes == whole);
    }
}
