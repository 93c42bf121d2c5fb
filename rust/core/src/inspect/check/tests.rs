//! `validate()` reports every kind of damage.

use crate::error::BrokenInvariant;
use crate::ids::{LayoutId, NodeId, SegmentId};
use crate::index::{Limits, PrefixIndex};
use crate::keys::media::{MediaTable, Span};
use crate::keys::query::Query;
use crate::ledger::{Amount, Sequences};
use crate::order::policy::{EvictionPolicy, Removal};
use crate::radix::children::Summary;
use crate::radix::node::{Checkpoint, End, Node, Run};
use crate::store::request::{CheckpointSpec, Planned, StoreRequest};

fn request(query: Query<'_>, checkpoint: Option<CheckpointSpec>) -> StoreRequest<'_> {
    StoreRequest {
        namespace: "",
        layout: LayoutId(0),
        query,
        bytes_per_token: 2,
        segment_buffers: 1,
        checkpoint,
        label: 0,
        prompt: None,
    }
}

/// An index with a tree of full-attention layers that has a branch, an image and a lease; a tree with two
/// checkpoints; and an open plan.
fn sample() -> PrefixIndex {
    let limits = Limits { segment_tokens: 4, max_bytes: 1000, ..Limits::default() };
    let mut index = PrefixIndex::new(limits);
    index.insert("", &Query::tokens(&[1, 2, 3, 4, 5, 6]), 2, 1).unwrap();
    index.insert("", &Query::tokens(&[1, 2, 3, 4, 9]), 2, 2).unwrap();
    let image = [Span { start: 0, length: 2, digest: b"image" }];
    let keys = index.media_keys(&[0, 0, 7], &image, true).unwrap();
    index.insert("", &keys.query(), 2, 3).unwrap();
    index.insert("", &Query::tokens(&[8, 8, 8]), 2, 4).unwrap();
    index.acquire("", &Query::tokens(&[8, 8, 8]), 3).unwrap();
    for (end, trimmable) in [(2, true), (5, false)] {
        let checkpoint = Some(CheckpointSpec { nbytes: 3, buffers: 1, trimmable });
        let keys = &[1, 1, 1, 1, 1][..end];
        let Planned::Ready(plan) = index.plan(&request(Query::tokens(keys), checkpoint), 5).unwrap().0 else {
            panic!("no room");
        };
        index.commit(plan.id, 5).unwrap();
    }
    index.plan(&request(Query::tokens(&[7, 7]), None), 6).unwrap();
    index
}

fn find(index: &PrefixIndex, which: impl Fn(&Node) -> bool) -> NodeId {
    index.trees.arena.iter().find(|(_, node)| which(node)).expect("the sample has one").0
}

/// The node whose keys start with `keys`.
fn at(index: &PrefixIndex, keys: &[u32]) -> NodeId {
    find(index, |node| !node.is_root() && node.keys.starts_with(keys))
}

type Damage = fn(&mut PrefixIndex);

const DAMAGE: &[(&str, Damage)] = &[
    ("under the wrong first key", |index| {
        let id = at(index, &[5]);
        index.trees.arena[id].keys[0] = 55;
    }),
    ("does not point to its parent", |index| {
        let (id, other) = (at(index, &[5]), at(index, &[8]));
        index.trees.arena[id].parent = other;
    }),
    ("starts at the wrong token", |index| {
        let id = at(index, &[5]);
        index.trees.arena[id].end += 1;
    }),
    ("has a malformed root", |index| {
        let id = find(index, Node::is_root);
        index.trees.arena[id].end = 1;
    }),
    ("does not lead to its trimmable checkpoint", |index| {
        let tree = index.trees.arena[at(index, &[1, 1])].tree;
        let root = index.trees.forest.get(tree).root;
        index.trees.arena[root].children.set_summary(1, Summary { trimmable: false, ended: true });
    }),
    ("miscounts its children with an end", |index| {
        let root = index.trees.forest.get(index.trees.arena[at(index, &[5])].tree).root;
        index.trees.arena[root].children.set_summary(8, Summary::default());
    }),
    ("its labels", |index| {
        index.trees.ledger.add_end(&mut Sequences::default(), 1);
        index.trees.ledger.label(1).sequences -= 1;
    }),
    ("its labels", |index| {
        index.trees.ledger.add_entry(&mut Sequences::default(), 1);
        index.trees.ledger.label(1).entries -= 1;
    }),
    ("wrong media flag", |index| {
        let id = find(index, |node| node.media);
        index.trees.arena[id].media = false;
    }),
    ("media key without content", |index| index.trees.contents = MediaTable::default()),
    ("media use counts", |index| index.trees.media.hold(&[1 << 31])),
    ("leases but records", |index| {
        let id = at(index, &[5]);
        index.trees.arena[id].leases += 1;
    }),
    ("miscounts its leases", |index| {
        let id = find(index, |node| node.checkpoint.is_some());
        index.trees.arena[id].checkpoint.as_mut().unwrap().leases += 1;
    }),
    ("never issued", |index| {
        let id = at(index, &[5]);
        index.trees.arena[id].segment = SegmentId(1_000_000);
    }),
    ("occurs twice", |index| {
        let (id, other) = (at(index, &[5]), at(index, &[9]));
        index.trees.arena[id].segment = index.trees.arena[other].segment;
    }),
    ("is in two trees", |index| {
        let (id, other) = (at(index, &[5]), at(index, &[1, 1]));
        index.trees.arena[id].segment = index.trees.arena[other].segment;
    }),
    ("has 5 tokens", |index| {
        let id = at(index, &[5]);
        let node = &mut index.trees.arena[id];
        (node.keys, node.end) = (vec![5; 5].into(), node.end + 3);
    }),
    ("crosses a block boundary", |index| {
        let id = at(index, &[1, 2]);
        index.segment_tokens = 3;
        index.trees.arena[id].keys = vec![1, 2, 3].into();
    }),
    ("has no parts", |index| {
        let id = at(index, &[5]);
        index.trees.arena[id].parts = 0;
    }),
    ("has labels for", |index| {
        let id = at(index, &[5]);
        let runs = [Run { tokens: 9, label: 0 }, Run { tokens: 1, label: 1 }];
        index.trees.arena.alter(id, |node| node.set_labels(runs.into()));
    }),
    ("a tree of full-attention layers", |index| {
        let id = at(index, &[5]);
        let checkpoint = Checkpoint {
            id: crate::CheckpointId(1),
            nbytes: 0,
            buffers: 0,
            trimmable: false,
            leases: 0,
            prompt: 0,
        };
        index.trees.arena[id].checkpoint = Some(Box::new(checkpoint));
    }),
    ("no checkpoint makes usable", |index| {
        let id = find(index, |node| node.checkpoint.is_some() && node.children.is_empty());
        index.trees.arena[id].checkpoint = None;
    }),
    ("invalid end", |index| {
        let id = at(index, &[5]);
        index.trees.arena[id].ends = Some(Box::new(vec![End { at: 3, label: 0 }]));
    }),
    ("invalid end", |index| {
        let id = at(index, &[5]);
        index.trees.arena[id].ends = Some(Box::new(vec![End { at: 1, label: 0 }; 2]));
    }),
    ("but records Amount", |index| {
        let id = at(index, &[5]);
        index.trees.arena[id].bytes_per_token += 1;
    }),
    ("but records Sequences", |index| {
        let tree = index.trees.arena[at(index, &[5])].tree;
        index.trees.forest.get_mut(tree).sequences.all += 1;
    }),
    ("but records Sequences", |index| {
        let tree = index.trees.arena[at(index, &[5])].tree;
        index.trees.forest.get_mut(tree).sequences.entries += 1;
    }),
    ("miscounts its nodes", |index| {
        let tree = index.trees.arena[at(index, &[5])].tree;
        index.trees.forest.get_mut(tree).nodes += 1;
    }),
    ("the ledger holds", |index| index.trees.ledger.add(&mut Amount::default(), byte())),
    ("has leased", |index| index.trees.ledger.lease(byte())),
    ("has reserved", |index| index.trees.ledger.reserve(byte())),
    ("exceed the limits", |index| index.limits.max_bytes = 10),
    ("exceed the limits", |index| index.limits.max_buffers = 3),
    ("label 0", |index| index.trees.ledger.label(0).nbytes += 1),
    ("label 0", |index| index.trees.ledger.label(0).ntokens += 1),
    ("label 1", |index| index.trees.ledger.label(1).sequences += 1),
    ("label 1", |index| index.trees.ledger.label(1).entries += 1),
    ("reachable", |index| {
        let node = Node::new(index.trees.arena[at(index, &[5])].tree, NodeId::NONE, 0, Box::default());
        index.trees.arena.add(node);
    }),
    ("heap bytes", |index| {
        let id = find(index, |node| node.ends.is_some());
        index.trees.arena[id].ends.as_mut().unwrap().reserve_exact(100);
    }),
    ("missing from the eviction order", |index| {
        let id = at(index, &[5]);
        index.trees.unlist(id, Removal::Removed);
    }),
    ("in the eviction order but leased", |index| {
        let id = at(index, &[8]);
        index.trees.list(id, 9);
    }),
    ("more recent than its parent", |index| {
        let id = at(index, &[5]);
        index.trees.list(id, 9);
    }),
    ("earlier stamp than the unit before it", |index| {
        let id = oldest(index);
        index.trees.arena[id].placement.stamp = 9;
    }),
    ("broken link in the eviction order", |index| {
        let id = oldest(index);
        index.trees.arena[id].placement.older = id;
    }),
    ("miscounts its units", |index| {
        let id = oldest(index);
        index.trees.arena[id].placement.newer = NodeId::NONE;
    }),
    ("empty but was not removed", |index| {
        index.trees.forest.find_or_add(&mut index.trees.arena, "another", LayoutId(0), false);
    }),
];

fn oldest(index: &PrefixIndex) -> NodeId {
    index.trees.order.victim(&index.trees.arena).expect("the sample has units")
}

fn byte() -> Amount {
    Amount { nbytes: 1, ..Amount::default() }
}

#[test]
fn damage_is_named() {
    assert_eq!(sample().validate(), Ok(()));
    for (name, damage) in DAMAGE {
        let mut index = sample();
        damage(&mut index);
        let Err(BrokenInvariant(message)) = index.validate() else { panic!("not detected: {name}") };
        assert!(message.contains(name), "{name}: {message}");
    }
}
