//! Named cases: what is held, what is evicted, and what the limits mean.

mod common;

use std::collections::HashSet;

use kvcache_core::{CheckpointSpec, Limits, Need, Planned, PrefixIndex, SegmentId};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use common::driver;
use common::engine::{Engine, hybrid, limits, run, span};
use common::index::{Index, Store};
use common::operations::script;
use common::prompt::Prompt;

fn at_most(max_bytes: u64) -> Limits {
    Limits { max_bytes, ..limits() }
}

/// After a split each half holds its own tokens, so evicting one frees only those.
#[test]
fn half_of_a_split_frees_its_own_tokens() {
    let mut engine = Engine::new(limits());
    let dear = |prompt| Store { bytes_per_token: 7, ..span("", &prompt) };
    let whole = engine.ready(&dear(run(1, 101)));
    engine.commit(&whole);
    let plan = engine.ready(&dear(run(1, 51).then(&run(200, 201))));
    let split = plan.split.unwrap();
    let (_, replaced) = engine.commit(&plan);
    assert_eq!(replaced.segments, [whole.segments[0].id]);
    assert_eq!(replaced.amount.nbytes, 0, "a split is no eviction");
    let evicted = engine.evict_units(1);
    assert_eq!(evicted.segments, [split.lower]);
    assert_eq!((evicted.amount.tokens, evicted.amount.nbytes), (50, 350));
    assert_eq!(engine.get(&run(1, 51).then(&run(200, 202))), 51);
}

/// Least recently used, not first in, first out.
#[test]
fn the_least_recently_used_is_evicted() {
    let [a, b, c] = [0, 100, 200].map(|start| run(start, start + 10));
    let mut engine = Engine::new(at_most(20));
    engine.put(&a);
    engine.put(&b);
    engine.get(&a);
    engine.put(&c);
    assert_eq!([&a, &b, &c].map(|prompt| engine.get(prompt)), [9, 0, 9]);
}

/// If two conversations diverge inside a segment, the one stored last is the more recent.
#[test]
fn a_new_branch_outlives_the_old_one() {
    let [a, b] = [100, 200].map(|start| run(0, 50).then(&run(start, start + 10)));
    let mut engine = Engine::new(limits());
    engine.put(&a);
    engine.put(&b);
    engine.evict_units(1);
    assert_eq!([&a, &b].map(|prompt| engine.get(prompt)), [50, 59]);
}

/// If any length is usable, a prompt over the limit is cut to its beginning.
#[test]
fn a_prompt_over_the_limit_keeps_its_beginning() {
    for segment_tokens in [7, 1024] {
        let mut engine = Engine::new(Limits { segment_tokens, ..at_most(100) });
        assert_eq!(engine.put(&run(0, 120)), 100);
        assert_eq!(engine.get(&run(0, 120)), 100);
    }
    let mut engine = Engine::new(Limits { segment_tokens: 10, max_buffers: 3, ..limits() });
    assert_eq!(engine.put(&run(0, 120)), 30, "three arrays hold three segments");

    let mut engine = Engine::new(at_most(100));
    engine.mark(&run(500, 510));
    assert_eq!(engine.plan(&hybrid("", &run(0, 120), false)).0, Planned::TooLarge);
    assert_eq!(engine.get(&run(500, 520)), 10, "a refused store evicts nothing");
}

/// Counters equal the sums over the contents after each of 10,000 operations; an empty index evicts nothing.
#[test]
fn counters_do_not_drift() {
    assert!(PrefixIndex::new(limits()).evict(Need::default()).is_empty());
    assert!(PrefixIndex::new(limits()).evict(Need { nbytes: 1, ..Need::default() }).is_empty());
    let mut runner = TestRunner::deterministic();
    let mut long = script(60).new_tree(&mut runner).unwrap().current();
    while long.steps.len() < 10_000 {
        long.steps.extend(script(60).new_tree(&mut runner).unwrap().current().steps);
    }
    driver::run(&long, PrefixIndex::new).unwrap();
}

