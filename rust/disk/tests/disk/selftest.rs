//! Tests the harness: it must catch deliberate faults.

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, TestRunner},
};

use crate::{
    faults::{Event, Lie, Trace},
    model,
};

#[test]
fn the_dictionary_catches_every_lie() {
    for lie in [Lie::Unlink, Lie::Rename, Lie::Grow, Lie::Touch, Lie::Flip] {
        let mut runner = TestRunner::new_with_rng(
            Config::default(),
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let caught = (0..200).any(|_| {
            let steps = model::steps().new_tree(&mut runner).unwrap().current();
            model::run(&steps, Some(lie)).is_err()
        });
        assert!(caught, "{lie:?} went undetected");
    }
}

#[test]
fn the_trace_finds_the_peak() {
    let mut trace = Trace::default();
    for line in
        ["grow\ta\t10", "grow\ta\t5", "grow\tb\t7", "rename\ta\tb", "grow\tc\t3", "remove\tb", "grow\td\t16"]
    {
        trace.apply(&Event::parse(line));
    }
    assert_eq!(trace.peak, 19);
}
