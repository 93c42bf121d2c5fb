//! Indexes with one deliberate fault each.
//!
//! A fault changes the arguments or results of a correct index, so `validate()` cannot see it: only the
//! comparison with the oracle catches it.

pub(crate) mod names;

use kvcache_core::{
    BrokenInvariant, Committed, Dropped, Error, Inserted, LabelAmount, LayoutId, LeaseId, Limits, Match,
    Need, Outcome, Plan, PlanId, Planned, PrefixIndex, Scope, SegmentId, Stats, Taken, TreeStats,
};

use super::index::{Index, Store};
use super::prompt::{Part, Prompt};

pub(crate) use names::Fault;

use Fault as F;

pub(crate) struct Faulty {
    inner: PrefixIndex,
    fault: Fault,
    /// The last store planned.
    last: Option<Store>,
    stamp: u64,
    split: bool,
}

impl Faulty {
    pub(crate) fn new(fault: Fault, limits: Limits) -> Self {
        let limits = match fault {
            F::ExceedsTheLimit => Limits { max_bytes: limits.max_bytes.saturating_add(3), ..limits },
            F::KeepsAllCheckpoints => Limits { max_checkpoints: usize::MAX, ..limits },
            _ => limits,
        };
        Self { inner: PrefixIndex::new(limits), fault, last: None, stamp: 0, split: false }
    }

    fn namespace<'a>(&self, namespace: &'a str) -> &'a str {
        if self.fault == F::MatchesAcrossNamespaces && namespace == "b" { "a" } else { namespace }
    }

    fn prompt(&self, prompt: &Prompt) -> Prompt {
        let part = |part: &Part| match (self.fault, *part) {
            (F::TreatsAllMediaAsEqual, Part::Media(_, length)) => Part::Media(0, length),
            (F::AcceptsInvalidTokens, Part::Text(id)) => Part::Text(id & kvcache_core::MAX_TOKEN),
            (_, part) => part,
        };
        Prompt(prompt.0.iter().map(part).collect())
    }

    fn tampered(&self, mut dropped: Dropped) -> Dropped {
        match (self.fault, dropped.segments.last().copied()) {
            (F::ForgetsADroppedId, Some(_)) => {
                dropped.segments.pop();
            }
            (F::ReportsADroppedIdTwice, Some(id)) => dropped.segments.push(id),
            _ => {}
        }
        dropped
    }

    /// Takes the path stored last out of the index, instead of evicting the oldest.
    fn evict_newest(&mut self) -> Option<Dropped> {
        let last = self.last.take()?;
        let all = last.prompt.len();
        let (_, taken) = Index::take(&mut self.inner, &last.namespace, &last.prompt, all).ok()?;
        if let Some(lease) = taken.scope.lease {
            self.inner.release(lease, self.stamp);
        }
        let units = taken.dropped.segments.len() as u64;
        (units > 0).then_some(Dropped { units, ..taken.dropped })
    }
}

fn all() -> Need {
    Need { units: u64::MAX, ..Need::default() }
}

impl Index for Faulty {
    fn plan(&mut self, store: &Store, stamp: u64) -> Result<(Planned, Dropped), Error> {
        let namespace = self.namespace(&store.namespace).to_owned();
        let mut store = Store { namespace, prompt: self.prompt(&store.prompt), ..store.clone() };
        let text_last = matches!(store.prompt.0.last(), Some(Part::Text(_)));
        let one_off = self.fault == F::StoresCheckpointsOffByOne && text_last && store.checkpoint.is_some();
        if one_off {
            store.prompt.0.pop();
        }
        match (self.fault, store.checkpoint.as_mut()) {
            (F::ForgetsThatCheckpointsAreTrimmable, Some(checkpoint)) => checkpoint.trimmable = false,
            (F::CountsUnderOneLabel, _) => store.label = 0,
            (F::ForgetsTheEndOfThePrompt, _) => store.prompt_length = None,
            _ => {}
        }
        let (mut planned, evicted) = Index::plan(&mut self.inner, &store, stamp)?;
        if let Planned::Ready(plan) = &mut planned {
            if let Some(last) = plan.segments.last_mut() {
                if one_off {
                    plan.length += 1;
                    last.end += 1;
                }
                if self.fault == F::ReusesAnId && last.id.0 > 9 {
                    last.id = SegmentId(last.id.0 - 9);
                }
            }
            self.split |= plan.split.is_some();
        }
        (self.last, self.stamp) = (Some(store), stamp);
        Ok((planned, self.tampered(evicted)))
    }

    fn draft(&mut self, store: &Store, stamp: u64) -> Result<Outcome, Error> {
        Index::draft(&mut self.inner, store, stamp)
    }

    fn settle(&mut self, draft: PlanId, length: usize, recopy: bool) -> Result<(Need, Dropped), Error> {
        self.inner.settle(draft, length, recopy)
    }

    fn promise(&mut self, draft: PlanId) -> Result<Plan, Error> {
        let plan = self.inner.promise(draft);
        if self.fault == F::PromisesWithoutRoom && plan.is_err() {
            self.inner.evict(all());
            return self.inner.promise(draft);
        }
        plan
    }

    fn count_units(&self, need: Need) -> u64 {
        let fewer = u64::from(self.fault == F::CountsOneUnitTooFew);
        self.inner.count_units(need).saturating_sub(fewer)
    }

    fn count_idle(&self, stamp: u64) -> u64 {
        self.inner.count_idle(stamp)
    }

