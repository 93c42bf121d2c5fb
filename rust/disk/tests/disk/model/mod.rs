//! Compares two processes on one folder with a dictionary: same results, same evictions, same counts.

mod dictionary;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    sync::Arc,
    time::{Duration, SystemTime},
};

use kvcache_disk::{
    folder::{Folder, Hold, Put, Refusal},
    reader::{Outcome, Reader},
    writer::Writer,
};
use proptest::prelude::*;

use crate::{
    count,
    faults::{Faults, Lie, Plan},
    make::{HandClock, PATIENCE, Record, disk_usage, open, settings},
};
use dictionary::{HEADER, LEDGER, Model, Step, UNIVERSE, path, size};

pub(crate) use dictionary::steps;

struct Process {
    folder: Arc<Folder>,
    holds: Vec<Hold>,
}

struct World {
    root: tempfile::TempDir,
    files: Arc<Faults>,
    clock: Arc<HandClock>,
    processes: Vec<Process>,
    model: Model,
    lie: Option<Lie>,
}

type Checked = Result<(), String>;

macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => { if !$condition { return Err(format!($($text)+)); } };
}

impl World {
    fn new(lie: Option<Lie>) -> Self {
        let max_bytes = LEDGER + 9 * size(0) + 100;
        let (root, files, clock) = (tempfile::tempdir().unwrap(), Faults::new(), HandClock::new());
        files.plan(Plan { lie, ..Plan::default() });
        let model = Model { max_bytes, ..Model::default() };
        let mut world = Self { root, files, clock, processes: Vec::new(), model, lie };
        for _ in 0..2 {
            let process = world.start();
            world.processes.push(process);
        }
        world
    }

    fn start(&self) -> Process {
        let settings = settings(self.root.path(), self.model.max_bytes);
        Process { folder: open(settings, Arc::clone(&self.files) as _, &self.clock), holds: Vec::new() }
    }

    fn file(&self, record: usize) -> std::path::PathBuf {
        self.root.path().join(UNIVERSE[record].spec.name.path())
    }

    fn on_disk(&self) -> Vec<usize> {
        (0..UNIVERSE.len()).filter(|&record| self.file(record).exists()).collect()
    }

    /// Changes a file without telling any process, and keeps its modification time.
    fn damage(&mut self, record: usize, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.file(record);
        if let (Some(kept), Ok(mut bytes)) = (self.model.kept.get_mut(&record), fs::read(&path)) {
            let modified = fs::metadata(&path).unwrap().modified().unwrap_or(SystemTime::UNIX_EPOCH);
            change(&mut bytes);
            fs::write(&path, &bytes).unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
            self.files.changed(&path, Some(bytes.len() as u64));
            kept.bytes = bytes.len() as u64;
            kept.damaged = true;
        }
    }

    /// Scans in both processes, so that each knows what the other, or a reader, removed.
    fn rescan(&self) {
        for process in &self.processes {
            process.folder.rescan().unwrap();
        }
    }

    fn put(&mut self, who: usize, record: usize, queued: bool) -> Checked {
        let folder = Arc::clone(&self.processes[who].folder);
        for record in path(record) {
            let name = UNIVERSE[record].spec.name;
            let whole = self.model.kept.get(&record).is_some_and(|kept| kept.bytes == size(record));
            if queued && !whole && folder.contains(&name) {
                // The queue trusts the index and then checks the disk, so the index is right the next time.
                // Only a read detects damage.
                let writer = Writer::new(Arc::clone(&folder), 1 << 20);
                let submitted = writer.submit(UNIVERSE[record].spec.clone(), Box::new(Vec::new()));
                ensure!(submitted.is_ok() && writer.flush(PATIENCE), "{record} is not a duplicate");
                let known = folder.contains(&name);
                ensure!(known == self.model.kept.contains_key(&record), "{record} known: {known}");
                continue;
            }
            let expected = self.model.put(who, record);
            let Record { spec, arrays } = &UNIVERSE[record];
            let put = if queued {
                let writer = Writer::new(Arc::clone(&folder), 1 << 20);
                // The queue uses this process's index; the writer checks the disk.
                match writer.submit(spec.clone(), Box::new(arrays.clone())) {
                    Ok(kvcache_disk::writer::Submitted::Duplicate) => Ok(Put::Duplicate),
                    Ok(_) => {
                        ensure!(writer.flush(PATIENCE), "the writer hangs");
                        writer.take_finished().remove(0).1
                    }
                    Err(refusal) => Err(refusal),
                }
            } else {
                folder.put(spec, &UNIVERSE[record].slices())
            };
            let actual = match &put {
                Ok(Put::Written) => "written",
                Ok(Put::Duplicate) => "duplicate",
                Err(refusal) => Refusal::reason(refusal),
            };
            ensure!(actual == expected, "put of {record} by {who}: {actual}, expected {expected}");
        }
        Ok(())
    }

