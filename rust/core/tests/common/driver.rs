//! Applies operations to an index and to the oracle, and compares everything observable.
//!
//! It also plays the holder of the arrays: it holds what commits added and drops have not removed. Together
//! with the copies of open plans, that never exceeds the limit.

mod books;
mod lookups;
mod stores;

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;

use kvcache_core::{
    CheckpointId, CheckpointSpec, Dropped, Error, Inserted, LeaseId, Limits, Need, Plan, PlanId, SegmentId,
};

use super::index::{Index, Store};
use super::operations::{BARE, Operation, Request, Script, Target};
use super::oracle::Oracle;
use super::prompt::{Part, Prompt};

/// An error describes what differs.
pub(crate) type Outcome = Result<(), String>;

/// The arrays of one segment.
#[derive(Clone, Copy, Debug, Default)]
struct Arrays {
    tokens: u64,
    /// Bytes per token.
    each: u64,
}

impl Arrays {
    fn nbytes(&self) -> u64 {
        self.tokens * self.each
    }
}

/// A plan, and the copies made for it.
struct Open {
    plan: Plan,
    store: Store,
    copies: Vec<(SegmentId, Arrays)>,
}

pub(crate) struct Driver<I> {
    index: I,
    oracle: Oracle,
    limits: Limits,
    clock: u64,
    /// All stores, including failed ones.
    stored: Vec<Store>,
    drafts: Vec<(PlanId, Store)>,
    open: Vec<Open>,
    ended: Vec<Plan>,
    leases: Vec<LeaseId>,
    /// Room reserved with `reserve_bytes`.
    transient: Vec<(u64, u64)>,
    released: Vec<LeaseId>,
    /// Does not include what `insert` stored, which has no ids here.
    segments: HashMap<SegmentId, Arrays>,
    checkpoints: HashMap<CheckpointId, u64>,
    /// All ids ever issued.
    issued: HashSet<u64>,
}

fn check_equal<T: PartialEq + Debug>(what: &str, actual: &T, expected: &T) -> Outcome {
    if actual == expected {
        return Ok(());
    }
    Err(format!("{what}: {actual:?}, expected {expected:?}"))
}

