//! Every error at every call, once and permanently; short and interrupted calls.

mod states;

use std::{fs, sync::Arc, time::Duration};

use kvcache_disk::{
    folder::{Put, Settings, State},
    reader::{Outcome, Reader},
};
use rustix::io::Errno;

use crate::{
    count,
    faults::{Faults, Op, Plan},
    make::{
        HandClock, PATIENCE, Record, chain, checkpoint, disk_usage, namer, open, reads, settings, tokens,
    },
};

const MAX_BYTES: u64 = 100 * 1024;

fn records() -> Vec<Vec<Record>> {
    let namer = namer("m");
    let mut paths: Vec<_> = (0..3).map(|seed| chain(&namer, &tokens(seed, 96), &[32, 64, 96])).collect();
    let last = checkpoint(&paths[0][2]);
    paths[0].push(last);
    paths
}

/// Exercises a folder: writes, evictions, reads, a corrupt record, removal, a restart.
fn exercise(settings: &Settings, files: &Arc<Faults>, clock: &Arc<HandClock>, paths: &[Vec<Record>]) {
    for round in 0..2 {
        let folder = open(settings.clone(), Arc::clone(files) as _, clock);
        for record in paths.iter().flatten() {
            let _ = folder.put(&record.spec, &record.slices());
            let _ = reads(&folder, record);
        }
        for path in paths {
            let wants = path[..3].iter().map(|record| record.want(3, 30)).collect();
            for (outcome, record) in
                Reader::new(Arc::clone(&folder), 1).read(wants, PATIENCE).iter().zip(path)
            {
                if let Outcome::Read { destination, .. } = outcome {
                    assert_eq!(*destination, record.part(3, 30));
                }
            }
        }
        if let Some(name) = folder.names().first() {
            let path = settings.root.join(name.path());
            if let Ok(mut bytes) = fs::read(&path) {
                *bytes.last_mut().unwrap() ^= 1;
                let _ = fs::write(&path, bytes);
            }
        }
        for record in paths.iter().flatten() {
            let _ = reads(&folder, record);
        }
        folder.sync();
        folder.headers(paths[0][0].spec.name.space, |_, _| true);
        let _ = folder.remove(&[paths[0][0].spec.name]);
        let _ = folder.evict_to(60 * 1024);
        if round == 0 {
            folder.leave();
        }
    }
}

/// Checks what must hold after any fault.
fn recovers(
    settings: &Settings,
    files: &Arc<Faults>,
    clock: &Arc<HandClock>,
    paths: &[Vec<Record>],
    what: &str,
) {
    files.resume();
    clock.advance(Duration::from_secs(61));
    assert!(files.peak() <= MAX_BYTES, "{what}: {} bytes at the peak", files.peak());
    let folder = open(settings.clone(), Arc::clone(files) as _, clock);
    folder.check().unwrap_or_else(|broken| panic!("{what}: {broken}"));
    assert_eq!(folder.stats().state, State::On, "{what}");
    for record in &paths[1] {
        let put = || {
            folder.put(&record.spec, &record.slices()).unwrap_or_else(|refusal| panic!("{what}: {refusal}"))
        };
        put();
        // The damaged record may still be there until a read removes it.
        assert!(reads(&folder, record) || put() == Put::Written && reads(&folder, record), "{what}");
    }
    folder.check().unwrap_or_else(|broken| panic!("{what}: {broken}"));
    assert!(files.peak() <= MAX_BYTES, "{what}: {} bytes at the peak after recovery", files.peak());
    assert!(disk_usage(&settings.root) <= MAX_BYTES, "{what}: {} bytes", disk_usage(&settings.root));
}

