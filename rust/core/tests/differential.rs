//! Random operations on the index, compared with the oracle. `PROPTEST_CASES` sets the number of cases.

mod common;

use kvcache_core::PrefixIndex;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use common::driver::run;
use common::operations::{config, script};

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn the_index_agrees_with_the_oracle(script in script(60)) {
        run(&script, PrefixIndex::new).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    #![proptest_config(config(40))]

    /// Fewer scripts, but long enough for trees to grow, shrink and grow again.
    #[test]
    fn the_index_agrees_with_the_oracle_in_long_scripts(script in script(600)) {
        run(&script, PrefixIndex::new).map_err(TestCaseError::fail)?;
    }
}
