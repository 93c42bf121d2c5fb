//! Statistics.

use kvcache_core as core;
use pyo3::prelude::*;

/// Current statistics. `index_bytes` counts the heap bytes of the index itself.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct IndexStats {
    nbytes: u64,
    ntokens: u64,
    buffers: u64,
    nodes: u64,
    segments: u64,
    checkpoints: u64,
    sequences: u64,
    entries: u64,
    units: u64,
    namespaces: u64,
    leased_bytes: u64,
    reserved_bytes: u64,
    index_bytes: u64,
}

#[pymethods]
impl IndexStats {
    fn __repr__(&self) -> String {
        format!(
            "IndexStats(nbytes={}, ntokens={}, nodes={}, segments={}, checkpoints={}, index_bytes={})",
            self.nbytes, self.ntokens, self.nodes, self.segments, self.checkpoints, self.index_bytes
        )
    }
}

impl From<core::Stats> for IndexStats {
    fn from(stats: core::Stats) -> Self {
        Self {
            units: stats.units,
            namespaces: stats.namespaces,
            leased_bytes: stats.leased_bytes,
            reserved_bytes: stats.reserved_bytes,
            index_bytes: stats.index_bytes,
            ..Self::from(stats.trees)
        }
    }
}

impl From<core::TreeStats> for IndexStats {
    /// One namespace's share. Fields that exist only for the whole index are 0.
    fn from(trees: core::TreeStats) -> Self {
        Self {
            nbytes: trees.nbytes,
            ntokens: trees.ntokens,
            buffers: trees.buffers,
            nodes: trees.nodes,
            segments: trees.segments,
            checkpoints: trees.checkpoints,
            sequences: trees.sequences,
            entries: trees.entries,
            units: 0,
            namespaces: 1,
            leased_bytes: 0,
            reserved_bytes: 0,
            index_bytes: 0,
        }
    }
}

/// What the stores under one label hold.
#[pyclass(frozen, get_all, module = "kvcache._core")]
#[derive(Clone)]
pub(crate) struct LabelStats {
    sequences: u64,
    entries: u64,
    ntokens: u64,
    nbytes: u64,
}

impl From<&core::LabelAmount> for LabelStats {
    fn from(label: &core::LabelAmount) -> Self {
        Self {
            sequences: label.sequences,
            entries: label.entries,
            ntokens: label.ntokens,
            nbytes: label.nbytes,
        }
    }
}
