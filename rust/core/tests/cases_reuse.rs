//! Named cases: how much of a prompt is reused.

mod common;

use kvcache_core::{Limits, Reason};

use common::engine::{Engine, hybrid, limits, run, span};
use common::index::{Index, Store};
use common::prompt::Prompt;

/// A one-token prompt is found.
#[test]
fn a_prefix_of_one_token_counts() {
    let mut engine = Engine::new(limits());
    engine.mark(&run(1, 2));
    assert_eq!(engine.get(&run(1, 3)), 1);
    let mut engine = Engine::new(limits());
    engine.put(&run(1, 2));
    assert_eq!(engine.get(&run(1, 3)), 1);
}

/// Two conversations with the same system prompt do not overwrite each other.
#[test]
fn conversations_with_one_system_prompt_do_not_replace_each_other() {
    let system = run(0, 2000);
    let (a, b) = (system.then(&run(10_000, 13_000)), system.then(&run(20_000, 21_000)));
    let mut engine = Engine::new(limits());
    engine.put(&a);
    engine.put(&b);
    assert_eq!((engine.get(&a), engine.get(&b)), (4999, 2999));
}

/// If prompts diverge, the hit is exactly their common prefix.
#[test]
fn a_hit_ends_where_the_prompts_diverge() {
    let mut engine = Engine::new(limits());
    engine.put(&run(1, 11));
    let query = run(1, 6).then(&run(99, 100));
    let (prefix, scope) = Index::acquire(&mut engine.index, "", &query, 5).unwrap();
    assert_eq!((prefix.length, scope.pieces.len(), scope.pieces[0].tokens), (5, 1, 5));
    assert_eq!(scope.checkpoint, None);
    assert_eq!(engine.index.stats().trees.nodes, 1, "a lookup never changes the tree");
}

/// A hit returns the stored checkpoint to continue from.
#[test]
fn a_hit_returns_the_stored_checkpoint() {
    let mut engine = Engine::new(limits());
    let plan = engine.ready(&hybrid("", &run(0, 100), false));
    engine.commit(&plan);
    let (_, length, checkpoint) = engine.pin(&run(0, 300));
    assert_eq!((length, checkpoint), (100, plan.checkpoint.map(|id| (id, 100))));
}

/// With one layer that cannot be cut, only checkpoints are usable.
#[test]
fn hybrids_continue_from_checkpoints() {
    let mut engine = Engine::new(limits());
    for end in [100, 200, 250] {
        engine.mark(&run(0, end));
    }
    let sharing = |end: u32| run(0, end).then(&run(1000, 1100));
    let fetches = [180, 230, 90].map(|end| engine.fetch("", &sharing(end)));
    assert_eq!(fetches.map(|fetch| fetch.length), [100, 200, 0]);
    assert_eq!(fetches.map(|fetch| fetch.matched), [180, 230, 90]);
    assert_eq!(fetches.map(|fetch| fetch.checkpoint_at), [Some(180), Some(230), Some(90)]);
    assert_eq!(fetches[2].reason, Reason::NoCheckpoint);
}

/// With sliding windows and a checkpoint every 128 tokens, every turn reuses all checkpointed tokens.
#[test]
fn sliding_windows_continue_from_checkpoints() {
    let mut engine = Engine::new(Limits { max_checkpoints: 100, ..limits() });
    let mut held = 0;
    for turn in 1..=10 {
        let prompt = run(0, turn * 300);
        assert_eq!(engine.get(&prompt), held);
        for end in (128..turn * 300).step_by(128) {
            engine.mark(&run(0, end));
            held = end as usize;
        }
    }
}

/// Until a window has rotated, a checkpoint serves any shorter length, even if the prompts diverge before it.
/// A rotated one never does.
#[test]
fn a_window_that_has_not_rotated_is_trimmed() {
    let mut engine = Engine::new(limits());
    engine.store(&hybrid("", &run(0, 100), true));
    engine.store(&hybrid("", &run(0, 1000), false));
    let sharing = |end: u32| run(0, end).then(&run(5000, 5100));
    assert_eq!([60, 100, 600].map(|end| engine.get(&sharing(end))), [60, 100, 100]);
    let (_, length, checkpoint) = engine.pin(&sharing(60));
    assert_eq!((length, checkpoint.unwrap().1), (60, 100));
}

