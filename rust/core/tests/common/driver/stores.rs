//! Stores: planned at once or drafted step by step, copied, then committed or aborted.

use kvcache_core::{Outcome as Stage, Plan, PlanId, Planned, SegmentId};

use super::{Arrays, Driver, Open, Outcome, check_equal, valid};
use crate::common::index::{Index, Store};
use crate::common::oracle::Expected;

impl<I: Index> Driver<I> {
    pub(super) fn plan(&mut self, store: &Store) -> Result<bool, String> {
        self.stored.push(store.clone());
        let (expected, removed) = self.oracle.plan(store, self.clock);
        let (planned, evicted) = valid("plan", self.index.plan(store, self.clock))?;
        let actual = match &planned {
            Planned::Ready(plan) => ready(plan),
            Planned::Already(_) => Expected::Already,
            Planned::TooLarge => Expected::TooLarge,
            Planned::InsideMedia => Expected::Nothing,
        };
        check_equal("plan", &actual, &expected)?;
        self.dropped("plan's eviction", evicted, removed)?;
        if let Planned::Already(joined) = &planned {
            self.joined(joined)?;
        }
        let Planned::Ready(plan) = planned else { return Ok(false) };
        self.issue(plan.id.0)?;
        self.opened(plan, store)?;
        Ok(true)
    }

    fn opened(&mut self, plan: Plan, store: &Store) -> Outcome {
        let halves = plan.split.iter().flat_map(|split| [split.upper.0, split.lower.0]);
        let segments = plan.segments.iter().map(|segment| segment.id.0);
        let checkpoint = plan.checkpoint.iter().map(|id| id.0);
        let ids: Vec<u64> = halves.chain(segments).chain(checkpoint).collect();
        ids.into_iter().try_for_each(|id| self.issue(id))?;
        self.oracle.opened(&plan);
        let copies = self.copies(&plan, store);
        self.open.push(Open { plan, store: store.clone(), copies });
        Ok(())
    }

    pub(super) fn draft(&mut self, store: &Store) -> Outcome {
        self.stored.push(store.clone());
        let expected = self.oracle.draft(store, self.clock);
        let actual = match valid("draft", self.index.draft(store, self.clock))? {
            Stage::Open(drafted) => {
                self.issue(drafted.id.0)?;
                self.oracle.drafted(drafted.id);
                self.drafts.push((drafted.id, store.clone()));
                Ok((drafted.length, drafted.length_recopied))
            }
            Stage::Already(joined) => {
                self.joined(&joined)?;
                Err(Expected::Already)
            }
            Stage::InsideMedia => Err(Expected::Nothing),
        };
        check_equal("draft", &actual, &expected)
    }

    pub(super) fn settle(&mut self, at: usize, short: usize, recopy: bool, evict: bool) -> Outcome {
        let (id, length) = (self.drafts[at].0, self.drafts[at].1.prompt.len().saturating_sub(short));
        let expected = self.oracle.settle(id, length, recopy);
        let actual = self.index.settle(id, length, recopy).ok();
        let over = actual.as_ref().map(|(need, _)| [need.nbytes, need.buffers]);
        check_equal("settle", &over, &expected.as_ref().map(|(over, _)| *over))?;
        let (Some((need, actual)), Some((_, removed))) = (actual, expected) else { return Ok(()) };
        self.dropped("settle", actual, removed)?;
        if evict { self.evict(need) } else { Ok(()) }
    }

    pub(super) fn promise(&mut self, at: usize) -> Outcome {
        let id = self.drafts[at].0;
        let expected = self.oracle.promise(id);
        let plan = self.index.promise(id).ok();
        check_equal("promise", &plan.as_ref().map(ready), &expected)?;
        let Some(plan) = plan else { return Ok(()) };
        let (_, store) = self.drafts.remove(at);
        self.opened(plan, &store)
    }

    pub(super) fn commit(&mut self, at: usize) -> Outcome {
        let Open { plan, store, copies } = self.open.remove(at);
        let Some((stale, removed)) = self.oracle.commit(plan.id, self.clock) else {
            return Err("the oracle does not know the plan".to_owned());
        };
        let actual = valid("commit", self.index.commit(plan.id, self.clock))?;
        check_equal("stale", &actual.stale, &stale)?;
        if !stale {
            self.segments.extend(copies);
            self.checkpoints.extend(plan.checkpoint.zip(store.checkpoint.map(|spec| spec.nbytes)));
        }
        self.ended.push(plan);
        self.joined(&actual.joined)?;
        self.dropped("commit", actual.dropped, removed)
    }

    /// What the holder of the arrays copies for a plan.
    fn copies(&self, plan: &Plan, store: &Store) -> Vec<(SegmentId, Arrays)> {
        let each = store.bytes_per_token;
        let new = |start, end| Arrays { tokens: (end - start) as u64, each };
        let segments = plan.segments.iter().map(|segment| (segment.id, new(segment.start, segment.end)));
        let halves = plan.split.iter().flat_map(|split| {
            let whole = self.segments.get(&split.old).copied().unwrap_or_default();
            let upper = Arrays { tokens: split.at as u64, ..whole };
            let lower = Arrays { tokens: whole.tokens.saturating_sub(upper.tokens), ..whole };
            [(split.upper, upper), (split.lower, lower)]
        });
        segments.chain(halves).collect()
    }

    pub(super) fn compact(&mut self, which: usize, segment: usize, parts: u32) -> Outcome {
        let mut ids: Vec<SegmentId> = self.segments.keys().copied().collect();
        ids.sort();
        if ids.is_empty() || self.leases.is_empty() {
            return Ok(());
        }
        let (lease, id) = (self.leases[which % self.leases.len()], ids[segment % ids.len()]);
        let expected = self.oracle.compacted(lease, id, parts);
        check_equal("compacted", &self.index.compacted(lease, id, parts), &expected)
    }

    pub(super) fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> Outcome {
        let expected = self.oracle.reserve_bytes(nbytes, buffers);
        self.transient.extend(expected.then_some((nbytes, buffers)));
        check_equal("reserve_bytes", &self.index.reserve_bytes(nbytes, buffers), &expected)
    }

    pub(super) fn unreserve_bytes(&mut self, which: usize) {
        if !self.transient.is_empty() {
            let which = which % self.transient.len();
            let (nbytes, buffers) = self.transient.remove(which);
            self.oracle.unreserve_bytes(which);
            self.index.unreserve_bytes(nbytes, buffers);
        }
    }

    pub(super) fn abort(&mut self, id: PlanId) -> Outcome {
        let removed = self.oracle.abort(id).unwrap_or_default();
        let actual = valid("abort", self.index.abort(id))?;
        self.dropped("abort", actual, removed)
    }
}

/// A plan without its ids.
fn ready(plan: &Plan) -> Expected {
    Expected::Ready {
        length: plan.length,
        matched: plan.matched,
        segments: plan.segments.iter().map(|segment| (segment.start, segment.end)).collect(),
        split: plan.split.map(|split| (Some(split.old), split.at)),
        checkpoint: plan.checkpoint.is_some(),
    }
}
