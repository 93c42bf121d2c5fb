//! Two processes on one folder beside a dictionary: same answers, same evictions, same counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    sync::{Arc, LazyLock},
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
    make::{
        HandClock, PATIENCE, Record, chain, checkpoint, disk_usage, namer, open, segment, settings, tokens,
    },
};

const PATHS: usize = 5;
const DEPTH: usize = 4;
/// Of each path: its segments, one that was split off in the middle, and a checkpoint.
const FAMILY: usize = DEPTH + 2;
const LEDGER: u64 = 4096;
const HEADER: usize = 16 * 1024;

/// Everything that can ever be stored.
static UNIVERSE: LazyLock<Vec<Record>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for seed in 0..PATHS as u32 {
        let namer = namer(if seed.is_multiple_of(2) { "even" } else { "odd" });
        let path = chain(&namer, &tokens(seed, 160), &[40, 80, 120, 160]);
        let mut other = tokens(seed, 160);
        other[60..].fill(4000 + seed);
        let child = segment(&namer, &other, 60, 100, Some(path[1].spec.name));
        let state = checkpoint(&path[2]);
        all.extend(path);
        all.extend([child, state]);
    }
    all
});

fn parent(record: usize) -> Option<usize> {
    UNIVERSE[record].spec.parent.map(|parent| UNIVERSE.iter().position(|r| r.spec.name == parent).unwrap())
}

fn size(record: usize) -> u64 {
    HEADER as u64 + UNIVERSE[record].arrays.iter().map(|array| array.len() as u64).sum::<u64>()
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Writes a path down to this record, on this thread or through the queue.
    Put {
        who: usize,
        record: usize,
        queued: bool,
    },
    /// Reads a path down to this record.
    Read {
        who: usize,
        record: usize,
        from: usize,
        to: usize,
    },
    Hold {
        who: usize,
        record: usize,
    },
    Release {
        who: usize,
    },
    Restart {
        who: usize,
        leave: bool,
    },
    Evict {
        who: usize,
        percent: u64,
    },
    Remove {
        who: usize,
        record: usize,
    },
    /// Somebody flips a bit of the payload, or deletes the file. (An eviction that reads a damaged header
    /// removes the record; the dictionary does not know when one does.)
    Flip {
        record: usize,
        at: usize,
    },
    Delete {
        record: usize,
    },
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (who, record) = (0..2_usize, 0..PATHS * FAMILY);
    let both = (who.clone(), record.clone());
    let step = prop_oneof![
        8 => (both.clone(), any::<bool>()).prop_map(|((who, record), queued)| Step::Put { who, record, queued }),
        6 => (both.clone(), 0..40_usize, 0..40_usize).prop_map(|((who, record), a, b)| {
            Step::Read { who, record, from: a.min(b), to: a.max(b) + 1 }
        }),
        1 => both.clone().prop_map(|(who, record)| Step::Hold { who, record }),
        1 => who.clone().prop_map(|who| Step::Release { who }),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, leave)| Step::Restart { who, leave }),
        1 => (who, 0..100_u64).prop_map(|(who, percent)| Step::Evict { who, percent }),
        1 => both.prop_map(|(who, record)| Step::Remove { who, record }),
        1 => (record.clone(), any::<usize>()).prop_map(|(record, at)| Step::Flip { record, at }),
        1 => record.prop_map(|record| Step::Delete { record }),
    ];
    prop::collection::vec(step, 1..60)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    used: u64,
    bytes: u64,
    damaged: bool,
}

/// The dictionary.
#[derive(Default)]
struct Model {
    kept: BTreeMap<usize, Kept>,
    time: u64,
    last: [Option<usize>; 2],
    held: [BTreeSet<usize>; 2],
    max_bytes: u64,
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn bytes(&self) -> u64 {
        LEDGER + self.kept.values().map(|kept| kept.bytes).sum::<u64>()
    }

    fn is_leaf(&self, record: usize) -> bool {
        !self.kept.keys().any(|&other| parent(other) == Some(record))
    }

