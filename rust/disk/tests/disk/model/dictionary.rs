//! The dictionary: what a folder must hold after each step, and the random steps.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use proptest::prelude::*;

use crate::make::{Record, chain, checkpoint, namer, segment, tokens};

pub(super) const PATHS: usize = 5;
pub(super) const DEPTH: usize = 4;
/// Records per path: its segments, one that branches off inside a segment, and a checkpoint.
pub(super) const FAMILY: usize = DEPTH + 2;
pub(super) const LEDGER: u64 = 4096;
pub(super) const HEADER: usize = 16 * 1024;

/// All records that can be stored.
pub(super) static UNIVERSE: LazyLock<Vec<Record>> = LazyLock::new(|| {
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

pub(super) fn parent(record: usize) -> Option<usize> {
    UNIVERSE[record].spec.parent.map(|parent| UNIVERSE.iter().position(|r| r.spec.name == parent).unwrap())
}

pub(super) fn size(record: usize) -> u64 {
    HEADER as u64 + UNIVERSE[record].arrays.iter().map(|array| array.len() as u64).sum::<u64>()
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Writes the path down to this record, on this thread or through the queue.
    Put {
        who: usize,
        record: usize,
        queued: bool,
    },
    /// Reads the path down to this record.
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
    /// Someone flips a bit of the payload. (Not of the header: an eviction that reads a damaged header removes
    /// the record, and the dictionary cannot predict when.)
    Flip {
        record: usize,
        at: usize,
    },
    /// Someone deletes the file.
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
pub(super) struct Kept {
    pub(super) used: u64,
    pub(super) bytes: u64,
    pub(super) damaged: bool,
}

/// The dictionary.
#[derive(Default)]
pub(super) struct Model {
    pub(super) kept: BTreeMap<usize, Kept>,
    pub(super) time: u64,
    pub(super) last: [Option<usize>; 2],
    pub(super) held: [BTreeSet<usize>; 2],
    pub(super) max_bytes: u64,
}

impl Model {
    pub(super) fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    pub(super) fn bytes(&self) -> u64 {
        LEDGER + self.kept.values().map(|kept| kept.bytes).sum::<u64>()
    }

    pub(super) fn is_leaf(&self, record: usize) -> bool {
        !self.kept.keys().any(|&other| parent(other) == Some(record))
    }

    pub(super) fn victim(&self, who: usize, new: Option<usize>) -> Option<usize> {
        let above = new.and_then(parent);
        let free = |record: &usize| {
            self.is_leaf(*record) && !self.held[who].contains(record) && Some(*record) != above
        };
        let mut candidates: Vec<usize> = self.kept.keys().copied().filter(free).collect();
        candidates.sort_by_key(|record| self.kept[record].used);
        let other = candidates.iter().find(|record| Some(**record) != self.last[who]);
        other.or(candidates.first()).copied()
    }

    pub(super) fn evict(&mut self, who: usize, new: Option<usize>, limit: u64) -> bool {
        while self.bytes() > limit {
            let Some(victim) = self.victim(who, new) else { return false };
            self.kept.remove(&victim);
        }
        true
    }

    pub(super) fn put(&mut self, who: usize, record: usize) -> &'static str {
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

/// The path from its head to `record`.
pub(super) fn path(record: usize) -> Vec<usize> {
    let mut path = vec![record];
    while let Some(above) = parent(path[path.len() - 1]) {
        path.push(above);
    }
    path.reverse();
    path
}
