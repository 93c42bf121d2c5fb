//! Named cases: which stored sequences are entries, their labels, and trimming to fewer.

mod common;

use kvcache_core::{Limits, Need};

use common::engine::{Engine, hybrid, limits, run, span};
use common::index::Store;
use common::prompt::Prompt;

fn labelled(prompt: &Prompt, label: u16) -> Store {
    Store { label, ..span("", prompt) }
}

fn trim(engine: &mut Engine, entries: u64) -> u64 {
    let need = Need { entries: engine.index.entries().saturating_sub(entries), ..Need::default() };
    let counted = engine.index.count_units(need);
    let dropped = engine.index.evict(need);
    engine.index.validate().unwrap();
    assert_eq!(dropped.units, counted);
    dropped.units
}

/// A chat is one entry however many turns it has, whether in one node or several.
#[test]
fn a_growing_chat_is_one_entry() {
    for segment_tokens in [3, 16, 1024] {
        let mut engine = Engine::new(Limits { segment_tokens, ..limits() });
        for turn in 1..=9 {
            engine.put(&run(0, turn * 7));
            assert_eq!((engine.index.sequences(), engine.index.entries()), (u64::from(turn), 1));
        }
        // A shorter sequence stored later is covered from the start.
        engine.put(&run(0, 20));
        assert_eq!((engine.index.sequences(), engine.index.entries()), (10, 1));
    }
}

/// Each branch is an entry; evicting the branches uncovers the sequence they extended.
#[test]
fn each_branch_is_an_entry_and_covers_its_prefix() {
    let mut engine = Engine::new(limits());
    let system = run(0, 40);
    engine.put(&system);
    engine.put(&system.then(&run(100, 110)));
    engine.put(&system.then(&run(200, 210)));
    assert_eq!((engine.index.sequences(), engine.index.entries()), (3, 2));
    engine.evict_units(1);
    assert_eq!((engine.index.sequences(), engine.index.entries()), (2, 1));
    engine.evict_units(1);
    assert_eq!((engine.index.sequences(), engine.index.entries()), (1, 1), "the system prompt itself");
    engine.evict_units(1);
    assert_eq!((engine.index.sequences(), engine.index.entries()), (0, 0));
}

/// If each sequence needs a checkpoint of its own, each is an entry.
#[test]
fn every_checkpoint_is_an_entry() {
    let mut engine = Engine::new(limits());
    for turn in 1..=3 {
        engine.store(&hybrid("", &run(0, turn * 10), turn == 1));
    }
    assert_eq!((engine.index.sequences(), engine.index.entries()), (3, 3));
    assert_eq!(trim(&mut engine, 1), 2);
    assert_eq!(engine.get(&run(0, 31)), 30);
}

/// The oldest conversations are evicted with all their turns; the others stay whole. What remains of the
/// last one evicted is a head in which no store ended.
#[test]
fn trimming_evicts_the_oldest_conversations() {
    let mut engine = Engine::new(Limits { segment_tokens: 8, ..limits() });
    let chat = |which: u32, turns: u32| run(which * 1000, which * 1000 + turns * 10);
    for turn in 1..=4 {
        for which in 0..5 {
            engine.put(&chat(which, turn));
        }
    }
    assert_eq!((engine.index.sequences(), engine.index.entries()), (20, 5));
    trim(&mut engine, 5);
    assert_eq!(engine.index.ntokens(), 5 * 40, "there were no more entries");
    trim(&mut engine, 2);
    assert_eq!((engine.index.sequences(), engine.index.entries()), (8, 2));
    assert_eq!([0, 2, 3, 4].map(|which| engine.get(&chat(which, 5))), [0, 8, 40, 40]);
    trim(&mut engine, 0);
    assert_eq!((engine.index.sequences(), engine.index.ntokens()), (0, 8), "only a head remains");
}

/// An end counts for the label that stored it last, its tokens for the label that added them.
#[test]
fn labels_have_entries_tokens_and_bytes() {
    let mut engine = Engine::new(limits());
    let (system, other) = (run(0, 40), run(500, 505));
    engine.store(&labelled(&system, 2));
    engine.store(&labelled(&system.then(&run(100, 110)), 1));
    engine.store(&labelled(&system.then(&run(200, 210)), 1));
    engine.store(&Store { bytes_per_token: 3, ..labelled(&other, 0) });
    let of = |engine: &Engine, label: usize| {
        let amount = engine.index.labels()[label];
        [amount.sequences, amount.entries, amount.ntokens, amount.nbytes]
    };
    assert_eq!([0, 1, 2].map(|label| of(&engine, label)), [[1, 1, 5, 15], [2, 2, 20, 20], [1, 0, 40, 40]]);
    // Stored again under another label: the end moves to it, the tokens stay with the first.
    engine.store(&labelled(&other, 1));
    assert_eq!([0, 1].map(|label| of(&engine, label)), [[0, 0, 5, 15], [3, 3, 20, 20]]);
    engine.index.evict(Need { units: 2, ..Need::default() });
    assert_eq!([1, 2].map(|label| of(&engine, label)), [[1, 1, 0, 0], [1, 1, 40, 40]]);
}

/// Namespaces count their own entries, and the index counts their sum.
#[test]
fn namespaces_count_their_own_entries() {
    let mut engine = Engine::new(limits());
    for (namespace, chats) in [("a", 3_u32), ("b", 2)] {
        for which in 0..chats {
            engine.store(&span(namespace, &run(which * 100, which * 100 + 10)));
            engine.store(&span(namespace, &run(which * 100, which * 100 + 20)));
        }
    }
    let entries = |namespace| engine.index.namespace_stats(namespace).entries;
    assert_eq!((entries("a"), entries("b"), entries("c")), (3, 2, 0));
    assert_eq!(engine.index.stats().trees.entries, 5);
    engine.index.drop_namespace("a");
    assert_eq!(engine.index.stats().trees.entries, 2);
}
