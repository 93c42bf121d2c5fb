//! The workloads.

use std::hint::black_box;

use crate::SIZES;
use crate::alloc::growth;
use crate::peers::{PEERS, Peer};
use crate::prompts::{Random, leaving};
use crate::timing::{Contender, interleaved, once, report};

const BUFFERS: usize = 5;
const LIMIT: &str = "memcmp";

/// A contender that looks up `queries`, each in a buffer of its own, in rotation.
fn looks_up<'a>(name: &str, peer: &'a mut dyn Peer, queries: Vec<Vec<u32>>) -> Contender<'a> {
    let mut next = 0;
    let run = Box::new(move || {
        next = (next + 1) % queries.len();
        black_box(peer.lookup(black_box(&queries[next])));
    });
    Contender { name: name.to_owned(), run }
}

/// The limit: comparing the same bytes, on buffers of its own.
fn compares(prompt: &[u32]) -> Contender<'static> {
    let stored = prompt.to_vec();
    let queries = vec![prompt.to_vec(); BUFFERS];
    let mut next = 0;
    let run = Box::new(move || {
        next = (next + 1) % queries.len();
        black_box(black_box(&queries[next]) == black_box(&stored));
    });
    Contender { name: LIMIT.to_owned(), run }
}

fn all_peers() -> Vec<(&'static str, Box<dyn Peer>)> {
    PEERS.iter().map(|(name, make)| (*name, make())).collect()
}

pub(crate) fn lookup() {
    for size in SIZES {
        let prompt = Random::new(size as u64).prompt(size);
        let mut peers = all_peers();
        for (_, peer) in &mut peers {
            peer.insert(&prompt);
        }
        for (case, at) in [("full hit", size), ("leaves half-way", size / 2), ("miss", 0)] {
            let queries: Vec<_> = (0..BUFFERS as u32).map(|number| leaving(&prompt, at, number)).collect();
            for (name, peer) in &mut peers {
                assert_eq!(peer.lookup(&queries[0]), at, "{name}");
            }
            let mut contenders: Vec<_> =
                peers.iter_mut().map(|(name, peer)| looks_up(name, peer.as_mut(), queries.clone())).collect();
            contenders.push(compares(&prompt));
            interleaved("lookup", case, size, &mut contenders, 300);
        }
    }
}

pub(crate) fn insert() {
    const KEPT: usize = 8;
    for size in SIZES {
        for (case, shared) in [("nothing shared", 0), ("half shared", size / 2)] {
            eprintln!("  insert, {case}, {size}");
            let mut random = Random::new(7);
            let base = random.prompt(size);
            let mut samples = vec![Vec::new(); PEERS.len() + 1];
            let mut copy = vec![0; size];
            let rounds = (4_000_000 / size).clamp(24, 400);
            let mut peers = all_peers();
            for round in 0..rounds {
                // A handful of prompts, then a new index: freed memory is used again, as in an
                // index that lives at its limit.
                if round % KEPT == 0 {
                    peers = all_peers();
                    peers.iter_mut().for_each(|(_, peer)| peer.insert(&base));
                }
                let prompt = leaving(&base, shared, round as u32);
                for (at, (_, peer)) in peers.iter_mut().enumerate() {
                    samples[at].push(once(|| peer.insert(black_box(&prompt))));
                }
                samples[PEERS.len()].push(once(|| copy.copy_from_slice(black_box(&prompt))));
                black_box(&mut copy);
            }
            for ((name, _), samples) in PEERS.iter().zip(&mut samples) {
                report("insert", case, size, name, samples);
            }
            report("insert", case, size, "memcpy", &mut samples[PEERS.len()]);
        }
    }
}

/// One path of 8K tokens among many short sequences.
pub(crate) fn stored() {
    for count in [1, 100, 1_000, 10_000, 1_000_000] {
        let path = Random::new(1).prompt(8_192);
        let queries: Vec<_> = (0..BUFFERS).map(|_| path.clone()).collect();
        let mut peers = all_peers();
        let mut built = Vec::new();
        for (name, peer) in &mut peers {
            eprintln!("  filling {name} with {count} sequences");
            let mut random = Random::new(2);
            let shorts: Vec<_> = (0..count).map(|_| random.short()).collect();
            let took = once(|| shorts.iter().for_each(|short| peer.insert(short)));
            built.push(took / f64::from(count));
            peer.insert(&path);
        }
        for ((name, _), took) in peers.iter().zip(built) {
            report("stored", "insert of a short sequence", count as usize, name, &mut [took]);
        }
        let mut cold = vec![Vec::new(); peers.len()];
        let mut flush = vec![0u8; 96 << 20];
        eprintln!("  stored, cold, {count}");
        for round in 0..15 {
            for (at, (_, peer)) in peers.iter_mut().enumerate() {
                // Larger than the last level cache.
                flush.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
                black_box(&mut flush);
                cold[at].push(once(|| peer.lookup(&queries[round % BUFFERS])));
            }
        }
        for ((name, _), samples) in peers.iter().zip(&mut cold) {
            report("stored", "lookup of the 8K path, cold", count as usize, name, samples);
        }
        let mut contenders: Vec<_> =
            peers.iter_mut().map(|(name, peer)| looks_up(name, peer.as_mut(), queries.clone())).collect();
        contenders.push(compares(&path));
        interleaved("stored", "lookup of the 8K path, warm", count as usize, &mut contenders, 200);
    }
}

