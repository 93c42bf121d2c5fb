//! Statistics, and the index as text.

use pyo3::prelude::*;

use crate::cache_index::CacheIndex;
use crate::error::lock;
use crate::types::stats::{IndexStats, LabelStats};

#[pymethods]
impl CacheIndex {
    /// The index as lines of text, without byte counts: equal on ranks that received the same calls.
    fn outline(&self) -> PyResult<Vec<String>> {
        Ok(lock(&self.inner)?.index.outline())
    }

    /// The layouts for which a namespace has trees, oldest first.
    fn layouts(&self, namespace: &str) -> PyResult<Vec<u64>> {
        Ok(lock(&self.inner)?.index.layouts(namespace).into_iter().map(|layout| layout.0).collect())
    }

    /// Namespaces that hold something, in no particular order.
    fn namespaces(&self) -> PyResult<Vec<String>> {
        Ok(lock(&self.inner)?.index.namespaces().map(str::to_owned).collect())
    }

    /// Statistics by label number.
    fn labels(&self) -> PyResult<Vec<LabelStats>> {
        Ok(lock(&self.inner)?.index.labels().iter().map(LabelStats::from).collect())
    }

    /// Statistics of the whole index, or of one namespace.
    #[pyo3(signature = (namespace = None))]
    fn stats(&self, namespace: Option<&str>) -> PyResult<IndexStats> {
        let index = &lock(&self.inner)?.index;
        Ok(match namespace {
            None => index.stats().into(),
            Some(namespace) => index.namespace_stats(namespace).into(),
        })
    }

    /// The distinct layouts that a tree, a draft or a plan refers to.
    fn live_layouts(&self) -> PyResult<Vec<u64>> {
        Ok(lock(&self.inner)?.index.live_layouts().into_iter().map(|layout| layout.0).collect())
    }

    /// Bytes held. O(1).
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.nbytes())
    }

    /// Tokens held. O(1).
    #[getter]
    fn ntokens(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.ntokens())
    }

    /// Distinct stored sequences that are fully present, counting nested ones separately. O(1).
    #[getter]
    fn sequences(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.sequences())
    }

    /// Stored sequences that no other one covers. O(1).
    #[getter]
    fn entries(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.entries())
    }

    /// Units that an eviction can take now. O(1).
    #[getter]
    fn units(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.units())
    }

    /// Leased bytes. O(1).
    #[getter]
    fn leased_bytes(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.leased_bytes())
    }

    /// Bytes reserved for stores in flight and by `reserve_bytes`. O(1).
    #[getter]
    fn reserved_bytes(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.reserved_bytes())
    }

    /// Bytes that can be added without eviction. O(1).
    #[getter]
    fn free_bytes(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.free_bytes())
    }
}