#[test]
fn every_error_at_every_call() {
    let paths = records();
    let settings =
        |root: &std::path::Path| Settings { durable: true, ..settings(&root.join("kv"), MAX_BYTES) };
    let all = {
        let root = tempfile::tempdir().unwrap();
        let files = Faults::new();
        exercise(&settings(root.path()), &files, &HandClock::new(), &paths);
        files.calls()
    };
    for op in [
        Op::Open,
        Op::Stat,
        Op::List,
        Op::MakeFolder,
        Op::Rename,
        Op::Unlink,
        Op::RemoveFolder,
        Op::Touch,
        Op::Available,
        Op::Read,
        Op::Write,
        Op::HandleStat,
        Op::Sync,
        Op::Lock,
        Op::Unlock,
    ] {
        assert!(all.contains(&op), "the exercise never calls {op:?}");
    }
    let errors = [
        Errno::IO,
        Errno::NOSPC,
        Errno::ACCESS,
        Errno::NOENT,
        Errno::ROFS,
        Errno::INTR,
        Errno::DQUOT,
        Errno::PERM,
        Errno::MFILE,
        Errno::STALE,
        Errno::NOTDIR,
        Errno::LOOP,
        Errno::NOMEM,
        Errno::EXIST,
        Errno::AGAIN,
        Errno::NOTEMPTY,
        Errno::XDEV,
        Errno::TIMEDOUT,
    ];
    // By default every seventh call fails, both once and permanently; the long run tests all combinations.
    let rounds = count(1, errors.len());
    // Reporting an existing file as missing is a lie and not an error: no count could be right after it.
    let lies = |at: usize, error| error == Errno::NOENT && matches!(all[at], Op::Stat | Op::List | Op::Open);
    for at in (0..all.len()).step_by(count(7, 1)) {
        for forever in [false, true] {
            for round in 0..rounds {
                let error = errors[(at + round + usize::from(forever) * 7) % errors.len()];
                if lies(at, error) {
                    continue;
                }
                let what = format!("{error:?} at call {at} ({:?}), permanently: {forever}", all[at]);
                let root = tempfile::tempdir().unwrap();
                let (files, clock) = (Faults::new(), HandClock::new());
                let plan = Plan { fail: Some((at, error.raw_os_error(), forever)), ..Plan::default() };
                files.plan(plan);
                exercise(&settings(root.path()), &files, &clock, &paths);
                recovers(&settings(root.path()), &files, &clock, &paths, &what);
            }
        }
    }
}

/// One kind of call always fails and the others work, as on a broken or unusual file system.
#[test]
fn every_error_at_every_kind_of_call() {
    let paths = records();
    for op in [
        Op::Open,
        Op::Stat,
        Op::List,
        Op::MakeFolder,
        Op::SetMode,
        Op::Rename,
        Op::Unlink,
        Op::RemoveFolder,
        Op::Touch,
        Op::Available,
        Op::Read,
        Op::Write,
        Op::HandleStat,
        Op::Sync,
        Op::Lock,
        Op::Unlock,
    ] {
        for error in
            [Errno::IO, Errno::NOSPC, Errno::ACCESS, Errno::NOENT, Errno::ROFS, Errno::INTR, Errno::NOTSUP]
        {
            for from in [0, 60] {
                let root = tempfile::tempdir().unwrap();
                let (files, clock) = (Faults::new(), HandClock::new());
                let settings = settings(&root.path().join("kv"), MAX_BYTES);
                files.plan(Plan {
                    fail: Some((from, error.raw_os_error(), true)),
                    only: Some(op),
                    ..Plan::default()
                });
                exercise(&settings, &files, &clock, &paths);
                recovers(
                    &settings,
                    &files,
                    &clock,
                    &paths,
                    &format!("{error:?} at every {op:?} from {from}"),
                );
            }
        }
    }
}

#[test]
fn short_and_interrupted_calls_change_nothing() {
    let paths = records();
    for (short, interrupt) in [(Some(1000), false), (None, true), (Some(777), true), (Some(7), false)] {
        let root = tempfile::tempdir().unwrap();
        let (files, clock) = (Faults::new(), HandClock::new());
        let folder = open(settings(root.path(), 1 << 20), Arc::clone(&files) as _, &clock);
        files.plan(Plan { short, interrupt, ..Plan::default() });
        for record in paths.iter().flatten() {
            assert_eq!(folder.put(&record.spec, &record.slices()).unwrap(), Put::Written);
            assert!(reads(&folder, record));
        }
    }
}
