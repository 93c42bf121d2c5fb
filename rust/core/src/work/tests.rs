//! A call does the same work whether there are many or few prompts, children, namespaces or leases.

use super::VISITS;
use crate::dropped::Dropped;
use crate::evict::Need;
use crate::ids::{LayoutId, LeaseId};
use crate::index::{Limits, PrefixIndex};
use crate::keys::media::Span;
use crate::keys::query::Query;
use crate::store::request::{CheckpointSpec, Planned, StoreRequest};

const FEW: u32 = 1_000;
/// Kept small in debug builds, which would take seconds for more.
const MANY: u32 = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };

const SYSTEM: [u32; 40] = [7; 40];

fn index() -> PrefixIndex {
    PrefixIndex::new(Limits { segment_tokens: 16, ..Limits::default() })
}

fn request<'a>(namespace: &'a str, keys: &'a [u32], checkpoint: bool) -> StoreRequest<'a> {
    StoreRequest {
        namespace,
        layout: LayoutId(0),
        query: Query::tokens(keys),
        bytes_per_token: 1,
        segment_buffers: 1,
        checkpoint: checkpoint.then_some(CheckpointSpec { nbytes: 1, buffers: 1, trimmable: true }),
        label: 0,
        prompt: None,
    }
}

fn store(index: &mut PrefixIndex, request: &StoreRequest<'_>) {
    if let Planned::Ready(plan) = index.plan(request, 0).unwrap().0 {
        index.commit(plan.id, 0).unwrap();
    }
}

/// The key of a chat that starts with the shared system prompt.
fn chat(which: u32) -> Vec<u32> {
    [&SYSTEM[..], &[1_000_000 + which, 8]].concat()
}

/// Chats below one node: full-attention layers, or windows that can be trimmed.
fn chats(count: u32, windows: bool) -> PrefixIndex {
    let mut index = index();
    (0..count).for_each(|which| store(&mut index, &request("", &chat(which), windows)));
    index
}

fn namespaces(count: u32) -> PrefixIndex {
    let mut index = index();
    (0..count).for_each(|which| store(&mut index, &request(&which.to_string(), &[1, 2, 3], which % 2 > 0)));
    index
}

/// Namespaces with a lease on the prompt of each but the last, and ten on the first.
fn leases(count: u32) -> PrefixIndex {
    let mut index = namespaces(count);
    for which in (0..count - 1).chain([0; 9]) {
        index.acquire(&which.to_string(), &Query::tokens(&[1, 2, 3]), 3).unwrap();
    }
    index
}

fn plans(count: u32) -> PrefixIndex {
    let mut index = chats(1, false);
    (0..count).for_each(|which| drop(index.plan(&request("", &[which, 1], false), 0)));
    index
}

fn counted(index: &mut PrefixIndex, call: impl FnOnce(&mut PrefixIndex)) -> u64 {
    VISITS.set(0);
    call(index);
    VISITS.get()
}

