//! The Python extension module `kvcache._core`: parses arguments, calls the core and maps errors. All
//! decisions are the core's.
// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

mod arguments;
mod cache_index;
mod error;
mod hash;
mod prefix_index;
mod section;
mod tickets;
mod tokens;
mod types;

/// The native part of kvcache.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::cache_index::CacheIndex;
    #[pymodule_export]
    use crate::hash::path_hash;
    #[pymodule_export]
    use crate::prefix_index::PrefixIndex;
    #[pymodule_export]
    use crate::section::SectionLock;
    #[pymodule_export]
    use crate::tickets::{Lease, Plan, Room};
    #[pymodule_export]
    use crate::tokens::Tokens;
    #[pymodule_export]
    use crate::types::dropped::{Dropped, Evicted, Joined, Owed};
    #[pymodule_export]
    use crate::types::lookup::{Acquired, Match, Piece, Resumed};
    #[pymodule_export]
    use crate::types::stats::{IndexStats, LabelStats};
    #[pymodule_export]
    use crate::types::store::{Drafted, Inserted, NewSegment, Planned, Settled, Split, StoreRequest};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods;
        let policies = pyo3::types::PyTuple::new(module.py(), crate::arguments::policies())?;
        module.add("POLICIES", policies)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