    fn read(&mut self, who: usize, record: usize, from: usize, to: usize) -> Checked {
        let path = path(record);
        let wants = path.iter().map(|&record| UNIVERSE[record].want(from, to)).collect();
        let reader = Reader::new(Arc::clone(&self.processes[who].folder), 1);
        let outcomes = reader.read(wants, PATIENCE);
        self.model.time += 100;
        let mut failed = false;
        for (place, (outcome, &record)) in outcomes.into_iter().zip(&path).enumerate() {
            let kept = self.model.kept.get(&record).copied();
            let usable = !failed && kept.is_some_and(|kept| !kept.damaged);
            match outcome {
                Outcome::Read { mut destination, .. } => {
                    if self.lie == Some(Lie::Flip) {
                        destination[0][0] ^= 1;
                    }
                    ensure!(usable, "{record} was read, but should not be readable");
                    ensure!(destination == UNIVERSE[record].part(from, to), "{record} has other bytes");
                    let used = self.model.time - place as u64;
                    self.model.kept.get_mut(&record).unwrap().used = used;
                }
                other => {
                    ensure!(!usable, "{record} should be readable: {}", other.reason());
                    if !failed {
                        self.model.kept.remove(&record);
                    }
                    failed = true;
                }
            }
        }
        if failed {
            self.rescan();
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Checked {
        // Keeps the times of the two processes in order, and makes each rescan for the other's records.
        self.clock.advance(Duration::from_secs(11));
        match *step {
            Step::Put { who, record, queued } => self.put(who, record, queued)?,
            Step::Read { who, record, from, to } => self.read(who, record, from, to)?,
            Step::Hold { who, record } => {
                let process = &mut self.processes[who];
                process.holds.push(process.folder.hold(&[UNIVERSE[record].spec.name]));
                self.model.held[who].insert(record);
            }
            Step::Release { who } => {
                self.processes[who].holds.clear();
                self.model.held[who].clear();
            }
            Step::Restart { who, leave } => {
                if leave {
                    self.processes[who].folder.leave();
                }
                self.processes[who].holds.clear();
                let process = self.start();
                self.processes[who] = process;
                (self.model.held[who], self.model.last[who]) = (BTreeSet::new(), None);
            }
            Step::Evict { who, percent } => {
                let limit = self.model.max_bytes * percent / 100;
                self.processes[who].folder.evict_to(limit).map_err(|refusal| refusal.to_string())?;
                self.model.evict(who, None, limit);
                self.rescan();
            }
            Step::Remove { who, record } => {
                let removed = self.processes[who].folder.remove(&[UNIVERSE[record].spec.name]).unwrap();
                let expected = u64::from(self.model.kept.remove(&record).is_some());
                ensure!(removed == expected, "removed {removed} of {record}");
                self.rescan();
            }
            Step::Flip { record, at } => self.damage(record, |bytes| {
                let at = HEADER + at % (bytes.len() - HEADER);
                bytes[at] ^= 1 << (at % 8);
            }),
            Step::Delete { record } => {
                if self.model.kept.remove(&record).is_some() {
                    fs::remove_file(self.file(record)).map_err(|error| error.to_string())?;
                    self.files.changed(&self.file(record), None);
                }
                self.rescan();
            }
        }
        self.check()
    }

    fn check(&self) -> Checked {
        let (actual, expected) = (self.on_disk(), self.model.kept.keys().copied().collect::<Vec<_>>());
        ensure!(actual == expected, "records on disk: {actual:?}, expected {expected:?}");
        let bytes = disk_usage(self.root.path());
        ensure!(bytes == self.model.bytes(), "{bytes} bytes, expected {}", self.model.bytes());
        ensure!(self.files.peak() <= self.model.max_bytes, "{} bytes at the peak", self.files.peak());
        Ok(())
    }
}

/// Runs the steps. An error says where the folder and the dictionary diverge.
pub(crate) fn run(steps: &[Step], lie: Option<Lie>) -> Checked {
    let mut world = World::new(lie);
    for (index, step) in steps.iter().enumerate() {
        world.step(step).map_err(|error| format!("step {index}, {step:?}: {error}"))?;
    }
    for process in &world.processes {
        process.folder.check()?;
    }
    world.check()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: count(60, 5000) as u32,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn folder_and_dictionary_agree(steps in steps()) {
        if let Err(error) = run(&steps, None) {
            return Err(TestCaseError::fail(error));
        }
    }
}