/// A single conversation with a checkpoint per turn stays within the limit.
#[test]
fn one_long_conversation_keeps_its_newest_checkpoints() {
    let mut engine = Engine::new(Limits { max_checkpoints: 5, ..limits() });
    for turn in 1..=50 {
        engine.mark(&run(0, turn * 100));
        assert!(engine.index.stats().trees.checkpoints <= 5);
        assert_eq!(engine.get(&run(0, turn * 100 + 1)), turn as usize * 100);
    }
    assert_eq!(engine.index.stats().trees.checkpoints, 5);
}

/// A single conversation at the byte limit can continue: it may evict older checkpoints on its own path, but
/// not the one it continues from.
#[test]
fn a_lone_conversation_at_the_limit_can_continue() {
    let mut engine = Engine::new(at_most(10 + 3 * 5 + 10));
    for turn in 1..=3 {
        assert_eq!(engine.mark(&run(0, turn * 5)), turn as usize * 5, "turn {turn}");
    }
    assert_eq!(engine.get(&run(0, 16)), 15);
    assert_eq!(engine.mark(&run(0, 20)), 0, "two checkpoints and 20 tokens are too many");
    assert_eq!(engine.get(&run(0, 16)), 15, "a refusal loses nothing");
}

/// Tails are evicted first, so nothing is ever held without its beginning.
#[test]
fn the_tail_is_evicted_first() {
    let mut engine = Engine::new(Limits { segment_tokens: 10, ..limits() });
    let plan = engine.ready(&span("", &run(1, 31)));
    engine.commit(&plan);
    for (at, left) in [(2, 20), (1, 10), (0, 0)] {
        assert_eq!(engine.evict_units(1).segments, [plan.segments[at].id]);
        assert_eq!(engine.get(&run(1, 31)), left);
    }
}

/// KV past the last checkpoint of a branch is useless, and is evicted with that checkpoint.
#[test]
fn kv_is_evicted_with_the_checkpoint_that_made_it_usable() {
    let mut engine = Engine::new(Limits { segment_tokens: 10, ..limits() });
    engine.mark(&run(0, 25));
    engine.mark(&run(0, 15).then(&run(100, 140)));
    let evicted = engine.evict_units(1);
    assert_eq!((evicted.checkpoints.len(), evicted.amount.tokens), (1, 10));
    let evicted = engine.evict_units(1);
    assert_eq!((evicted.checkpoints.len(), evicted.amount.tokens), (1, 55));
    assert_eq!(engine.index.stats().trees.nodes, 0);
}

/// Of 113 checkpoints of one prompt eight are kept: the newest, and seven spaced evenly.
#[test]
fn checkpoints_of_one_prompt_thin_out_evenly() {
    let (step, count, keep) = (20, 113, 8);
    let mut engine = Engine::new(Limits { max_checkpoints: keep, ..limits() });
    for at in 1..=count {
        engine.mark(&run(0, at * step));
    }
    let served: HashSet<usize> =
        (0..=count).map(|at| engine.get(&run(0, at * step + 1))).filter(|at| *at > 0).collect();
    let mut kept: Vec<usize> = served.into_iter().collect();
    kept.sort_unstable();
    assert_eq!((kept.len(), kept.last()), (keep, Some(&((count * step) as usize))));
    let even = (count * step) as usize / keep;
    let gaps = [&[0], &kept[..]].concat();
    assert!(gaps.windows(2).all(|pair| pair[1] - pair[0] <= 2 * even), "{kept:?}");
}

/// Thinning drops the checkpoint whose removal leaves the smallest gap, but not the newest or the one before.
#[test]
fn thinning_out_leaves_the_smallest_gap() {
    let cases =
        [([5, 6, 12, 13], [6, 12, 13]), ([2, 9, 10, 11], [2, 10, 11]), ([6, 10, 12, 13], [6, 12, 13])];
    for (stored, kept) in cases {
        let mut engine = Engine::new(Limits { max_checkpoints: 3, ..limits() });
        for end in stored {
            engine.mark(&run(0, end));
        }
        for end in stored {
            let held = engine.get(&run(0, end + 1)) == end as usize;
            assert_eq!(held, kept.contains(&end), "{stored:?}: {end}");
        }
    }
}

