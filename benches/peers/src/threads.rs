//! Lookups from one and from two threads at once.

use std::hint::black_box;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use kv_index::TokenTree;
use kvcache_core::{Limits, PrefixIndex, Query};

use crate::peers::{BLOCK, block_hashes, stored};
use crate::prompts::Random;
use crate::timing::report;

const SIZE: usize = 8_192;
const PROMPTS: usize = 8;

type Lookup<'a> = Box<dyn Fn(&[u32]) -> usize + Sync + 'a>;

pub(crate) fn two_threads() {
    let mut random = Random::new(8);
    let prompts: Vec<_> = (0..PROMPTS).map(|_| random.prompt(SIZE)).collect();

    // Under a mutex, as in the Python extension.
    let own = Mutex::new(PrefixIndex::new(Limits::default()));
    let pages = TokenTree::new();
    let blocks = Arc::new(ConcurrentRadixTreeCompressed::new());
    let (events, inbox) = flume::unbounded();
    for (number, prompt) in prompts.iter().enumerate() {
        own.lock().unwrap().insert("", &Query::tokens(prompt), 1, 0).unwrap();
        pages.insert_tokens(prompt, "engine");
        events.send(WorkerTask::Event(stored(prompt, BLOCK, number as u64))).unwrap();
    }
    // The sender is gone once all is applied, so the worker returns.
    drop(events);
    blocks.worker(inbox, None).unwrap();

    let contenders: [(&str, Lookup<'_>); 3] = [
        (
            "kvcache",
            Box::new(|tokens| {
                let mut own = own.lock().unwrap();
                own.match_prefix("", &Query::tokens(tokens), tokens.len(), Some(1)).unwrap().length
            }),
        ),
        ("kv-index TokenTree", Box::new(|tokens| pages.match_prefix_with_counts(tokens).matched_token_count)),
        (
            "dynamo ConcurrentRadixTreeCompressed, 16",
            Box::new(|tokens| {
                let scores = blocks.find_matches(&block_hashes(tokens, BLOCK), false).scores;
                scores.values().max().map_or(0, |matched| *matched as usize * BLOCK)
            }),
        ),
    ];
    for threads in [1, 2] {
        eprintln!("  {threads} threads");
        let mut samples = vec![Vec::new(); contenders.len()];
        for _ in 0..15 {
            for (at, (name, lookup)) in contenders.iter().enumerate() {
                assert_eq!(lookup(&prompts[0]), SIZE, "{name}");
                samples[at].push(each_takes(lookup, &prompts, threads));
            }
        }
        for ((name, _), samples) in contenders.iter().zip(&mut samples) {
            report(
                "threads",
                "lookup of 8,192 tokens, time over lookups of all threads",
                threads,
                name,
                samples,
            );
        }
    }
}

fn each_takes(lookup: &Lookup<'_>, prompts: &[Vec<u32>], threads: usize) -> f64 {
    let span = Duration::from_millis(40);
    let barrier = Barrier::new(threads);
    let done: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let queries: Vec<_> =
                    prompts.iter().skip(thread).chain(&prompts[..thread]).cloned().collect();
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    let mut done = 0;
                    while start.elapsed() < span {
                        for query in &queries {
                            black_box(lookup(black_box(query)));
                        }
                        done += queries.len();
                    }
                    done
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no lookup panics")).sum()
    });
    span.as_nanos() as f64 / done as f64
}
