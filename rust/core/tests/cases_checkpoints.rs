//! Named cases: which checkpoints of a path stay.

mod common;

use kvcache_core::Limits;

use common::engine::{Engine, hybrid, limits, run};
use common::index::Store;
use common::prompt::Prompt;

/// A model that stores the prompt in steps, all but its last token, and then the end of its answer.
struct Chat {
    engine: Engine,
    step: u32,
    /// Whether it says where its prompts end.
    says: bool,
}

impl Chat {
    fn new(max_checkpoints: usize, step: u32, says: bool) -> Self {
        Self { engine: Engine::new(Limits { max_checkpoints, ..limits() }), step, says }
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
        let prompt_length = self.says.then_some(prompt);
        self.engine.store(&Store { prompt_length, ..hybrid("", key, false) });
    }
}

fn answer(which: u32, length: u32) -> Prompt {
    run(100_000 * which, 100_000 * which + length)
}

/// Regenerating, editing and a template that drops the thinking come back to the prompt's end, and
/// find it, however long prompt and answer are.
#[test]
fn the_end_of_the_prompt_stays_as_long_as_the_newest() {
    for says in [false, true] {
        for max_checkpoints in [2, 3, 8] {
            for (tokens, length) in [(9, 1), (41, 3), (40, 40), (400, 2), (400, 19), (400, 1000)] {
                let (mut chat, prompt) = (Chat::new(max_checkpoints, 20, says), run(0, tokens));
                chat.turn(&prompt, &answer(1, length));
                let end = prompt.len() - 1;
                assert_eq!(
                    chat.engine.get(&prompt),
                    end,
                    "again: {says}, {max_checkpoints}, {tokens}, {length}"
                );
                // Regenerated twice: each answer is another branch.
                for which in 2..4 {
                    chat.turn(&prompt, &answer(which, length));
                    assert_eq!(chat.engine.get(&prompt), end, "regenerated {which}");
                }
                let stripped = prompt.then(&answer(9, 5));
                assert!(chat.engine.get(&stripped) >= end, "the thinking is dropped");
                // Three branches at most, and what is above them.
                assert!(chat.engine.index.stats().trees.checkpoints <= 4 * max_checkpoints as u64);
            }
        }
    }
}

#[test]
fn every_turn_of_a_chat_keeps_its_own_end() {
    for says in [false, true] {
        let mut chat = Chat::new(4, 30, says);
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

/// An engine that also stores in the middle of an answer says where the prompt ended.
#[test]
fn checkpoints_inside_an_answer_do_not_drive_the_prompts_end_out() {
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

/// The latest prompt is the one that counts; the ones before it make room.
#[test]
fn the_latest_prompt_is_the_one_that_stays() {
    let mut chat = Chat::new(2, 1000, true);
    for end in [100, 200, 300] {
        chat.store(&run(0, end), end as usize);
        chat.store(&run(0, end + 50), end as usize);
        let stays = [end, end + 50].map(|end| chat.engine.get(&run(0, end + 1)));
        assert_eq!(stays, [end as usize, end as usize + 50]);
        assert_eq!(chat.engine.index.stats().trees.checkpoints, 2);
    }
}

/// Saying again where a prompt that is held ends counts, too.
#[test]
fn a_repeated_store_says_it_again() {
    let mut chat = Chat::new(2, 1000, true);
    for end in [100, 200] {
        chat.store(&run(0, end), end as usize);
    }
    chat.store(&run(0, 200), 150);
    chat.store(&run(0, 300), 120);
    assert_eq!([101, 201, 301].map(|end| chat.engine.get(&run(0, end))), [100, 100, 300]);
}

/// With room for one, it is the newest.
#[test]
fn of_one_checkpoint_the_newest_stays() {
    for says in [false, true] {
        let mut chat = Chat::new(1, 30, says);
        chat.turn(&run(0, 100), &answer(1, 20));
        assert_eq!(chat.engine.index.stats().trees.checkpoints, 1);
        assert_eq!(chat.engine.get(&run(0, 100).then(&answer(1, 21))), 120);
    }
}
