//! An engine in small, for the named cases: stores, fetches, and a clock.

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

/// The tokens `start..end`, each of which occurs once.
pub(crate) fn run(start: u32, end: u32) -> Prompt {
    Prompt::text(start..end)
}

/// A store of full-attention layers, of one byte and one array.
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

/// As [`span`], with a checkpoint of ten bytes.
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

    /// A draft of what is not held yet.
    pub(crate) fn draft(&mut self, store: &Store) -> Drafted {
        let stamp = self.tick();
        match Index::draft(&mut self.index, store, stamp).unwrap() {
            Outcome::Open(drafted) => drafted,
            other => panic!("{other:?} for {store:?}"),
        }
    }

    /// A plan that has room.
    pub(crate) fn ready(&mut self, store: &Store) -> Plan {
        match self.plan(store).0 {
            Planned::Ready(plan) => plan,
            other => panic!("{other:?} for {store:?}"),
        }
    }

    /// Whether the plan went through, and what it replaced.
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
                assert!(self.commit(&plan).0, "nothing came between");
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

    /// What a fetch finds; it refreshes what serves it.
    pub(crate) fn fetch(&mut self, namespace: &str, prompt: &Prompt) -> Match {
        let stamp = self.tick();
        let limit = prompt.len().saturating_sub(1);
        let found = self.index.lookup(namespace, prompt, limit, Some(stamp)).unwrap();
        assert!(found.length <= limit && found.length <= found.matched);
        let peeked = self.index.lookup(namespace, prompt, limit, None).unwrap();
        assert_eq!(found, peeked, "a touch changed what is found");
        self.index.validate().unwrap();
        found
    }

    /// Tokens that a fetch reuses.
    pub(crate) fn get(&mut self, prompt: &Prompt) -> usize {
        self.fetch("", prompt).length
    }

    /// Leases what serves the prompt, all of it: the lease, tokens and checkpoint.
    pub(crate) fn pin(&mut self, prompt: &Prompt) -> (Option<LeaseId>, usize, Option<(CheckpointId, usize)>) {
        let (found, scope) = Index::acquire(&mut self.index, "", prompt, prompt.len()).unwrap();
        assert_eq!(scope.pieces.iter().map(|piece| piece.tokens).sum::<usize>(), found.length);
        self.index.validate().unwrap();
        (scope.lease, found.length, scope.checkpoint)
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
