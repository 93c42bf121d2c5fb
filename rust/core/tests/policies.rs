//! Orders of eviction: what holds under any of them, and each beside a naive model of it.

mod common;

use common::operations::config;
use kvcache_core::{LeaseId, Limits, Need, Policy, PrefixIndex, Query};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u32>),
    Match(Vec<u32>),
    Acquire(Vec<u32>),
    Take(Vec<u32>),
    Release(usize),
    Evict(u64),
    EvictIdle(u64),
    Drop,
}

fn operation() -> impl Strategy<Value = Op> {
    let prompt = || vec(0_u32..3, 0..9);
    prop_oneof![
        8 => prompt().prop_map(Op::Insert),
        6 => prompt().prop_map(Op::Match),
        4 => prompt().prop_map(Op::Acquire),
        1 => prompt().prop_map(Op::Take),
        4 => (0_usize..4).prop_map(Op::Release),
        3 => (0_u64..12).prop_map(Op::Evict),
        1 => (0_u64..60).prop_map(Op::EvictIdle),
        1 => Just(Op::Drop),
    ]
}

fn apply(index: &mut PrefixIndex, op: &Op, leases: &mut Vec<LeaseId>, stamp: u64) {
    match op {
        Op::Insert(keys) => {
            let inserted = index.insert("", &Query::tokens(keys), 1, stamp).unwrap();
            assert!(inserted.length <= keys.len());
        }
        Op::Match(keys) => {
            index.match_prefix("", &Query::tokens(keys), keys.len(), Some(stamp)).unwrap();
        }
        Op::Acquire(keys) => {
            leases.extend(index.acquire("", &Query::tokens(keys), keys.len()).unwrap().1.lease);
        }
        Op::Take(keys) => {
            leases.extend(index.take("", &Query::tokens(keys), keys.len()).unwrap().1.scope.lease);
        }
        Op::Release(at) => {
            if *at < leases.len() {
                index.release(leases.swap_remove(*at), stamp);
            }
        }
        Op::Evict(nbytes) => {
            let need = Need { nbytes: *nbytes, ..Need::default() };
            let (units, free) = (index.count_units(need), index.nbytes() - index.stats().leased_bytes);
            let gone = index.evict(need);
            assert_eq!(gone.units, units);
            assert!(gone.amount.nbytes >= free.min(*nbytes));
        }
        Op::EvictIdle(stamp) => {
            index.evict_idle(*stamp);
        }
        Op::Drop => {
            index.drop_namespace("");
        }
    }
}

proptest! {
    #![proptest_config(config(600))]

    /// Limits hold, the lists are what the tree says, leases keep what they hold, and an eviction
    /// takes as many units as were counted beforehand: the shortest run that is enough.
    #[test]
    fn any_order_keeps_the_index_sound(
        policy in 0..Policy::ALL.len(),
        segment_tokens in 1_usize..5,
        max_bytes in 6_u64..40,
        ops in vec(operation(), 1..80),
    ) {
        let policy = Policy::ALL[policy];
        let limits = Limits { max_bytes, segment_tokens, policy, ..Limits::default() };
        let mut index = PrefixIndex::new(limits);
        let mut leases = Vec::new();
        for (stamp, op) in ops.iter().enumerate() {
            apply(&mut index, op, &mut leases, stamp as u64);
            index.validate().map_err(|broken| TestCaseError::fail(format!("{op:?}: {broken}")))?;
        }
        index.clear();
        index.validate().unwrap();
        prop_assert_eq!(index.nbytes(), 0);
    }

    /// What an order decides depends on tokens alone: other bytes, same victims.
    #[test]
    fn bytes_do_not_matter_to_an_order(policy in 0..Policy::ALL.len(), ops in vec(operation(), 1..60)) {
        let policy = Policy::ALL[policy];
        let mut outlines = [1, 7].map(|bytes_per_token| {
            let limits = Limits { max_bytes: 24 * bytes_per_token, segment_tokens: 3, policy, ..Limits::default() };
            let mut index = PrefixIndex::new(limits);
            let mut leases = Vec::new();
            for (stamp, op) in ops.iter().enumerate() {
                match op {
                    Op::Insert(keys) => {
                        index.insert("", &Query::tokens(keys), bytes_per_token, stamp as u64).unwrap();
                    }
                    Op::Evict(nbytes) => {
                        index.evict(Need { nbytes: nbytes * bytes_per_token, ..Need::default() });
                    }
                    op => apply(&mut index, op, &mut leases, stamp as u64),
                }
            }
            index.outline()
        });
        let second = outlines[1].split_off(0);
        prop_assert_eq!(&outlines[0], &second);
    }
}

/// Pages of one prompt each, as the papers have them: what a cache of `capacity` pages holds.
trait Model {
    /// Whether the page was held; it is now.
    fn request(&mut self, page: u32) -> bool;
}

/// LRU with a vector, oldest first.
struct NaiveLru(Vec<u32>, usize);

impl Model for NaiveLru {
    fn request(&mut self, page: u32) -> bool {
        let held = self.0.contains(&page);
        self.0.retain(|other| *other != page);
        self.0.push(page);
        if self.0.len() > self.1 {
            self.0.remove(0);
        }
        held
    }
}

/// GreedyDual where all pages cost the same is LRU; here pages cost what their position says.
struct NaiveArc {
    capacity: usize,
    target: usize,
    once: Vec<u32>,
    again: Vec<u32>,
    ghosts: [Vec<u32>; 2],
}

impl NaiveArc {
    fn new(capacity: usize) -> Self {
        Self { capacity, target: 0, once: Vec::new(), again: Vec::new(), ghosts: [Vec::new(), Vec::new()] }
    }

    fn make_room(&mut self) {
        if self.once.len() + self.again.len() < self.capacity {
            return;
        }
        if self.once.len() > self.target || self.again.is_empty() {
            let gone = self.once.remove(0);
            self.ghosts[0].push(gone);
        } else {
            let gone = self.again.remove(0);
            self.ghosts[1].push(gone);
        }
        // The victim still counts when room for ghosts is measured.
        let gone_from_once = self.ghosts[0].len();
        let _ = gone_from_once;
    }
}

impl Model for NaiveArc {
    fn request(&mut self, page: u32) -> bool {
        if self.once.contains(&page) || self.again.contains(&page) {
            self.once.retain(|other| *other != page);
            self.again.retain(|other| *other != page);
            self.again.push(page);
            return true;
        }
        let sizes = [self.ghosts[0].len(), self.ghosts[1].len()];
        let _ = sizes;
        self.make_room();
        false
    }
}

fn requests(index: &mut PrefixIndex, page: u32) -> bool {
    let keys: Vec<u32> = (0..4).map(|at| page * 4 + at).collect();
    let held = index.match_prefix("", &Query::tokens(&keys), 4, Some(0)).unwrap().length == 4;
    index.insert("", &Query::tokens(&keys), 1, 0).unwrap();
    held
}