    fn victim(&self, who: usize, new: Option<usize>) -> Option<usize> {
        let above = new.and_then(parent);
        let free = |record: &usize| {
            self.is_leaf(*record) && !self.held[who].contains(record) && Some(*record) != above
        };
        let mut fit: Vec<usize> = self.kept.keys().copied().filter(free).collect();
        fit.sort_by_key(|record| self.kept[record].used);
        let other = fit.iter().find(|record| Some(**record) != self.last[who]);
        other.or(fit.first()).copied()
    }

    fn evict(&mut self, who: usize, new: Option<usize>, limit: u64) -> bool {
        while self.bytes() > limit {
            let Some(victim) = self.victim(who, new) else { return false };
            self.kept.remove(&victim);
        }
        true
    }

    fn put(&mut self, who: usize, record: usize) -> &'static str {
        let bytes = size(record);
        if self.kept.get(&record).is_some_and(|kept| kept.bytes == bytes) {
            return "duplicate";
        }
        if parent(record).is_some_and(|parent| !self.kept.contains_key(&parent)) {
            return "parent_missing";
        }
        let over = (self.bytes() + bytes).saturating_sub(self.max_bytes);
        let held = &self.held[who];
        let free: u64 = self.kept.iter().filter(|(r, _)| !held.contains(r)).map(|(_, kept)| kept.bytes).sum();
        if free < over || !self.evict(who, Some(record), self.max_bytes - bytes) {
            return "no_room";
        }
        let used = self.tick();
        self.kept.insert(record, Kept { used, bytes, damaged: false });
        self.last[who] = Some(record);
        "written"
    }
}

/// A path from its head to `record`.
fn path(record: usize) -> Vec<usize> {
    let mut path = vec![record];
    while let Some(above) = parent(path[path.len() - 1]) {
        path.push(above);
    }
    path.reverse();
    path
}

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

    /// Changes a file behind everybody's back, but for its time.
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

    /// What another process, or a reader, removed is known after a scan.
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
                // The queue takes the index's word, looks, and knows better the next time; but for damage,
                // which only a read finds.
                let writer = Writer::new(Arc::clone(&folder), 1 << 20);
                let submitted = writer.submit(UNIVERSE[record].spec.clone(), Box::new(Vec::new()));
                ensure!(submitted.is_ok() && writer.flush(PATIENCE), "no duplicate");
                let known = folder.contains(&name);
                ensure!(known == self.model.kept.contains_key(&record), "{record} known: {known}");
                continue;
            }
            let expected = self.model.put(who, record);
            let Record { spec, arrays } = &UNIVERSE[record];
            let put = if queued {
                let writer = Writer::new(Arc::clone(&folder), 1 << 20);
                // The queue knows what this process knows; the writer looks at the disk.
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
            let found = match &put {
                Ok(Put::Written) => "written",
                Ok(Put::Duplicate) => "duplicate",
                Err(refusal) => Refusal::reason(refusal),
            };
            ensure!(found == expected, "put of {record} by {who}: {found}, expected {expected}");
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
                    ensure!(usable, "{record} was read, and should not be there");
                    ensure!(destination == UNIVERSE[record].part(from, to), "{record} has other bytes");
                    let used = self.model.time - place as u64;
                    self.model.kept.get_mut(&record).unwrap().used = used;
                }
                other => {
                    ensure!(!usable, "{record} should be there: {}", other.reason());
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
        // So that times of the two processes are in order, and each looks for what the other wrote.
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
        let (found, expected) = (self.on_disk(), self.model.kept.keys().copied().collect::<Vec<_>>());
        ensure!(found == expected, "on disk are {found:?}, expected {expected:?}");
        let bytes = disk_usage(self.root.path());
        ensure!(bytes == self.model.bytes(), "{bytes} bytes, expected {}", self.model.bytes());
        ensure!(self.files.peak() <= self.model.max_bytes, "{} bytes at the peak", self.files.peak());
        Ok(())
    }
}

/// Runs the steps; an error is where world and dictionary part.
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
