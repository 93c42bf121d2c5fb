//! Accounting for the holder of the arrays: which ids it has, and that all statistics agree with them.

use std::collections::HashSet;

use kvcache_core::{CheckpointId, Dropped, Joined, LabelAmount, SegmentId, TreeStats};

use super::{Arrays, Driver, Open, Outcome, check_equal};
use crate::common::index::Index;
use crate::common::operations::BARE;
use crate::common::oracle::{Removed, size};

impl<I: Index> Driver<I> {
    /// Checks that exactly the expected ids were dropped, each once, and all of them held.
    pub(super) fn dropped(&mut self, what: &str, actual: Dropped, removed: Removed) -> Outcome {
        check_equal(&format!("{what}: amount"), &size(actual.amount), &removed.size)?;
        check_equal(&format!("{what}: units"), &actual.units, &removed.units)?;
        let mut unnamed = removed.segments.iter().filter(|id| id.is_none()).count();
        let mut expected: HashSet<SegmentId> = removed.segments.into_iter().flatten().collect();
        for id in actual.segments {
            if expected.remove(&id) {
                let held = self.segments.remove(&id);
                held.ok_or_else(|| format!("{what}: {id:?} was not held"))?;
            } else {
                self.issue(id.0).map_err(|_| format!("{what}: {id:?} must stay, or was already dropped"))?;
                unnamed = unnamed.checked_sub(1).ok_or_else(|| format!("{what}: {id:?} is unknown"))?;
            }
        }
        check_equal(&format!("{what}: segments not reported"), &(expected.len(), unnamed), &(0, 0))?;
        let mut expected: HashSet<CheckpointId> = removed.checkpoints.into_iter().collect();
        for id in actual.checkpoints {
            let held = expected.remove(&id).then(|| self.checkpoints.remove(&id)).flatten();
            held.ok_or_else(|| format!("{what}: {id:?} must stay, or was already dropped"))?;
        }
        check_equal(&format!("{what}: checkpoints not reported"), &expected.len(), &0)
    }

    /// Moves the arrays of joined segments to their new id.
    pub(super) fn joined(&mut self, actual: &[Joined]) -> Outcome {
        let mut replaced: Vec<Vec<SegmentId>> = actual.iter().map(|joined| joined.replaced.clone()).collect();
        replaced.sort();
        check_equal("joined", &replaced, &self.oracle.take_joined(actual))?;
        for Joined { segment, replaced } in actual {
            self.issue(segment.0)?;
            let mut whole = Arrays::default();
            for id in replaced {
                let part = self.segments.remove(id).ok_or_else(|| format!("joined {id:?} was not held"))?;
                whole = Arrays { tokens: whole.tokens + part.tokens, each: part.each };
            }
            self.segments.insert(*segment, whole);
        }
        Ok(())
    }

    /// Compares everything observable between two operations.
    pub(super) fn compare(&self) -> Outcome {
        self.index.validate().map_err(|broken| format!("validate: {broken}"))?;
        let stats = self.index.stats();
        let mut sum = TreeStats::default();
        for namespace in ["a", "b", BARE] {
            let expected = self.oracle.stats(namespace);
            check_equal(&format!("stats of {namespace}"), &self.index.namespace_stats(namespace), &expected)?;
            sum += expected;
            let layouts = self.oracle.layouts(namespace);
            check_equal(&format!("layouts of {namespace}"), &self.index.layouts(namespace), &layouts)?;
        }
        check_equal("stats", &stats.trees, &sum)?;
        check_equal("leased bytes", &stats.leased_bytes, &self.oracle.leased_bytes())?;
        check_equal("reserved bytes", &stats.reserved_bytes, &self.oracle.reserved()[0])?;
        check_equal("units", &stats.units, &self.oracle.units())?;
        check_equal("namespaces", &stats.namespaces, &(self.oracle.namespaces().len() as u64))?;
        let labels = self.index.labels();
        for label in 0..3_u16 {
            let actual = labels.get(usize::from(label)).copied().unwrap_or_default();
            let expected: LabelAmount = self.oracle.label(label);
            check_equal(&format!("label {label}"), &actual, &expected)?;
        }
        self.accounted()
    }

    /// Checks that every live id is held and every held id is live, and that everything held and being copied
    /// stays under the limits.
    fn accounted(&self) -> Outcome {
        let (segments, checkpoints) = self.oracle.ids();
        let segments: HashSet<SegmentId> = segments.into_iter().flatten().collect();
        check_equal("segments held", &self.segments.keys().copied().collect(), &segments)?;
        let checkpoints: HashSet<CheckpointId> = checkpoints.into_iter().collect();
        check_equal("checkpoints held", &self.checkpoints.keys().copied().collect(), &checkpoints)?;
        let mut nbytes: u64 = self.segments.values().map(Arrays::nbytes).sum();
        nbytes += self.checkpoints.values().sum::<u64>() + self.index.namespace_stats(BARE).nbytes;
        check_equal("bytes held", &nbytes, &self.index.stats().trees.nbytes)?;
        for Open { store, copies, .. } in &self.open {
            nbytes += copies.iter().map(|(_, arrays)| arrays.nbytes()).sum::<u64>();
            nbytes += store.checkpoint.map_or(0, |spec| spec.nbytes);
        }
        if nbytes > self.limits.max_bytes {
            return Err(format!(
                "{nbytes} bytes are held or being copied, more than {}",
                self.limits.max_bytes
            ));
        }
        let buffers = self.index.stats().trees.buffers + self.oracle.reserved()[1];
        if buffers > self.limits.max_buffers {
            return Err(format!(
                "{buffers} buffers are held or promised, more than {}",
                self.limits.max_buffers
            ));
        }
        Ok(())
    }
}
