//! Random operations on the index, compared with the oracle. `PROPTEST_CASES` sets how many.

mod common;

use kvcache_core::PrefixIndex;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use common::driver::run;
use common::operations::{config, script};

proptest! {
    #![proptest_config(config(800))]

    #[test]
    fn the_index_does_what_the_oracle_says(script in script(60)) {
        run(&script, PrefixIndex::new).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    #![proptest_config(config(40))]

    /// Fewer, and long enough for trees to be built up, cut down and built up again.
    #[test]
    fn the_index_does_what_the_oracle_says_in_the_long_run(script in script(600)) {
        run(&script, PrefixIndex::new).map_err(TestCaseError::fail)?;
    }
}
