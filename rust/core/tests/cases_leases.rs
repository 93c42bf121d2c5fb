//! Named cases: pins, taking a path out, and what happens to both when the tree changes.

mod common;

use kvcache_core::{Limits, Match, Planned, Taken};

use common::engine::{Engine, hybrid, limits, run, span};
use common::index::Index;
use common::prompt::Prompt;

fn take(engine: &mut Engine, prompt: &Prompt) -> (Match, Taken) {
    let result = Index::take(&mut engine.index, "", prompt, prompt.len()).unwrap();
    engine.index.validate().unwrap();
    result
}

/// A pin survives a flood of other prompts. Once released, it is as recent as its release.
#[test]
fn a_pin_survives_a_flood() {
    for mixed in [false, true] {
        let mut engine = Engine::new(Limits { max_bytes: 60, ..limits() });
        let store = |prompt: &Prompt| if mixed { hybrid("", prompt, false) } else { span("", prompt) };
        let pinned = run(0, 10);
        engine.store(&store(&pinned));
        let (lease, length, _) = engine.pin(&pinned);
        assert_eq!(length, 10);
        for other in 1..50 {
            assert_eq!(engine.store(&store(&run(other * 100, other * 100 + 10))).0, 10);
        }
        assert_eq!(engine.index.match_length(&pinned), 10);
        assert!(engine.evict_bytes(1_000_000).amount.nbytes <= 50);
        assert_eq!(engine.index.match_length(&pinned), 10);

        let other = run(9000, 9010);
        engine.store(&store(&other));
        engine.release(lease.unwrap());
        engine.evict_units(1);
        assert_eq!([&pinned, &other].map(|prompt| engine.index.match_length(prompt)), [10, 0]);
        engine.evict_units(1);
        assert_eq!(engine.index.match_length(&pinned), 0, "a released pin follows LRU order");
    }
}

/// A store for which pins leave too little room is refused, and evicts nothing.
#[test]
fn pins_leave_no_room() {
    let mut engine = Engine::new(Limits { max_bytes: 30, ..limits() });
    engine.put(&run(0, 25));
    engine.put(&run(100, 105));
    let (lease, ..) = engine.pin(&run(0, 25));
    let refused = engine.plan(&hybrid("", &run(200, 220), false));
    assert_eq!((refused.0, refused.1.is_empty()), (Planned::TooLarge, true));
    assert_eq!(engine.index.make_room(6, 0), None);
    assert_eq!(engine.index.ntokens(), 30);
    assert_eq!(engine.index.make_room(5, 0).unwrap().amount.tokens, 5);
    assert_eq!(engine.put(&run(200, 220)), 5, "the beginning fits");
    engine.release(lease.unwrap());
    assert_eq!(engine.put(&run(200, 220)), 20);
}

/// A partly matched segment is pinned whole, and stays pinned when another prompt splits it.
#[test]
fn a_pin_covers_both_halves_of_a_split() {
    let mut engine = Engine::new(limits());
    engine.put(&run(0, 100));
    let (lease, length, _) = engine.pin(&run(0, 60));
    assert_eq!(length, 60);
    engine.put(&run(0, 30).then(&run(500, 510)));
    engine.put(&run(0, 80).then(&run(600, 610)));
    assert_eq!(engine.index.stats().leased_bytes, 100);
    let evicted = engine.evict_units(9);
    assert_eq!((evicted.units, evicted.amount.tokens), (2, 20), "the branches, not the pinned path");
    engine.release(lease.unwrap());
    let evicted = engine.evict_units(9);
    assert_eq!((evicted.units, evicted.amount.tokens), (3, 100));
}

/// Dropping a namespace voids its pins. Releasing a void pin does nothing, even if others have since
/// pinned the same path.
#[test]
fn a_void_pin_releases_nothing() {
    for all in [false, true] {
        let mut engine = Engine::new(limits());
        engine.put(&run(0, 100));
        let (old, ..) = engine.pin(&run(0, 100));
        let dropped = if all { engine.index.clear() } else { engine.index.drop_namespace("") };
        assert_eq!(dropped.amount.tokens, 100);
        engine.put(&run(0, 100));
        let (new, ..) = engine.pin(&run(0, 100));
        assert!(engine.release(old.unwrap()).is_empty());
        assert_eq!(engine.index.stats().leased_bytes, 100);
        assert!(engine.evict_units(1).is_empty());
        engine.release(new.unwrap());
        assert!(engine.release(new.unwrap()).is_empty(), "a second release does nothing");
        assert_eq!(engine.evict_units(1).amount.tokens, 100);
    }
}

/// Taking moves out only the part of a path that nothing else shares, leases or continues.
#[test]
fn taking_leaves_what_others_share() {
    let mut engine = Engine::new(Limits { segment_tokens: 10, ..limits() });
    let (a, b) = (run(0, 40), run(0, 20).then(&run(100, 110)));
    engine.put(&a);
    engine.put(&b);
    let (prefix, taken) = take(&mut engine, &a);
    assert_eq!((prefix.length, taken.scope.pieces.len()), (40, 4));
    assert_eq!((taken.dropped.segments.len(), taken.dropped.amount.tokens), (2, 20));
    assert_eq!(engine.index.match_length(&a), 20);
    assert_eq!(engine.index.stats().leased_bytes, 20);
    engine.release(taken.scope.lease.unwrap());
    assert_eq!(engine.put(&a), 40, "put back");

    let (lease, ..) = engine.pin(&a);
    assert!(take(&mut engine, &a).1.dropped.is_empty(), "leased");
    engine.release(lease.unwrap());
    assert!(take(&mut engine, &run(0, 35)).1.dropped.is_empty(), "a stored prompt continues it");
    assert_eq!(engine.index.match_length(&a), 40);
}

/// Taking the path of a hybrid model includes its checkpoints.
#[test]
fn taking_includes_checkpoints() {
    let mut engine = Engine::new(limits());
    let first = engine.ready(&hybrid("", &run(0, 10), false));
    engine.commit(&first);
    let second = engine.ready(&hybrid("", &run(0, 20), false));
    engine.commit(&second);
    let (prefix, taken) = take(&mut engine, &run(0, 20));
    assert_eq!((prefix.length, taken.scope.lease), (20, None));
    assert_eq!(taken.scope.checkpoint, Some((second.checkpoint.unwrap(), 20)));
    assert_eq!(taken.dropped.checkpoints, [second.checkpoint.unwrap(), first.checkpoint.unwrap()]);
    assert_eq!(engine.index.stats().namespaces, 0);
}

trait MatchLength {
    fn match_length(&mut self, prompt: &Prompt) -> usize;
}

impl<I: Index> MatchLength for I {
    /// Looks up without a touch.
    fn match_length(&mut self, prompt: &Prompt) -> usize {
        self.lookup("", prompt, prompt.len(), None).unwrap().length
    }
}
