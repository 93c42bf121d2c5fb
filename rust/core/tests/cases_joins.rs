//! Named cases: nodes that were split, or stored in small steps, are joined.

mod common;

use kvcache_core::{LeaseId, Limits, Planned, PrefixIndex, Query, SegmentId};

use common::engine::{Engine, hybrid, limits, run, span};
use common::index::{Index, Store};

fn grained() -> Engine {
    Engine::new(Limits { segment_tokens: 16, ..limits() })
}

/// Blocks so long that ends of stores do not keep small nodes apart.
fn coarse() -> Engine {
    Engine::new(Limits { segment_tokens: 256, ..limits() })
}

/// Nodes and arrays.
fn sizes(engine: &Engine) -> (u64, u64) {
    let trees = engine.index.stats().trees;
    (trees.nodes, trees.buffers)
}

/// A caller that branches off at every token leaves no fragments once the branches are gone.
#[test]
fn branches_at_every_token_leave_no_fragments() {
    let (mut engine, prompt) = (grained(), run(0, 40));
    engine.put(&prompt);
    for at in 1..40 {
        engine.put(&run(0, at).then(&run(1000, 1001)));
    }
    let (lease, ..) = engine.pin(&prompt);
    engine.evict_bytes(u64::MAX / 4);
    engine.release(lease.unwrap());
    assert_eq!(sizes(&engine), (40, 40));
    let (Planned::Already(joined), _) = engine.plan(&span("", &prompt)) else { panic!("it is held") };
    assert_eq!(sizes(&engine), (3, 40), "the caller rewrites the arrays later");
    assert_eq!(joined.iter().map(|one| one.replaced.len()).sum::<usize>(), 40);
    let (lease, ..) = engine.pin(&prompt);
    for one in &joined {
        assert!(engine.index.compacted(lease.unwrap(), one.segment, 1));
        engine.index.validate().unwrap();
    }
    assert_eq!(sizes(&engine), (3, 3));
}

/// A chat that grows token by token is held in nodes of at least a sixteenth of a block, under any labels.
/// A chat that grows faster keeps its turns apart, so that the last one can be evicted alone.
#[test]
fn small_steps_leave_no_tiny_nodes() {
    let mut engine = Engine::new(Limits { segment_tokens: 64, ..limits() });
    for end in 1..=100 {
        let label = (end % 3) as u16;
        engine.store(&Store { label, ..span("", &run(0, end)) });
        assert_eq!(engine.index.stats().trees.nodes, u64::from(end.div_ceil(4)));
        let each =
            |label: u32| (0..u64::from(end)).filter(|at| (at + 1) % 3 == u64::from(label)).count() as u64;
        let labels: Vec<u64> = engine.index.labels().iter().map(|label| label.nbytes).collect();
        for (label, nbytes) in labels.into_iter().enumerate() {
            assert_eq!(nbytes, each(label as u32), "label {label} after {end}");
        }
    }
    let before = engine.index.stats().trees.ntokens;
    engine.put(&run(0, 110));
    engine.put(&run(0, 120));
    engine.evict_units(1);
    assert_eq!(engine.index.stats().trees.ntokens, before + 10);
    // After a split, each token keeps its label.
    engine.put(&run(0, 37).then(&run(1000, 1001)));
    engine.evict_units(3);
    engine.index.validate().unwrap();
}

/// Nodes are not joined across a checkpoint or the end of a lease. A lease that covers both nodes does not
/// prevent it.
#[test]
fn nodes_are_not_joined_across_checkpoints_and_ends_of_leases() {
    let mut engine = grained();
    engine.mark(&run(0, 5));
    engine.mark(&run(0, 9));
    assert_eq!(engine.index.stats().trees.nodes, 2);

    let mut engine = coarse();
    engine.put(&run(0, 5));
    let (short, ..) = engine.pin(&run(0, 5));
    engine.put(&run(0, 9));
    assert_eq!(engine.index.stats().trees.nodes, 2);
    engine.release(short.unwrap());
    engine.put(&run(0, 9));
    assert_eq!(engine.index.stats().trees.nodes, 1);

    let mut engine = grained();
    engine.put(&run(0, 9));
    engine.put(&run(0, 4).then(&run(1000, 1001)));
    let (whole, ..) = engine.pin(&run(0, 9));
    engine.evict_units(1);
    engine.put(&run(0, 9));
    assert_eq!(engine.index.stats().trees.nodes, 1);
    assert_eq!(engine.index.stats().leased_bytes, 9);
    engine.release(whole.unwrap());
    assert_eq!(engine.index.stats().leased_bytes, 0);
}

