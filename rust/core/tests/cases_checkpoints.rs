//! Named cases: which checkpoints of a path are kept.

mod common;

use kvcache_core::Limits;

use common::engine::{Engine, hybrid, limits, run};
use common::index::Store;
use common::prompt::Prompt;

/// A model that stores its prompt in steps, without its last token, and then the end of its answer.
struct Chat {
    engine: Engine,
    step: u32,
    /// Whether its stores give the end of their prompt.
    marks_prompt: bool,
}

impl Chat {
    fn new(max_checkpoints: usize, step: u32, marks_prompt: bool) -> Self {
        Self { engine: Engine::new(Limits { max_checkpoints, ..limits() }), step, marks_prompt }
    }

    fn turn(&mut self, prompt: &Prompt, answer: &Prompt) {
        let length = prompt.len();
        let ends = (self.step as usize..length).step_by(self.step as usize).chain([length - 1]);
        let held = self.engine.get(prompt);
        for end in ends.filter(|end| *end > held) {
            self.store(&Prompt(prompt.0[..end].to_vec()), length);
        }
        self.store(&prompt.then(answer), length);
    }

    fn store(&mut self, key: &Prompt, prompt: usize) {
        let prompt_length = self.marks_prompt.then_some(prompt);
        self.engine.store(&Store { prompt_length, ..hybrid("", key, false) });
    }
}

fn answer(which: u32, length: u32) -> Prompt {
    run(100_000 * which, 100_000 * which + length)
}

/// Regenerating, editing, and a template that strips thinking all return to the end of the prompt and find
/// it, however long prompt and answer are.
#[test]
fn the_end_of_the_prompt_is_kept_as_long_as_the_newest() {
    for marks_prompt in [false, true] {
        for max_checkpoints in [2, 3, 8] {
            for (tokens, length) in [(9, 1), (41, 3), (40, 40), (400, 2), (400, 19), (400, 1000)] {
                let (mut chat, prompt) = (Chat::new(max_checkpoints, 20, marks_prompt), run(0, tokens));
                chat.turn(&prompt, &answer(1, length));
                let end = prompt.len() - 1;
                assert_eq!(
                    chat.engine.get(&prompt),
                    end,
                    "again: {marks_prompt}, {max_checkpoints}, {tokens}, {length}"
                );
                // Regenerating twice adds a branch per answer.
                for which in 2..4 {
                    chat.turn(&prompt, &answer(which, length));
                    assert_eq!(chat.engine.get(&prompt), end, "regenerated {which}");
                }
                let stripped = prompt.then(&answer(9, 5));
                assert!(chat.engine.get(&stripped) >= end, "the thinking is stripped");
                // At most three branches, and the path above them.
                assert!(chat.engine.index.stats().trees.checkpoints <= 4 * max_checkpoints as u64);
            }
        }
    }
}

#[test]
fn every_turn_of_a_chat_keeps_its_own_end() {
    for marks_prompt in [false, true] {
        let mut chat = Chat::new(4, 30, marks_prompt);
        let mut prompt = run(0, 100);
        for turn in 1..12 {
            let reply = answer(turn, 7);
            chat.turn(&prompt, &reply);
            assert_eq!(chat.engine.get(&prompt), prompt.len() - 1);
            assert_eq!(chat.engine.get(&prompt.then(&reply).then(&run(5, 6))), prompt.len() + 7);
            assert!(chat.engine.index.stats().trees.checkpoints <= 4);
            prompt = prompt.then(&reply).then(&answer(100 + turn, 50));
        }
    }
}

/// For an engine that also stores in the middle of an answer and gives the end of its prompt.
#[test]
fn checkpoints_inside_an_answer_do_not_displace_the_end_of_the_prompt() {
    for max_checkpoints in [2, 3, 8] {
        let (mut chat, prompt) = (Chat::new(max_checkpoints, 50, true), run(0, 300));
        chat.turn(&prompt, &answer(1, 1));
        for length in (1..500).step_by(13) {
            chat.store(&prompt.then(&answer(1, length)), prompt.len());
            assert_eq!(chat.engine.get(&prompt), 299, "after {length} tokens of the answer");
            assert!(chat.engine.index.stats().trees.checkpoints <= max_checkpoints as u64);
        }
    }
}

/// Only the end of the latest prompt is protected from thinning.
#[test]
fn the_end_of_the_latest_prompt_is_kept() {
    let mut chat = Chat::new(2, 1000, true);
    for end in [100, 200, 300] {
        chat.store(&run(0, end), end as usize);
        chat.store(&run(0, end + 50), end as usize);
        let kept = [end, end + 50].map(|end| chat.engine.get(&run(0, end + 1)));
        assert_eq!(kept, [end as usize, end as usize + 50]);
        assert_eq!(chat.engine.index.stats().trees.checkpoints, 2);
    }
}

/// A store of a held prompt also marks the end of its prompt.
#[test]
fn a_repeated_store_marks_the_end_of_its_prompt_again() {
    let mut chat = Chat::new(2, 1000, true);
    for end in [100, 200] {
        chat.store(&run(0, end), end as usize);
    }
    chat.store(&run(0, 200), 150);
    chat.store(&run(0, 300), 120);
    assert_eq!([101, 201, 301].map(|end| chat.engine.get(&run(0, end))), [100, 100, 300]);
}

#[test]
fn a_limit_of_one_checkpoint_keeps_the_newest() {
    for marks_prompt in [false, true] {
        let mut chat = Chat::new(1, 30, marks_prompt);
        chat.turn(&run(0, 100), &answer(1, 20));
        assert_eq!(chat.engine.index.stats().trees.checkpoints, 1);
        assert_eq!(chat.engine.get(&run(0, 100).then(&answer(1, 21))), 120);
    }
}
