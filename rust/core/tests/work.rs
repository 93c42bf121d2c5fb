//! Work counts that must not grow with the number of stored prompts.

use std::time::{Duration, Instant};

use kvcache_core::{LayoutId, Limits, Need, Planned, PrefixIndex, Query, StoreRequest};

/// Prompts that share their first 100 tokens and have 20 of their own.
fn index_of(prompts: u32) -> PrefixIndex {
    let mut index = PrefixIndex::new(Limits { segment_tokens: 16, ..Limits::default() });
    for prompt in 0..prompts {
        index.insert("", &Query::tokens(&keys(prompt)), 1, u64::from(prompt)).unwrap();
    }
    index
}

fn keys(prompt: u32) -> Vec<u32> {
    (0..100).chain((0..20).map(|at| 1_000_000 + prompt * 20 + at)).collect()
}

/// Nodes visited and keys compared by a lookup.
fn work(index: &mut PrefixIndex, keys: &[u32]) -> (usize, usize) {
    let prefix = index.match_prefix("", &Query::tokens(keys), keys.len(), None).unwrap();
    (prefix.visited, prefix.compared)
}

fn visited(index: &mut PrefixIndex, keys: &[u32]) -> usize {
    work(index, keys).0
}

/// A lookup compares only the nodes on its own path, however many prompts are stored and however many
/// branches leave the path.
#[test]
fn a_lookup_visits_its_own_path_only() {
    let mut counts = Vec::new();
    for prompts in [2, 100, 3000] {
        let mut index = index_of(prompts);
        let stranger: Vec<u32> = (500_000..500_100).collect();
        let parting = [&keys(0)[..90], &stranger[..]].concat();
        counts.push([&keys(1), &parting, &stranger].map(|keys| work(&mut index, keys)));
    }
    // 100 tokens in runs of 16, the last shortened by the split, and 20 more.
    // A divergence inside a run is found by bisection.
    assert_eq!(counts[0], [(9, 120), (6, 112), (0, 0)]);
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
}

/// A lookup walks every layout of the namespace, and counts every walk.
#[test]
fn a_lookup_counts_all_layouts() {
    let mut index = index_of(2);
    let keys = keys(0);
    for layout in 1..3 {
        let request = StoreRequest {
            namespace: "",
            layout: LayoutId(layout),
            query: Query::tokens(&keys[..16 * layout as usize]),
            bytes_per_token: 1,
            segment_buffers: 1,
            checkpoint: None,
            label: 0,
            prompt: None,
        };
        let Planned::Ready(plan) = index.plan(&request, 0).unwrap().0 else { panic!("no room") };
        index.commit(plan.id, 0).unwrap();
    }
    assert_eq!(visited(&mut index, &keys), 9 + 1 + 2);
}

/// Time of one eviction, the best of several runs, so that a busy machine does not matter.
fn eviction_time(prompts: u32) -> Duration {
    const EVICTIONS: u32 = 100;
    let mut index = index_of(prompts);
    let mut best = Duration::MAX;
    for _ in 0..8 {
        let start = Instant::now();
        for _ in 0..EVICTIONS {
            assert_eq!(index.evict(Need { units: 1, ..Need::default() }).units, 1);
        }
        best = best.min(start.elapsed() / EVICTIONS);
    }
    best
}

/// Time of `clear` per prompt, for prompts that differ in their first token; the best of several runs.
fn clear_time(prompts: u32) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let mut index = PrefixIndex::new(Limits::default());
        for prompt in 0..prompts {
            index.insert("", &Query::tokens(&[prompt, 1]), 1, 0).unwrap();
        }
        let start = Instant::now();
        index.clear();
        best = best.min(start.elapsed());
    }
    best / prompts
}

/// Emptying a table of children does not search it for the last entry each time. If it did, forty times as
/// many children would take forty times as long each.
#[test]
fn clearing_many_children_is_linear() {
    let (small, large) = (clear_time(1_000), clear_time(40_000));
    assert!(large < 10 * small.max(Duration::from_nanos(500)), "{small:?} and {large:?}");
}

/// Evicting a unit only looks at the end of the list, whatever its length. A scan would take a hundred times
/// as long in the larger index.
#[test]
fn an_eviction_does_not_search() {
    let (small, large) = (eviction_time(500), eviction_time(50_000));
    assert!(large < 20 * small.max(Duration::from_micros(1)), "{small:?} and {large:?}");
}