/// One call that drops the oldest of many sequences.
pub(crate) fn evict() {
    const TOKENS: usize = 32;
    for count in [1_000, 10_000, 100_000, 1_000_000] {
        eprintln!("  evict, {count}");
        for (name, make) in PEERS {
            let mut peer = make();
            let mut random = Random::new(3);
            peer.insert(&random.prompt(TOKENS));
            if !peer.evict(TOKENS) {
                continue;
            }
            (0..count).for_each(|_| peer.insert(&random.prompt(TOKENS)));
            // The scanning ones take up to a second a call.
            let rounds = if name == "kvcache" { 500 } else { (200_000 / count).clamp(3, 100) };
            let mut samples = Vec::new();
            for _ in 0..rounds {
                samples.push(once(|| peer.evict(TOKENS)));
            }
            report("evict", "one sequence of 32 tokens", count, name, &mut samples);
        }
    }
}

/// A chat that grows by a turn at a time: look the history up, then store it with the new turn.
pub(crate) fn chat() {
    const TURN: usize = 1_024;
    let history = Random::new(4).prompt(128 * TURN);
    eprintln!("  chat");
    let mut samples = vec![Vec::new(); PEERS.len()];
    for _ in 0..10 {
        for (at, (_, make)) in PEERS.iter().enumerate() {
            let mut peer = make();
            samples[at].push(once(|| {
                for turn in 1..=128 {
                    let matched = peer.lookup(black_box(&history[..turn * TURN]));
                    assert_eq!(matched, (turn - 1) * TURN);
                    peer.insert(&history[..turn * TURN]);
                }
            }));
        }
    }
    for ((name, _), samples) in PEERS.iter().zip(&mut samples) {
        report("chat", "128 turns of 1,024 tokens, each looked up and stored", 128, name, samples);
    }
}

/// One system prompt, and 100,000 that go on from there.
pub(crate) fn bushy() {
    const CHILDREN: usize = 100_000;
    let mut random = Random::new(5);
    let system = random.prompt(1_024);
    let children: Vec<Vec<u32>> =
        (0..CHILDREN).map(|_| [system.clone(), random.prompt(64)].concat()).collect();
    let mut peers = all_peers();
    for (name, peer) in &mut peers {
        eprintln!("  filling {name} with {CHILDREN} children");
        let took = once(|| children.iter().for_each(|child| peer.insert(child)));
        report("bushy", "insert of a child", CHILDREN, name, &mut [took / CHILDREN as f64]);
    }
    let asked: Vec<_> =
        (0..1_000).map(|_| children[random.below(CHILDREN as u64) as usize].clone()).collect();
    let mut contenders: Vec<_> =
        peers.iter_mut().map(|(name, peer)| looks_up(name, peer.as_mut(), asked.clone())).collect();
    contenders.push(compares(&asked[0]));
    interleaved("bushy", "lookup of one of 100,000 children", CHILDREN, &mut contenders, 300);
}

/// Heap bytes by a counting allocator, a token stored.
pub(crate) fn memory() {
    let mut random = Random::new(6);
    let mut prompts_of = |count: usize| (0..count).map(|_| random.prompt(8_192)).collect::<Vec<_>>();
    let long = [8, 32, 128, 512].map(|count| ("prompts of 8,192 tokens", prompts_of(count)));
    let short = ("50,000 of 16 to 32 tokens", (0..50_000).map(|_| random.short()).collect());
    for (case, prompts) in long.into_iter().chain([short]) {
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        for (name, make) in PEERS {
            let (peer, bytes) = growth(|| {
                let mut peer = make();
                prompts.iter().for_each(|prompt| peer.insert(prompt));
                peer
            });
            report("memory", case, tokens, name, &mut [bytes as f64 / tokens as f64]);
            if let Some(claimed) = peer.claimed_bytes() {
                report("memory", case, tokens, "kvcache, index_bytes", &mut [claimed as f64 / tokens as f64]);
            }
        }
    }
}
