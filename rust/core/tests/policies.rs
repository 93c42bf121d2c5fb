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
    #![proptest_config(config(400))]

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
        prop_assert!(index.stats().index_bytes < 4_000, "{} bytes left", index.stats().index_bytes);
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

/// Tokens of a prompt in the tests below: each is one unit, as in the papers' models.
const PAGE: usize = 4;

/// What a request of a page comes to: whether it was held. It is now.
fn request(index: &mut PrefixIndex, page: u32) -> bool {
    let keys: Vec<u32> = (0..PAGE as u32).map(|at| page << 8 | at).collect();
    let held = index.match_prefix("", &Query::tokens(&keys), PAGE, Some(0)).unwrap().length == PAGE;
    index.insert("", &Query::tokens(&keys), 1, 0).unwrap();
    held
}

fn index_of(policy: Policy, pages: usize) -> PrefixIndex {
    let max_bytes = (pages * PAGE) as u64;
    PrefixIndex::new(Limits { max_bytes, segment_tokens: PAGE, policy, ..Limits::default() })
}

/// ARC with vectors, oldest first. Room is made before the share is adapted.
#[derive(Default)]
struct NaiveArc {
    pages: usize,
    target: usize,
    lists: [Vec<u32>; 2],
    ghosts: [Vec<u32>; 2],
}

impl NaiveArc {
    fn request(&mut self, page: u32) -> bool {
        if self.lists.iter().any(|list| list.contains(&page)) {
            self.lists.iter_mut().for_each(|list| list.retain(|other| *other != page));
            self.lists[1].push(page);
            return true;
        }
        let [once, again] = [0, 1].map(|list| self.lists[list].len());
        if once + again == self.pages {
            let list = usize::from(once * PAGE <= self.target && again > 0);
            let gone = self.lists[list].remove(0);
            self.ghosts[list].push(gone);
            while self.ghosts[0].len() + self.lists[0].len() > self.pages {
                self.ghosts[0].remove(0);
            }
            while self.ghosts[0].len() + self.ghosts[1].len() > self.pages {
                self.ghosts[1].remove(0);
            }
        }
        let held = PAGE * self.lists.iter().map(Vec::len).sum::<usize>();
        let sizes = [0, 1].map(|list| (PAGE * self.ghosts[list].len()).max(1));
        let missed = [0, 1].map(|list| self.ghosts[list].contains(&page));
        self.ghosts.iter_mut().for_each(|list| list.retain(|other| *other != page));
        if missed[0] {
            self.target = (self.target + PAGE * (sizes[1] / sizes[0]).max(1)).min(held);
        } else if missed[1] {
            self.target = self.target.saturating_sub(PAGE * (sizes[0] / sizes[1]).max(1));
        }
        self.lists[usize::from(missed[0] || missed[1])].push(page);
        false
    }
}

/// `GreedyDual` with a vector of (page, worth, uses), the one used longest ago first.
#[derive(Default)]
struct NaiveGreedyDual {
    pages: usize,
    clock: f64,
    held: Vec<(u32, f64, u32)>,
}

impl NaiveGreedyDual {
    fn request(&mut self, page: u32) -> bool {
        let at = self.held.iter().position(|held| held.0 == page);
        let uses = at.map_or(1, |at| self.held.remove(at).2 + 1).min(256);
        if at.is_none() && self.held.len() == self.pages {
            // The first of several that are worth the least.
            let by_worth = |a: &usize, b: &usize| self.held[*a].1.total_cmp(&self.held[*b].1);
            let gone = (0..self.held.len()).min_by(by_worth).unwrap();
            self.clock = self.clock.max(self.held.remove(gone).1);
        }
        let whole = f64::from(uses).log2().floor();
        self.held.push((page, self.clock + whole + f64::from(uses) / whole.exp2(), uses));
        at.is_some()
    }
}

/// Finds and misses the same pages as the model.
fn alike(
    policy: Policy,
    room: usize,
    pages: Vec<u32>,
    mut naive: impl FnMut(u32) -> bool,
) -> Result<(), TestCaseError> {
    let mut index = index_of(policy, room);
    for (at, page) in pages.into_iter().enumerate() {
        prop_assert_eq!(request(&mut index, page), naive(page), "request {}", at);
    }
    Ok(())
}

/// Page numbers with some that come again and again.
fn pages(count: usize) -> impl Strategy<Value = Vec<u32>> {
    vec(prop_oneof![2 => 0_u32..4, 3 => 0_u32..12, 2 => 0_u32..60], 1..count)
}

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn arc_does_what_the_paper_says(room in 1_usize..10, pages in pages(300)) {
        let mut naive = NaiveArc { pages: room, ..NaiveArc::default() };
        alike(Policy::Arc, room, pages, |page| naive.request(page))?;
    }

    #[test]
    fn greedy_dual_does_what_the_papers_say(room in 1_usize..10, pages in pages(300)) {
        let mut naive = NaiveGreedyDual { pages: room, ..NaiveGreedyDual::default() };
        alike(Policy::GreedyDual, room, pages, |page| naive.request(page))?;
    }

    /// The account's promise, at every moment of any traffic: LRU has not found more than one token
    /// in 250 of those asked for, and one cacheful, beyond what this found.
    #[test]
    fn insurance_pays(room in 1_usize..10, pages in pages(600)) {
        let (mut insured, mut lru) = (index_of(Policy::InsuredArc, room), index_of(Policy::Lru, room));
        let (mut found, mut could_be) = (0, 0);
        for (at, page) in pages.into_iter().enumerate() {
            found += PAGE * usize::from(request(&mut insured, page));
            could_be += PAGE * usize::from(request(&mut lru, page));
            let most = (at + 1) * PAGE / 250 + room * PAGE;
            prop_assert!(could_be <= found + most, "{} of {} after {}", found, could_be, at + 1);
        }
    }
}

/// Ten pages twice over, then sixty that never come again: LRU finds the ten once a round, ARC both
/// times, and the insured one is allowed to.
#[test]
fn insurance_lets_arc_win() {
    let found = |policy| {
        let mut index = index_of(policy, 40);
        let page = |at: u32| if at % 80 < 20 { at % 10 } else { 1000 + at };
        (0..16_000).filter(|at| request(&mut index, page(*at))).count()
    };
    let [lru, arc, insured] = [Policy::Lru, Policy::Arc, Policy::InsuredArc].map(found);
    assert!(lru == 2_000 && arc > 3_900 && insured > 3_500, "{lru}, {arc}, {insured}");
}

#[test]
fn names_are_unique() {
    for policy in Policy::ALL {
        assert_eq!(Policy::named(policy.name()), Some(policy));
    }
    assert_eq!(Policy::named("LRU"), None);
}