fn valid<T>(what: &str, result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Runs a script on a new index from `make`.
pub(crate) fn run<I: Index>(script: &Script, make: impl FnOnce(Limits) -> I) -> Outcome {
    let mut driver = Driver::new(script.limits, make(script.limits));
    for (at, step) in script.steps.iter().enumerate() {
        driver.clock += step.wait;
        driver.apply(&step.operation).map_err(|what| format!("step {at}, {:?}: {what}", step.operation))?;
    }
    Ok(())
}

impl<I: Index> Driver<I> {
    fn new(limits: Limits, index: I) -> Self {
        Self {
            index,
            oracle: Oracle::new(limits),
            limits,
            clock: 1,
            stored: Vec::new(),
            drafts: Vec::new(),
            open: Vec::new(),
            ended: Vec::new(),
            leases: Vec::new(),
            transient: Vec::new(),
            released: Vec::new(),
            segments: HashMap::new(),
            checkpoints: HashMap::new(),
            issued: HashSet::new(),
        }
    }

    fn apply(&mut self, operation: &Operation) -> Outcome {
        match operation {
            Operation::Store(request) => {
                let planned = self.plan(&self.requested(request))?;
                self.compare()?;
                if planned {
                    self.commit(self.open.len() - 1)?;
                }
            }
            Operation::Plan(request) => {
                self.plan(&self.requested(request))?;
            }
            Operation::Draft(request) => self.draft(&self.requested(request))?,
            Operation::Settle { which, short, recopy, evict } if !self.drafts.is_empty() => {
                self.settle(which % self.drafts.len(), *short, *recopy, *evict)?;
            }
            Operation::Promise(which) if !self.drafts.is_empty() => {
                self.promise(which % self.drafts.len())?;
            }
            Operation::AbortDraft(which) if !self.drafts.is_empty() => {
                let (id, _) = self.drafts.remove(which % self.drafts.len());
                self.abort(id)?;
            }
            Operation::Commit { which, ended: false } if !self.open.is_empty() => {
                self.commit(which % self.open.len())?;
            }
            Operation::Abort { which, ended: false } if !self.open.is_empty() => {
                let Open { plan, .. } = self.open.remove(which % self.open.len());
                self.abort(plan.id)?;
                self.ended.push(plan);
            }
            Operation::Commit { which, ended: true } if !self.ended.is_empty() => {
                let id = self.ended[which % self.ended.len()].id;
                check_equal("commit", &self.index.commit(id, self.clock), &Err(Error::UnknownPlan))?;
            }
            Operation::Abort { which, ended: true } if !self.ended.is_empty() => {
                let id = self.ended[which % self.ended.len()].id;
                check_equal("abort", &self.index.abort(id), &Err(Error::UnknownPlan))?;
            }
            Operation::Insert { prompt, bytes_per_token } => self.insert(prompt, *bytes_per_token)?,
            Operation::Lookup { target, short, touch } => {
                let (namespace, prompt) = self.target(target);
                self.lookup(&namespace, &prompt, *short, touch.then_some(self.clock))?;
            }
            Operation::Acquire { target, short } => {
                let (namespace, prompt) = self.target(target);
                self.acquire(&namespace, &prompt, *short)?;
            }
            Operation::Take { target, short } => {
                let (namespace, prompt) = self.target(target);
                self.take(&namespace, &prompt, *short)?;
            }
            Operation::Release { which, ended: false } if !self.leases.is_empty() => {
                let lease = self.leases.remove(which % self.leases.len());
                self.released.push(lease);
                self.release(lease)?;
            }
            Operation::Release { which, ended: true } if !self.released.is_empty() => {
                self.release(self.released[which % self.released.len()])?;
            }
            Operation::Settle { .. }
            | Operation::Promise(_)
            | Operation::AbortDraft(_)
            | Operation::Commit { .. }
            | Operation::Abort { .. }
            | Operation::Release { .. } => {}
            Operation::Evict(need) => {
                self.evict(*need)?;
            }
            Operation::EvictIdle(age) => {
                let stamp = self.oracle.stamp().saturating_sub(*age);
                let removed = self.oracle.evict_idle(stamp);
                check_equal("count_idle", &self.index.count_idle(stamp), &removed.units)?;
                let actual = self.index.evict_idle(stamp);
                self.dropped("evict_idle", actual, removed)?;
            }
            Operation::MakeRoom { nbytes, buffers } => {
                let removed = self.oracle.make_room(*nbytes, *buffers);
                let actual = self.index.make_room(*nbytes, *buffers);
                check_equal("make_room", &actual.is_some(), &removed.is_some())?;
                self.dropped("make_room", actual.unwrap_or_default(), removed.unwrap_or_default())?;
            }
            Operation::Compact { which, segment, parts } => self.compact(*which, *segment, *parts)?,
            Operation::ReserveBytes { nbytes, buffers } => self.reserve_bytes(*nbytes, *buffers)?,
            Operation::UnreserveBytes(which) => self.unreserve_bytes(*which),
            Operation::Drop(namespace) => {
                let removed = self.oracle.drop_namespace(namespace);
                let actual = self.index.drop_namespace(namespace);
                self.dropped("drop", actual, removed)?;
            }
            Operation::Clear => {
                let removed = self.oracle.clear();
                let actual = self.index.clear();
                self.dropped("clear", actual, removed)?;
            }
            Operation::Invalid { store, at, key } => self.invalid(store, *at, *key)?,
        }
        self.compare()
    }

    /// What an operation stores: its own prompt, or a continuation of one of the latest stores.
    fn requested(&self, request: &Request) -> Store {
        let Request { after, store } = request;
        let Some(before) = self.latest(*after) else { return store.clone() };
        let spec = CheckpointSpec { nbytes: 2, buffers: 1, trimmable: true };
        let checkpoint = before.checkpoint.map(|_| store.checkpoint.unwrap_or(spec));
        Store {
            prompt: before.prompt.then(&store.prompt),
            checkpoint,
            label: store.label,
            prompt_length: store.prompt_length,
            ..before.clone()
        }
    }

    fn target(&self, target: &Target) -> (String, Prompt) {
        let Target { after, namespace, prompt } = target;
        match self.latest(*after) {
            Some(before) => (before.namespace.clone(), before.prompt.then(prompt)),
            None => (namespace.clone(), prompt.clone()),
        }
    }

    fn latest(&self, after: Option<usize>) -> Option<&Store> {
        self.stored.iter().rev().nth(after?).filter(|store| store.prompt.len() < 30)
    }

    fn issue(&mut self, id: u64) -> Outcome {
        if self.issued.insert(id) { Ok(()) } else { Err(format!("id {id} is already in use")) }
    }

    fn evict(&mut self, need: Need) -> Outcome {
        let counted = self.index.count_units(need);
        let removed = self.oracle.evict(&need);
        check_equal("count_units", &counted, &removed.units)?;
        let actual = self.index.evict(need);
        self.dropped("evict", actual, removed)
    }

    fn insert(&mut self, prompt: &Prompt, each: u64) -> Outcome {
        let (expected, removed) = self.oracle.insert(BARE, prompt, each, self.clock);
        let actual = valid("insert", self.index.insert(BARE, prompt, each, self.clock))?;
        let counts = Inserted { evicted: Dropped::default(), ..actual };
        check_equal("insert", &counts, &expected)?;
        self.joined(&[])?;
        self.dropped("insert's eviction", actual.evicted, removed)
    }

    fn invalid(&mut self, store: &Store, at: usize, key: u32) -> Outcome {
        let mut store = store.clone();
        store.prompt.0.insert(at.min(store.prompt.0.len()), Part::Text(key));
        let Some((position, key)) = store.prompt.first_invalid() else { return Ok(()) };
        let expected = Error::InvalidToken { position, key };
        let planned = self.index.plan(&store, self.clock).map(|(planned, _)| planned);
        check_equal("an invalid token in a store", &planned, &Err(expected.clone()))?;
        let actual = self.index.lookup(&store.namespace, &store.prompt, 9, Some(self.clock));
        check_equal("an invalid token in a lookup", &actual, &Err(expected))
    }
}
