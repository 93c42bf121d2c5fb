//! Python extension module `kvcache._core`: parses arguments, calls the core, maps errors.
//! It decides nothing.
// PyO3 hands converted arguments over by value.
#![allow(clippy::needless_pass_by_value)]

mod cache_index;
mod error;
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
    use crate::prefix_index::PrefixIndex;
    #[pymodule_export]
    use crate::section::SectionLock;
    #[pymodule_export]
    use crate::tickets::{Lease, Plan};
    #[pymodule_export]
    use crate::tokens::Tokens;
    #[pymodule_export]
    use crate::types::{Acquired, Drafted, Dropped, Evicted, IndexStats, Inserted, Match, Planned};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods;
        let policies = kvcache_core::Policy::ALL.map(kvcache_core::Policy::name);
        module.add("POLICIES", pyo3::types::PyTuple::new(module.py(), policies)?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