    fn commit(&mut self, plan: PlanId, stamp: u64) -> Result<Committed, Error> {
        let mut committed = self.inner.commit(plan, stamp)?;
        if self.fault == F::CommitsStalePlans {
            committed.stale = false;
        }
        match self.fault {
            F::ForgetsSplitSegments => committed.dropped.segments.clear(),
            F::ForgetsJoinedSegments => committed.joined.clear(),
            F::JoinsInTheWrongOrder => committed.joined.iter_mut().for_each(|one| one.replaced.reverse()),
            _ => {}
        }
        Ok(committed)
    }

    fn abort(&mut self, plan: PlanId) -> Result<Dropped, Error> {
        if self.fault == F::KeepsReservationsOfAbortedPlans {
            return Ok(Dropped::default());
        }
        self.inner.abort(plan)
    }

    fn insert(&mut self, namespace: &str, prompt: &Prompt, each: u64, stamp: u64) -> Result<Inserted, Error> {
        Index::insert(&mut self.inner, namespace, prompt, each, stamp)
    }

    fn lookup(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        limit: usize,
        touch: Option<u64>,
    ) -> Result<Match, Error> {
        let touch = match self.fault {
            F::EvictsInInsertionOrder => None,
            F::RefreshesOnPeek => touch.or(Some(self.stamp)),
            _ => touch,
        };
        let (namespace, prompt) = (self.namespace(namespace), self.prompt(prompt));
        let mut prefix = self.inner.lookup(namespace, &prompt, limit, touch)?;
        if self.fault == F::MatchesOneTokenTooMany && prefix.length == prefix.matched && prefix.length > 0 {
            prefix.length += 1;
            prefix.matched += 1;
        }
        Ok(prefix)
    }

    fn acquire(&mut self, namespace: &str, prompt: &Prompt, limit: usize) -> Result<(Match, Scope), Error> {
        let (namespace, prompt) = (self.namespace(namespace), self.prompt(prompt));
        let (prefix, mut scope) = Index::acquire(&mut self.inner, namespace, &prompt, limit)?;
        if let (F::IgnoresLeases, Some(lease)) = (self.fault, scope.lease) {
            self.inner.release(lease, self.stamp);
        }
        if let (F::ServesAllOfTheLastNode, Some(piece)) = (self.fault, scope.pieces.last_mut()) {
            piece.tokens += usize::from(prefix.length < prefix.matched);
        }
        Ok((prefix, scope))
    }

    fn take(&mut self, namespace: &str, prompt: &Prompt, limit: usize) -> Result<(Match, Taken), Error> {
        let (namespace, prompt) = (self.namespace(namespace), self.prompt(prompt));
        let (prefix, mut taken) = Index::take(&mut self.inner, namespace, &prompt, limit)?;
        if self.fault == F::TakesWithoutReporting {
            taken.dropped.segments.clear();
        }
        Ok((prefix, taken))
    }

    fn release(&mut self, lease: LeaseId, stamp: u64) -> Dropped {
        if self.fault == F::NeverEndsALease {
            return Dropped::default();
        }
        self.inner.release(lease, stamp)
    }

    fn evict(&mut self, need: Need) -> Dropped {
        let need = match self.fault {
            F::EvictsTheNewest if need != Need::default() => match self.evict_newest() {
                Some(dropped) => return dropped,
                None => need,
            },
            F::EvictsOneUnitTooMany => Need { units: need.units + 1, ..need },
            F::EvictsOneEntryTooFew => Need { entries: need.entries.saturating_sub(1), ..need },
            F::EvictsOneByteTooFew => Need { nbytes: need.nbytes.saturating_sub(1), ..need },
            _ => need,
        };
        let dropped = self.inner.evict(need);
        self.tampered(dropped)
    }

    fn evict_idle(&mut self, stamp: u64) -> Dropped {
        let late = u64::from(self.fault == F::EvictsIdleOneTickLate);
        self.inner.evict_idle(stamp.saturating_sub(late))
    }

    fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Dropped> {
        self.inner.make_room(nbytes, buffers)
    }

    fn compacted(&mut self, lease: LeaseId, segment: SegmentId, parts: u32) -> bool {
        let parts = if self.fault == F::CompactsToOnePartTooMany { parts + 1 } else { parts };
        self.inner.compacted(lease, segment, parts)
    }

    fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> bool {
        self.inner.reserve_bytes(nbytes, buffers)
    }

    fn unreserve_bytes(&mut self, nbytes: u64, buffers: u64) {
        if self.fault != F::KeepsUnreservedRoom {
            self.inner.unreserve_bytes(nbytes, buffers);
        }
    }

    fn drop_namespace(&mut self, namespace: &str) -> Dropped {
        self.inner.drop_namespace(self.namespace(namespace))
    }

    fn clear(&mut self) -> Dropped {
        match self.fault {
            F::KeepsPinsOnClear => self.inner.evict(all()),
            _ => self.inner.clear(),
        }
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn namespace_stats(&self, namespace: &str) -> TreeStats {
        let mut stats = self.inner.namespace_stats(namespace);
        if self.fault == F::MiscountsSplits && self.split {
            stats.segments = stats.segments.saturating_sub(1);
        }
        if self.fault == F::CountsCoveredSequencesAsEntries {
            stats.entries = stats.sequences;
        }
        stats
    }

    fn labels(&self) -> Vec<LabelAmount> {
        self.inner.labels().to_vec()
    }

    fn layouts(&self, namespace: &str) -> Vec<LayoutId> {
        self.inner.layouts(namespace)
    }

    fn validate(&self) -> Result<(), BrokenInvariant> {
        self.inner.validate()
    }
}