type Call = (&'static str, fn(&mut PrefixIndex));

const CALLS: &[Call] = &[
    ("lookup of the shared prefix", |index| drop(index.match_prefix("", &shared().0, 41, None))),
    ("lookup of one chat", |index| drop(index.match_prefix("", &Query::tokens(&chat(3)), 41, Some(1)))),
    ("acquire and release", |index| {
        if let Some(lease) = index.acquire("", &shared().0, 40).unwrap().1.lease {
            index.release(lease, 2);
        }
    }),
    ("take", |index| drop(index.take("", &Query::tokens(&chat(5)), 42))),
    ("store", |index| store(index, &request("", &chat(2_000_000), false))),
    ("store with a checkpoint", |index| store(index, &request("", &chat(2_000_001), true))),
    ("store of a held chat", |index| store(index, &request("", &chat(4), false))),
    ("insert", |index| drop(index.insert("", &Query::tokens(&chat(2_000_002)), 1, 3))),
    ("abort", |index| {
        if let Planned::Ready(plan) = index.plan(&request("", &chat(2_000_003), false), 4).unwrap().0 {
            index.abort(plan.id).unwrap();
        }
    }),
    ("evict", |index| drop(evict(index))),
    ("count_units", |index| assert!(index.count_units(Need { units: 3, ..Need::default() }) > 0)),
    ("make_room", |index| drop(index.make_room(10, 1))),
    ("release of an unknown lease", |index| drop(index.release(LeaseId(u64::MAX), 5))),
    ("stats", |index| assert!(index.stats().trees.nodes > 0)),
    ("namespace_stats", |index| assert!(index.namespace_stats("nowhere").nodes == 0)),
    ("layouts", |index| drop(index.layouts("7"))),
    ("counters", |index| {
        let _ = (index.units(), index.leased_bytes(), index.reserved_bytes(), index.free_bytes());
        let _ = (index.nbytes(), index.ntokens(), index.sequences());
    }),
    ("drop of one namespace", |index| drop(index.drop_namespace("7"))),
    ("drop of an unknown namespace", |index| drop(index.drop_namespace("nowhere"))),
];

fn shared() -> (Query<'static>,) {
    static KEYS: [u32; 42] = {
        let mut keys = [7; 42];
        (keys[40], keys[41]) = (5, 6);
        keys
    };
    (Query::tokens(&KEYS),)
}

fn evict(index: &mut PrefixIndex) -> Dropped {
    index.evict(Need { units: 1, ..Need::default() })
}

type World = (&'static str, fn(u32) -> PrefixIndex);

const WORLDS: &[World] = &[
    ("chats", |count| chats(count, false)),
    ("chats with windows", |count| chats(count, true)),
    ("namespaces", namespaces),
    ("leases", leases),
    ("plans", plans),
];

#[test]
fn work_of_a_call_does_not_grow_with_the_index() {
    for (world, make) in WORLDS {
        let [few, many] = [FEW, MANY].map(|count| {
            let mut index = make(count);
            CALLS.iter().map(|(_, call)| counted(&mut index, call)).collect::<Vec<u64>>()
        });
        for (((call, _), few), many) in CALLS.iter().zip(&few).zip(&many) {
            assert!(few.abs_diff(*many) <= 8, "{call} among {world}: {few} and {many}");
            assert!(*many < 400, "{call} among {world}: {many}");
        }
    }
}

/// They visit what they drop a few times, and nothing else.
#[test]
fn clear_and_drop_are_linear() {
    for (world, make) in WORLDS {
        let each = [FEW, MANY].map(|count| {
            let mut index = make(count);
            counted(&mut index, |index| drop(index.clear())) / u64::from(count)
        });
        assert!(each[1] <= each[0] + 2 && each[1] < 100, "clear of {world}: {each:?} each");
    }
    // The leases are in one tree, with many trees around it.
    let [few, many] = [FEW, MANY].map(|count| {
        let mut index = leases(count);
        counted(&mut index, |index| drop(index.drop_namespace("0")))
    });
    assert!(few.abs_diff(many) <= 2 && many < 200, "{few} and {many}");
}

/// Stores a thousand contents in turn among few or many text nodes: each costs a few visits, amortised.
#[test]
fn the_cost_of_new_media_does_not_grow_with_stored_text() {
    let [few, many] = [FEW, MANY].map(|count| {
        let mut index = chats(count, false);
        counted(&mut index, |index| {
            for which in 0_u32..1000 {
                let digest = which.to_le_bytes();
                let span = [Span { start: 0, length: 2, digest: &digest }];
                let keys = index.media_keys(&[0, 0, 1], &span, true).unwrap();
                index.insert("images", &keys.query(), 1, 0).unwrap();
                index.evict(Need::default());
            }
        }) / 1000
    });
    assert!(few.abs_diff(many) <= 2 && many < 100, "{few} and {many}");
}

/// The last entry left of many keeps little memory, whichever it is.
#[test]
fn memory_shrinks_with_what_is_held() {
    for windows in [false, true] {
        let mut index = chats(FEW * 10, windows);
        let full = index.stats().index_bytes;
        let units = index.units();
        index.evict(Need { units: units - 2, ..Need::default() });
        assert!(index.stats().index_bytes * 20 < full, "{} of {full}", index.stats().index_bytes);
    }
    for make in [namespaces, leases] {
        let mut index = make(FEW * 10);
        let full = index.stats().index_bytes;
        (0..FEW * 10 - 1).for_each(|which| drop(index.drop_namespace(&which.to_string())));
        assert!(index.stats().index_bytes * 20 < full, "{} of {full}", index.stats().index_bytes);
    }
}
