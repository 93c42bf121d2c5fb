//! A minimal engine for the named cases: stores, fetches, and a clock.

use kvcache_core::{
    CheckpointId, CheckpointSpec, Drafted, Dropped, LeaseId, Limits, Match, Need, Outcome, Plan, Planned,
    PrefixIndex,
};

use super::index::{Index, Store};
use super::prompt::Prompt;

pub(crate) struct Engine {
    pub(crate) index: PrefixIndex,
    clock: u64,
}

/// The tokens `start..end`, all distinct.
pub(crate) fn run(start: u32, end: u32) -> Prompt {
    Prompt::text(start..end)
}

/// A store of full-attention layers, with one byte per token and one array per segment.
pub(crate) fn span(namespace: &str, prompt: &Prompt) -> Store {
    Store {
        namespace: namespace.to_owned(),
        layout: 0,
        prompt: prompt.clone(),
        bytes_per_token: 1,
        buffers: 1,
        checkpoint: None,
        label: 0,
        prompt_length: None,
    }
}

/// Like [`span`], with a checkpoint of ten bytes.
pub(crate) fn hybrid(namespace: &str, prompt: &Prompt, trimmable: bool) -> Store {
    let checkpoint = Some(CheckpointSpec { nbytes: 10, buffers: 1, trimmable });
    Store { layout: 1, checkpoint, ..span(namespace, prompt) }
}

pub(crate) fn limits() -> Limits {
    Limits::default()
}

impl Engine {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { index: PrefixIndex::new(limits), clock: 0 }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn plan(&mut self, store: &Store) -> (Planned, Dropped) {
        let stamp = self.tick();
        let result = Index::plan(&mut self.index, store, stamp).unwrap();
        self.index.validate().unwrap();
        result
    }

    /// Drafts a store that is not held yet.
    pub(crate) fn draft(&mut self, store: &Store) -> Drafted {
        let stamp = self.tick();
        match Index::draft(&mut self.index, store, stamp).unwrap() {
            Outcome::Open(drafted) => drafted,
            other => panic!("{other:?} for {store:?}"),
        }
    }

    /// Plans a store that has room.
    pub(crate) fn ready(&mut self, store: &Store) -> Plan {
        match self.plan(store).0 {
            Planned::Ready(plan) => plan,
            other => panic!("{other:?} for {store:?}"),
        }
    }

    /// Commits a plan. Returns whether it was stored, and what it replaced.
    pub(crate) fn commit(&mut self, plan: &Plan) -> (bool, Dropped) {
        let stamp = self.tick();
        let committed = self.index.commit(plan.id, stamp).unwrap();
        self.index.validate().unwrap();
        (!committed.stale, committed.dropped)
    }

    /// Plans and commits. Returns the tokens now held and what was evicted.
    pub(crate) fn store(&mut self, store: &Store) -> (usize, Dropped) {
        let (planned, evicted) = self.plan(store);
        let length = match planned {
            Planned::Ready(plan) => {
                assert!(self.commit(&plan).0, "nothing happened in between");
                plan.length
            }
            Planned::Already(_) => store.prompt.len(),
            Planned::TooLarge | Planned::InsideMedia => 0,
        };
        (length, evicted)
    }

    pub(crate) fn put(&mut self, prompt: &Prompt) -> usize {
        self.store(&span("", prompt)).0
    }

    /// Stores with a checkpoint at the end.
    pub(crate) fn mark(&mut self, prompt: &Prompt) -> usize {
        self.store(&hybrid("", prompt, false)).0
    }

    /// Looks up what a fetch reuses, and touches it.
    pub(crate) fn fetch(&mut self, namespace: &str, prompt: &Prompt) -> Match {
        let stamp = self.tick();
        let limit = prompt.len().saturating_sub(1);
        let prefix = self.index.lookup(namespace, prompt, limit, Some(stamp)).unwrap();
        assert!(prefix.length <= limit && prefix.length <= prefix.matched);
        let peeked = self.index.lookup(namespace, prompt, limit, None).unwrap();
        assert_eq!(prefix, peeked, "a touch must not change the result");
        self.index.validate().unwrap();
        prefix
    }

    /// Tokens that a fetch reuses.
    pub(crate) fn get(&mut self, prompt: &Prompt) -> usize {
        self.fetch("", prompt).length
    }

    /// Leases what serves the whole prompt. Returns the lease, its length and its checkpoint.
    pub(crate) fn pin(&mut self, prompt: &Prompt) -> (Option<LeaseId>, usize, Option<(CheckpointId, usize)>) {
        let (prefix, scope) = Index::acquire(&mut self.index, "", prompt, prompt.len()).unwrap();
        assert_eq!(scope.pieces.iter().map(|piece| piece.tokens).sum::<usize>(), prefix.length);
        self.index.validate().unwrap();
        (scope.lease, prefix.length, scope.checkpoint)
    }

    pub(crate) fn release(&mut self, lease: LeaseId) -> Dropped {
        let stamp = self.tick();
        let dropped = self.index.release(lease, stamp);
        self.index.validate().unwrap();
        dropped
    }

    pub(crate) fn evict_units(&mut self, units: u64) -> Dropped {
        let dropped = self.index.evict(Need { units, ..Need::default() });
        self.index.validate().unwrap();
        dropped
    }

    pub(crate) fn evict_bytes(&mut self, nbytes: u64) -> Dropped {
        let dropped = self.index.evict(Need { nbytes, ..Need::default() });
        self.index.validate().unwrap();
        dropped
    }
}