/// Thinning spares leased checkpoints, and the newest.
#[test]
fn thinning_out_spares_leased_checkpoints() {
    let mut engine = Engine::new(Limits { max_checkpoints: 1, ..limits() });
    engine.mark(&run(0, 10));
    let (lease, _, checkpoint) = engine.pin(&run(0, 11));
    engine.mark(&run(0, 20));
    engine.mark(&run(0, 30));
    assert_eq!([11, 21, 31].map(|end| engine.get(&run(0, end))), [10, 10, 30]);
    engine.release(lease.unwrap());
    let plan = engine.ready(&hybrid("", &run(0, 40), false));
    let (_, thinned) = engine.commit(&plan);
    assert!(thinned.checkpoints.contains(&checkpoint.unwrap().0));
    assert_eq!(engine.index.stats().trees.checkpoints, 1);
}

/// What replaces an evicted segment gets a new id, and the old key finds nothing.
#[test]
fn ids_are_never_reused() {
    let mut engine = Engine::new(at_most(10));
    let mut seen: HashSet<SegmentId> = HashSet::new();
    for round in 0..100 {
        let plan = engine.ready(&span("", &run(round * 10, round * 10 + 10)));
        engine.commit(&plan);
        assert!(seen.insert(plan.segments[0].id));
        assert_eq!(engine.get(&run(round * 10, round * 10 + 10)), 9);
        if round > 0 {
            assert_eq!(engine.get(&run(round * 10 - 10, round * 10)), 0);
        }
    }
}

/// Four chats with one system prompt share a single copy of it.
#[test]
fn a_shared_prefix_is_held_once() {
    let mut engine = Engine::new(limits());
    for chat in 1..=4 {
        let plan = engine.ready(&span("", &run(0, 1000).then(&run(chat * 5000, chat * 5000 + 50))));
        let new: usize = plan.segments.iter().map(|new| new.end - new.start).sum();
        assert_eq!(new, if chat == 1 { 1050 } else { 50 }, "an insert costs its new tokens");
        engine.commit(&plan);
    }
    assert_eq!(engine.index.ntokens(), 1200);
    assert_eq!(engine.index.sequences(), 4);
}

/// Amounts that overflow are refused; they do not wrap around to small ones.
#[test]
fn amounts_beyond_64_bits_are_too_large() {
    let mut engine = Engine::new(limits());
    engine.put(&run(0, 10));
    let huge = Store { bytes_per_token: u64::MAX / 2, ..span("", &run(0, 20)) };
    assert_eq!(engine.plan(&huge).0, Planned::TooLarge);
    let huge = Some(CheckpointSpec { nbytes: u64::MAX, buffers: u32::MAX, trimmable: false });
    assert_eq!(
        engine.plan(&Store { checkpoint: huge, ..hybrid("", &run(0, 20), false) }).0,
        Planned::TooLarge
    );
    let inserted = Index::insert(&mut engine.index, "", &run(0, 20), u64::MAX, 9).unwrap();
    assert_eq!((inserted.length, inserted.new_tokens), (10, 0));
    assert_eq!(engine.index.make_room(u64::MAX, u64::MAX), None);
    assert_eq!(engine.index.ntokens(), 10);
}

/// A store that does not fit alongside the branch it diverges from drops that branch, even if the tree holds
/// nothing else.
#[test]
fn a_store_replaces_the_other_branch_if_only_one_fits() {
    let mut engine = Engine::new(at_most(12));
    engine.put(&run(0, 10));
    let b: Prompt = run(0, 5).then(&run(20, 27));
    let (length, evicted) = engine.store(&span("", &b));
    assert_eq!((length, evicted.amount.tokens), (12, 10));
    assert_eq!(engine.get(&b), 11);
}
