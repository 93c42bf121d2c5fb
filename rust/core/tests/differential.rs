//! Random operations on the index beside the oracle.

mod common;

use kvcache_core::PrefixIndex;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use common::driver::run;
use common::operations::script;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn the_index_does_what_the_oracle_says(script in script(60)) {
        run(&script, PrefixIndex::new).map_err(TestCaseError::fail)?;
    }
}
