//! Tests the harness: it must catch every fault, and pass an index without one.

mod common;

use kvcache_core::Limits;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use common::driver::run;
use common::faults::names::FAULTS;
use common::faults::{Fault, Faulty};
use common::operations::{Script, script};

const SCRIPTS: usize = 400;

/// The same scripts in every run.
fn scripts() -> impl Iterator<Item = Script> {
    let mut runner = TestRunner::deterministic();
    (0..SCRIPTS).map(move |_| script(60).new_tree(&mut runner).unwrap().current())
}

#[test]
fn every_fault_is_caught() {
    let scripts: Vec<Script> = scripts().collect();
    for &fault in FAULTS {
        let make = |limits: Limits| Faulty::new(fault, limits);
        let caught = scripts.iter().position(|script| run(script, make).is_err());
        assert!(caught.is_some(), "{fault:?} went unnoticed in {SCRIPTS} scripts");
    }
}

#[test]
fn an_index_without_a_fault_passes() {
    for script in scripts() {
        run(&script, |limits| Faulty::new(Fault::None, limits)).unwrap();
    }
}
