//! Repeats one operation for a profiler: `profile lookup|miss|insert [tokens]`.

use std::hint::black_box;

use kvcache_core::{Limits, PrefixIndex, Query};

/// Total number of keys to compare or copy, regardless of the prompt length.
const KEYS: usize = 6_000_000_000;

fn prompt(number: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|at| (number << 18 | at) & kvcache_core::MAX_TOKEN).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let work = arguments.next().unwrap_or_else(|| "lookup".to_owned());
    let tokens = arguments.next().map_or(8_192, |text| text.parse().expect("a number of tokens"));
    let times = KEYS / tokens;
    let mut index = PrefixIndex::new(Limits { max_bytes: 64 * tokens as u64, ..Limits::default() });
    let prompts: Vec<Vec<u32>> = (0..5).map(|number| prompt(number, tokens)).collect();
    if work == "lookup" {
        for prompt in &prompts {
            index.insert("", &Query::tokens(prompt), 1, 0).expect("valid tokens");
        }
    }
    match &*work {
        "lookup" | "miss" => {
            for at in 0..times {
                let query = Query::tokens(&prompts[at % prompts.len()]);
                black_box(index.match_prefix("", &query, tokens, None).expect("valid tokens"));
            }
        }
        // The index is full, so each insert evicts.
        "insert" => {
            let prompts: Vec<Vec<u32>> = (0..256).map(|number| prompt(number, tokens)).collect();
            for at in 0..times / 8 {
                let query = Query::tokens(&prompts[at % prompts.len()]);
                black_box(index.insert("", &query, 1, 0).expect("valid tokens"));
            }
        }
        other => panic!("unknown operation {other:?}: use lookup, miss or insert"),
    }
}