/// A prompt stored repeatedly is one entry, and is served from the second time on.
#[test]
fn the_same_prompt_is_one_entry() {
    let mut engine = Engine::new(limits());
    let prompt = run(0, 2000);
    for round in 0..6 {
        let fetch = engine.fetch("", &prompt);
        assert_eq!(fetch.length, [0, 1900, 1999][round.min(2)]);
        if let Some(at) = fetch.checkpoint_at {
            engine.mark(&run(0, at as u32));
        }
        engine.mark(&run(0, 1900));
        engine.mark(&prompt);
        assert_eq!(engine.index.ntokens(), 2000);
        let trees = engine.index.stats().trees;
        assert_eq!((trees.sequences, trees.checkpoints), ([2, 3][round.min(1)], [2, 3][round.min(1)]));
    }
}

/// Every miss has a reason, and a lookup without a touch gives the same one.
#[test]
fn every_miss_has_a_reason() {
    let mut engine = Engine::new(limits());
    let reason = |engine: &mut Engine, prompt: &Prompt| engine.fetch("", prompt).reason;
    assert_eq!(reason(&mut engine, &run(0, 5)), Reason::NoEntry);
    engine.mark(&run(0, 100));
    engine.mark(&Prompt::media(1, 20).then(&run(0, 1)));
    assert_eq!(reason(&mut engine, &run(50, 60)), Reason::NoEntry);
    assert_eq!(reason(&mut engine, &run(0, 50)), Reason::NoCheckpoint);
    assert_eq!(reason(&mut engine, &Prompt::media(2, 20)), Reason::Media);
    assert_eq!(reason(&mut engine, &Prompt::media(1, 20)), Reason::Media, "cut to its start");
    assert_eq!(reason(&mut engine, &run(0, 1)), Reason::TooShort);
    assert_eq!(reason(&mut engine, &run(0, 0)), Reason::TooShort);
    assert_eq!(reason(&mut engine, &run(0, 101)), Reason::Hit);
}

/// A conversation reuses all of its earlier turns.
#[test]
fn reuse_grows_with_every_turn() {
    let mut engine = Engine::new(limits());
    for turn in 0..5 {
        let prompt = run(0, (turn + 1) * 300);
        assert_eq!(engine.get(&prompt), turn as usize * 300);
        engine.put(&prompt);
    }
}

/// Another question about the same document reuses the document.
#[test]
fn a_difference_costs_only_what_follows_it() {
    let mut engine = Engine::new(limits());
    let document = run(0, 300);
    engine.put(&document.then(&run(1000, 1010)));
    assert_eq!(engine.get(&document.then(&run(2000, 2010))), 300);
}

/// The second request reports where a checkpoint would help, and the third finds it there.
#[test]
fn the_third_request_hits_fully() {
    let mut engine = Engine::new(limits());
    let shared = run(0, 21_742);
    let request = |which: u32| shared.then(&run(50_000 * which, 50_000 * which + 500));
    engine.mark(&run(0, 16_384));
    engine.mark(&request(1));
    let second = engine.fetch("", &request(2));
    assert_eq!((second.length, second.checkpoint_at), (16_384, Some(21_742)));
    assert_eq!(engine.mark(&run(0, 21_742)), 21_742);
    engine.mark(&request(2));
    let third = engine.fetch("", &request(3));
    assert_eq!((third.length, third.checkpoint_at), (21_742, None));
    let repeat = engine.fetch("", &request(2));
    assert_eq!((repeat.length, repeat.checkpoint_at), (21_742, Some(22_241)), "an exact repeat");
}

/// What a cancelled prefill computed is kept; a failed copy leaves nothing.
#[test]
fn a_cancelled_prefill_keeps_what_it_has() {
    let mut engine = Engine::new(limits());
    let prompt = run(0, 9000);
    let plan = engine.ready(&span("", &prompt));
    engine.index.abort(plan.id).unwrap();
    assert_eq!((engine.get(&prompt), engine.index.stats().reserved_bytes), (0, 0));
    engine.put(&run(0, 4096));
    assert_eq!(engine.get(&prompt), 4096);
}

