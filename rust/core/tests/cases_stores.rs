//! Named cases: stores between draft and commit, interleaved with each other and with changes to the tree.

mod common;

use kvcache_core::{Dropped, Error, Limits, Need, Planned};

use common::engine::{Engine, hybrid, limits, run, span};
use common::index::Store;

/// A plan whose tree was dropped is stale, whatever has been stored since. Its reservation is released, and
/// its void lease does not affect the new tree.
#[test]
fn a_plan_on_a_dropped_tree_is_stale() {
    let longer = run(0, 150);
    let parting = run(0, 50).then(&run(500, 550));
    for (planned, again) in [(&longer, 100), (&parting, 100), (&longer, 40), (&parting, 40), (&longer, 150)] {
        let mut engine = Engine::new(limits());
        engine.put(&run(0, 100));
        let plan = engine.ready(&span("", planned));
        engine.index.drop_namespace("");
        engine.store(&span("another", &run(0, 100)));
        engine.put(&run(0, again));
        let (stored, dropped) = engine.commit(&plan);
        // Appending to an equal node is the same store; splitting a new segment is not.
        let same = planned.len() == 150 && again == 100;
        assert_eq!((stored, dropped.is_empty()), (same, true), "{again}");
        assert_eq!(engine.index.stats().reserved_bytes, 0);
        assert_eq!(engine.index.stats().leased_bytes, 0);
        assert_eq!(engine.put(planned), planned.len());
    }
}

/// Of two plans for the same tokens the second is stale, and planning it again finds everything held. Plans
/// that do not conflict both commit.
#[test]
fn concurrent_plans() {
    for store in [span("", &run(0, 20)), hybrid("", &run(0, 20), false)] {
        let mut engine = Engine::new(limits());
        let (first, second) = (engine.ready(&store), engine.ready(&store));
        assert!(engine.commit(&first).0);
        assert!(!engine.commit(&second).0);
        assert_eq!(engine.plan(&store).0, Planned::Already(vec![]));
    }
    let mut engine = Engine::new(limits());
    engine.put(&run(0, 20));
    let branch = |at: u32, to: u32| span("", &run(0, at).then(&run(to, to + 5)));
    let [left, right, cut, cut_too] = [branch(20, 100), branch(20, 200), branch(10, 300), branch(10, 400)]
        .map(|store| engine.ready(&store));
    assert!(engine.commit(&right).0 && engine.commit(&left).0, "other branches of one node");
    assert!(engine.commit(&cut_too).0);
    assert!(!engine.commit(&cut).0, "its segment has been split");
    assert_eq!(engine.put(&branch(10, 300).prompt), 15);
    assert_eq!(engine.index.ntokens(), 40);
}

/// Others cannot use room that is reserved for open plans.
#[test]
fn reservations_add_up() {
    let mut engine = Engine::new(Limits { max_bytes: 100, ..limits() });
    let first = engine.ready(&span("", &run(0, 60)));
    let second = engine.ready(&span("", &run(1000, 1060)));
    assert_eq!((first.length, second.length), (60, 40));
    assert_eq!(engine.plan(&span("", &run(2000, 2060))).0, Planned::TooLarge);
    assert_eq!(engine.index.make_room(1, 0), None);
    engine.index.abort(first.id).unwrap();
    assert!(engine.commit(&second).0);
    assert_eq!(engine.put(&run(2000, 2060)), 60);
    assert_eq!(engine.index.nbytes(), 100);
}

/// Making room for a store never evicts the tokens it continues from.
#[test]
fn a_store_does_not_evict_its_own_beginning() {
    let mut engine = Engine::new(Limits { segment_tokens: 5, max_bytes: 40, ..limits() });
    engine.put(&run(0, 20));
    engine.put(&run(100, 120));
    let (length, evicted) = engine.store(&span("", &run(0, 30)));
    assert_eq!((length, evicted.amount.tokens), (30, 10));
    assert_eq!(engine.get(&run(100, 120)), 10, "the tail of the other was evicted");
}

/// A draft keeps its place between steps, and is promised only if there is room.
#[test]
fn a_draft_is_promised_only_with_room() {
    let mut engine = Engine::new(Limits { max_bytes: 30, ..limits() });
    engine.put(&run(0, 10));
    engine.put(&run(100, 120));
    let draft = engine.draft(&span("", &run(0, 25)));
    assert_eq!((draft.length, draft.length_recopied), (25, 0));
    for impossible in [0, 10, 26] {
        assert_eq!(engine.index.settle(draft.id, impossible, false), Err(Error::UnknownPlan));
    }
    let (need, dropped) = engine.index.settle(draft.id, 25, false).unwrap();
    assert_eq!((need.nbytes, dropped.is_empty()), (15, true));
    assert_eq!(engine.index.promise(draft.id), Err(Error::UnknownPlan), "no room yet");
    assert_eq!(engine.index.count_units(need), 1);
    assert_eq!(engine.index.evict(need).amount.tokens, 20);
    let plan = engine.index.promise(draft.id).unwrap();
    assert!(engine.commit(&plan).0);
    assert_eq!(engine.index.nbytes(), 25);
}

