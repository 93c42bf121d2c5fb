//! The books of the holder of arrays: which ids it has, and that all figures agree with them.

use std::collections::HashSet;

use kvcache_core::{CheckpointId, Dropped, Joined, LabelAmount, SegmentId, TreeStats};

use super::{Arrays, Driver, Open, Outcome, same};
use crate::common::index::Index;
use crate::common::operations::BARE;
use crate::common::oracle::{Gone, size};

impl<I: Index> Driver<I> {
    /// What was dropped is what had to be, each id once and none that was not held.
    pub(super) fn dropped(&mut self, what: &str, found: Dropped, gone: Gone) -> Outcome {
        same(&format!("{what}: amount"), &size(found.amount), &gone.size)?;
        same(&format!("{what}: units"), &found.units, &gone.units)?;
        let mut unnamed = gone.segments.iter().filter(|id| id.is_none()).count();
        let mut expected: HashSet<SegmentId> = gone.segments.into_iter().flatten().collect();
        for id in found.segments {
            if expected.remove(&id) {
                let held = self.segments.remove(&id);
                held.ok_or_else(|| format!("{what}: {id:?} was not held"))?;
            } else {
                self.give(id.0).map_err(|_| format!("{what}: {id:?} had to stay, or went before"))?;
                unnamed = unnamed.checked_sub(1).ok_or_else(|| format!("{what}: {id:?} is unknown"))?;
            }
        }
        same(&format!("{what}: segments not reported"), &(expected.len(), unnamed), &(0, 0))?;
        let mut expected: HashSet<CheckpointId> = gone.checkpoints.into_iter().collect();
        for id in found.checkpoints {
            let held = expected.remove(&id).then(|| self.checkpoints.remove(&id)).flatten();
            held.ok_or_else(|| format!("{what}: {id:?} had to stay, or went before"))?;
        }
        same(&format!("{what}: checkpoints not reported"), &expected.len(), &0)
    }

    /// The arrays of what was joined are under one id now.
    pub(super) fn joined(&mut self, found: &[Joined]) -> Outcome {
        let mut replaced: Vec<Vec<SegmentId>> = found.iter().map(|joined| joined.replaced.clone()).collect();
        replaced.sort();
        same("joined", &replaced, &self.oracle.take_joined(found))?;
        for Joined { segment, replaced } in found {
            self.give(segment.0)?;
            let mut whole = Arrays::default();
            for id in replaced {
                let part = self.segments.remove(id).ok_or_else(|| format!("joined {id:?} was not held"))?;
                whole = Arrays { tokens: whole.tokens + part.tokens, each: part.each };
            }
            self.segments.insert(*segment, whole);
        }
        Ok(())
    }

    /// Everything that can be seen between two operations.
    pub(super) fn settled(&self) -> Outcome {
        self.index.validate().map_err(|broken| format!("validate: {broken}"))?;
        let stats = self.index.stats();
        let mut sum = TreeStats::default();
        for namespace in ["a", "b", BARE] {
            let expected = self.oracle.figures(namespace);
            same(&format!("stats of {namespace}"), &self.index.namespace_stats(namespace), &expected)?;
            sum += expected;
            let layouts = self.oracle.layouts(namespace);
            same(&format!("layouts of {namespace}"), &self.index.layouts(namespace), &layouts)?;
        }
        same("stats", &stats.trees, &sum)?;
        same("leased bytes", &stats.leased_bytes, &self.oracle.leased_bytes())?;
        same("reserved bytes", &stats.reserved_bytes, &self.oracle.reserved()[0])?;
        same("units", &stats.units, &self.oracle.units())?;
        same("namespaces", &stats.namespaces, &(self.oracle.namespaces().len() as u64))?;
        let labels = self.index.labels();
        for label in 0..3_u16 {
            let found = labels.get(usize::from(label)).copied().unwrap_or_default();
            let expected: LabelAmount = self.oracle.label(label);
            same(&format!("label {label}"), &found, &expected)?;
        }
        self.accounted()
    }

    /// Every live id is held, every held id is live, and all of it with what is being copied now
    /// stays under the limits.
    fn accounted(&self) -> Outcome {
        let (segments, checkpoints) = self.oracle.ids();
        let segments: HashSet<SegmentId> = segments.into_iter().flatten().collect();
        same("segments held", &self.segments.keys().copied().collect(), &segments)?;
        let checkpoints: HashSet<CheckpointId> = checkpoints.into_iter().collect();
        same("checkpoints held", &self.checkpoints.keys().copied().collect(), &checkpoints)?;
        let mut nbytes: u64 = self.segments.values().map(Arrays::nbytes).sum();
        nbytes += self.checkpoints.values().sum::<u64>() + self.index.namespace_stats(BARE).nbytes;
        same("bytes held", &nbytes, &self.index.stats().trees.nbytes)?;
        for Open { store, copies, .. } in &self.open {
            nbytes += copies.iter().map(|(_, arrays)| arrays.nbytes()).sum::<u64>();
            nbytes += store.checkpoint.map_or(0, |spec| spec.nbytes);
        }
        if nbytes > self.limits.max_bytes {
            return Err(format!("{nbytes} bytes are held or being copied, of {}", self.limits.max_bytes));
        }
        let buffers = self.index.stats().trees.buffers + self.oracle.reserved()[1];
        if buffers > self.limits.max_buffers {
            return Err(format!("{buffers} buffers are held or promised, of {}", self.limits.max_buffers));
        }
        Ok(())
    }
}