/// Nodes of a hybrid model are joined once the checkpoints between them are gone.
#[test]
fn nodes_are_joined_between_checkpoints() {
    let mut engine = Engine::new(Limits { segment_tokens: 64, max_checkpoints: 2, ..limits() });
    for end in 1..=60 {
        engine.mark(&run(0, end));
    }
    assert_eq!(sizes(&engine).0, 2);
    let (_, length, checkpoint) = engine.pin(&run(0, 60));
    assert_eq!((length, checkpoint.unwrap().1), (60, 60));
}

/// A plan to split a node that has since been joined with another is stale, and can be planned again.
#[test]
fn a_plan_to_split_a_joined_node_is_stale() {
    for checkpointed in [false, true] {
        let mut engine = grained();
        let store = |end: u32, more: u32| {
            let key = run(0, end).then(&run(1000 * more, 1000 * more + 1));
            if checkpointed { hybrid("", &key, false) } else { span("", &key) }
        };
        engine.store(&store(12, 1));
        engine.store(&store(6, 2));
        // The plan splits the lower node. Then the branch is evicted, and the nodes are joined.
        let plan = engine.ready(&store(9, 3));
        let (lease, ..) = engine.pin(&run(0, 12).then(&run(1000, 1001)));
        engine.evict_units(1);
        engine.store(&store(12, 1));
        engine.release(lease.unwrap());
        assert_eq!(engine.index.stats().trees.nodes, 1);
        let (done, dropped) = engine.commit(&plan);
        assert!(!done && dropped.is_empty());
        engine.store(&store(9, 3));
        assert_eq!(engine.index.stats().trees.nodes, 3);
        assert_eq!(engine.index.stats().reserved_bytes, 0);
    }
}

/// A plan that extends a node which has since been joined still commits.
#[test]
fn a_plan_below_a_joined_node_commits() {
    let mut engine = grained();
    engine.put(&run(0, 9));
    engine.put(&run(0, 4).then(&run(1000, 1001)));
    let plan = engine.ready(&span("", &run(0, 30)));
    engine.evict_units(1);
    engine.put(&run(0, 9));
    assert!(engine.commit(&plan).0);
    assert_eq!((engine.get(&run(0, 31)), sizes(&engine).0), (30, 3));
}

/// Only leased segments can be compacted, and only into at most as many parts as they have.
#[test]
fn invalid_compactions_are_rejected() {
    let mut engine = coarse();
    engine.put(&run(0, 5));
    let (first, ..) = engine.pin(&run(0, 5));
    engine.release(first.unwrap());
    let old = piece(&mut engine, 5);
    engine.put(&run(0, 9));
    let segment = piece(&mut engine, 9);
    let (lease, ..) = engine.pin(&run(0, 9));
    let mut compacted = |lease: Option<LeaseId>, segment, parts| {
        let done = engine.index.compacted(lease.unwrap(), segment, parts);
        engine.index.validate().unwrap();
        done
    };
    assert!(!compacted(lease, old, 1), "the id is gone");
    assert!(!compacted(first, segment, 1), "the lease has ended");
    assert!(!compacted(lease, segment, 0) && !compacted(lease, segment, 3));
    assert!(compacted(lease, segment, 1));
    assert!(!compacted(lease, segment, 2));
    assert_eq!(sizes(&engine), (1, 1));
}

fn piece(engine: &mut Engine, end: u32) -> SegmentId {
    let (_, scope) = Index::acquire(&mut engine.index, "", &run(0, end), end as usize).unwrap();
    engine.index.release(scope.lease.unwrap(), 0);
    scope.pieces[0].segment
}

/// Only free room can be reserved for a copy; nobody else can use it until it is returned.
#[test]
fn reserved_room_is_exclusive_until_returned() {
    let mut index = PrefixIndex::new(Limits { max_bytes: 100, max_buffers: 10, ..limits() });
    index.insert("", &Query::tokens(&[1; 60]), 1, 0).unwrap();
    assert!(!index.reserve_bytes(41, 1) && !index.reserve_bytes(1, 10));
    assert!(index.reserve_bytes(40, 9));
    assert_eq!((index.free_bytes(), index.reserved_bytes()), (0, 40));
    assert_eq!(index.insert("", &Query::tokens(&[2; 50]), 1, 1).unwrap().evicted.amount.tokens, 60);
    index.validate().unwrap();
    index.unreserve_bytes(40, 9);
    index.unreserve_bytes(40, 9);
    index.validate().unwrap();
    assert_eq!((index.free_bytes(), index.reserved_bytes()), (50, 0));
}