/// One token is always left for the engine to process.
#[test]
fn a_hit_is_never_the_whole_prompt() {
    let mut engine = Engine::new(limits());
    let prompt = run(0, 50);
    engine.put(&prompt);
    assert_eq!(engine.get(&prompt), 49);
    let mut engine = Engine::new(limits());
    engine.mark(&prompt);
    assert_eq!(engine.get(&prompt), 0);
    engine.mark(&run(0, 30));
    assert_eq!(engine.get(&prompt), 30);
}

/// A template that strips thinking costs only what follows the thinking.
#[test]
fn text_before_a_removed_part_is_reused() {
    let (prompt, thoughts, answer) = (run(0, 700), run(10_000, 10_300), run(20_000, 20_050));
    let mut engine = Engine::new(limits());
    engine.put(&prompt.then(&thoughts).then(&answer));
    assert_eq!(engine.get(&prompt.then(&answer).then(&run(30_000, 30_020))), 700);
}

/// The longest match serves, not the longest stored prompt that is a prefix.
#[test]
fn the_longest_match_wins() {
    let mut engine = Engine::new(limits());
    engine.put(&run(0, 401));
    engine.put(&run(0, 200));
    assert_eq!(engine.get(&run(0, 400).then(&run(1000, 1010))), 400);
    assert_eq!(engine.index.sequences(), 2, "a nested store counts separately");
}

/// Of several layouts the one with the longest usable prefix serves, not the one with the longest match.
#[test]
fn the_layout_with_the_longest_usable_prefix_serves() {
    let mut engine = Engine::new(limits());
    engine.mark(&run(0, 100));
    engine.mark(&run(0, 400));
    engine.store(&Store { layout: 7, ..span("", &run(0, 200)) });
    let fetch = engine.fetch("", &run(0, 300).then(&run(1000, 1010)));
    assert_eq!((fetch.length, fetch.matched, fetch.layout.unwrap().0), (200, 300, 7));
    assert_eq!(fetch.checkpoint_at, Some(300), "a checkpoint there would serve more than layout 7");
    let fetch = engine.fetch("", &run(0, 401));
    assert_eq!((fetch.length, fetch.layout.unwrap().0), (400, 1));
}

/// Whatever the two layouts of a document and the positions of their checkpoints: the match and the advice
/// span both layouts, the length is that of the layout that serves.
#[test]
fn advice_is_the_deepest_over_all_layouts() {
    let document = run(0, 52);
    let question = |which: u32| document.then(&run(1000 * which, 1000 * which + 10));
    let ends = [8, 20, 40, 52, 62];
    for (first, second) in ends.into_iter().flat_map(|a| ends.map(|b| (a, b))) {
        for spans in [false, true] {
            let mut engine = Engine::new(limits());
            let stored = |end: u32| if end > 52 { question(1) } else { run(0, end) };
            let plain = if spans { span("", &stored(first)) } else { hybrid("", &stored(first), false) };
            engine.store(&plain);
            engine.store(&Store { layout: 9, ..hybrid("", &stored(second), false) });
            // The quantised layout also holds the whole document, without a checkpoint at its end.
            engine.store(&Store { layout: 9, ..hybrid("", &question(1), false) });
            let fetch = engine.fetch("", &question(2));
            let served = |end: u32, spans: bool| match end {
                62 => {
                    if spans {
                        52
                    } else {
                        0
                    }
                }
                end => end,
            };
            let length = served(first, spans).max(served(second, false));
            assert_eq!((fetch.length as u32, fetch.matched), (length, 52), "{first}, {second}, {spans}");
            assert_eq!(fetch.checkpoint_at, (length < 52).then_some(52), "{first}, {second}, {spans}");
            engine.store(&Store { layout: 9, ..hybrid("", &document, false) });
            let third = engine.fetch("", &question(3));
            assert_eq!((third.length, third.checkpoint_at), (52, None));
        }
    }
}