/// A draft whose tree was dropped, or whose place has changed, fails and does not affect the new tree.
#[test]
fn a_draft_on_a_changed_tree_fails() {
    let parting = span("", &run(0, 5).then(&run(50, 60)));
    for recopy in [false, true] {
        let mut engine = Engine::new(limits());
        engine.put(&run(0, 10));
        let draft = engine.draft(&parting);
        engine.index.clear();
        engine.store(&span("another", &run(0, 10)));
        engine.put(&run(0, 10));
        assert_eq!(engine.index.settle(draft.id, 15, recopy), Err(Error::UnknownPlan));
        assert_eq!(engine.index.promise(draft.id), Err(Error::UnknownPlan));
        assert_eq!(engine.index.abort(draft.id), Ok(Dropped::default()));
        assert_eq!(engine.index.ntokens(), 20);

        let draft = engine.draft(&parting);
        engine.put(&run(0, 3).then(&run(70, 80)));
        assert_eq!(engine.index.settle(draft.id, 15, recopy), Err(Error::UnknownPlan));
        assert_eq!(engine.index.abort(draft.id), Ok(Dropped::default()));
        assert_eq!(engine.put(&parting.prompt), 15);
    }
}

/// The other side of the divergence is dropped only while nothing else leases it.
#[test]
fn a_leased_branch_is_not_dropped_for_a_draft() {
    let mut engine = Engine::new(Limits { max_bytes: 12, ..limits() });
    engine.put(&run(0, 10));
    let parting = span("", &run(0, 5).then(&run(50, 57)));
    let draft = engine.draft(&parting);
    assert_eq!((draft.length, draft.length_recopied), (0, 12));
    let (lease, ..) = engine.pin(&run(0, 10));
    assert_eq!(engine.index.settle(draft.id, 12, true), Err(Error::UnknownPlan));
    engine.release(lease.unwrap());
    let (need, given_up) = engine.index.settle(draft.id, 12, true).unwrap();
    assert_eq!((need, given_up.amount.tokens), (Need::default(), 10));
    engine.index.validate().unwrap();
    let plan = engine.index.promise(draft.id).unwrap();
    assert!(engine.commit(&plan).0);
    assert_eq!(engine.get(&parting.prompt), 11);
}

/// If only the draft still holds a hybrid model's path, aborting it after dropping the branch drops the rest.
#[test]
fn dropping_a_branch_of_a_path_that_nothing_else_needs() {
    let mut engine = Engine::new(Limits { segment_tokens: 4, ..limits() });
    engine.mark(&run(0, 10));
    let parting = hybrid("", &run(0, 9).then(&run(50, 57)), false);
    let draft = engine.draft(&parting);
    engine.evict_units(1);
    let (_, given_up) = engine.index.settle(draft.id, 16, true).unwrap();
    assert_eq!(given_up.amount.tokens, 2);
    engine.index.validate().unwrap();
    assert_eq!(engine.index.abort(draft.id).unwrap().amount.tokens, 8);
    engine.index.validate().unwrap();
    assert_eq!(engine.index.stats().trees.nodes, 0);
}

/// KV that only an open plan kept is dropped if the plan is aborted.
#[test]
fn an_aborted_plan_leaves_no_dead_weight() {
    let mut engine = Engine::new(limits());
    engine.mark(&run(0, 100));
    let plan = engine.ready(&hybrid("", &run(0, 50).then(&run(500, 550)), false));
    let evicted = engine.evict_units(1);
    assert_eq!((evicted.checkpoints.len(), evicted.segments.len()), (1, 0), "the plan holds the KV");
    let dropped = engine.index.abort(plan.id).unwrap();
    assert_eq!((dropped.segments.len(), dropped.amount.tokens), (1, 100));
    engine.index.validate().unwrap();
    assert_eq!(engine.index.stats().trees.nodes, 0);
}

/// Stores with and without checkpoints under one layout never share a tree.
#[test]
fn a_tree_never_mixes_kinds() {
    let mut engine = Engine::new(limits());
    let marked = Store { layout: 0, ..hybrid("", &run(0, 20), false) };
    let (plain, marked_too) = (engine.ready(&span("", &run(0, 20))), engine.ready(&marked));
    assert!(engine.commit(&marked_too).0 && engine.commit(&plain).0);
    assert_eq!(engine.index.layouts("").len(), 1);
    assert_eq!(engine.get(&run(0, 11)), 10);
}
