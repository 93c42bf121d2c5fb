//! What left the index, and what the caller still owes for it.

use kvcache_core as core;
use pyo3::prelude::*;

/// What left the index.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Dropped {
    segments: Vec<u64>,
    checkpoints: Vec<u64>,
    nbytes: u64,
    buffers: u64,
    tokens: u64,
    units: u64,
}

#[pymethods]
impl Dropped {
    fn __bool__(&self) -> bool {
        !self.segments.is_empty() || !self.checkpoints.is_empty()
    }
}

impl From<core::Dropped> for Dropped {
    fn from(dropped: core::Dropped) -> Self {
        Self {
            segments: dropped.segments.into_iter().map(|id| id.0).collect(),
            checkpoints: dropped.checkpoints.into_iter().map(|id| id.0).collect(),
            nbytes: dropped.amount.nbytes,
            buffers: dropped.amount.buffers,
            tokens: dropped.amount.tokens,
            units: dropped.units,
        }
    }
}

/// What an eviction from a `PrefixIndex` dropped.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Evicted {
    ids: Vec<u64>,
    tokens: u64,
    nbytes: u64,
}

impl From<core::Dropped> for Evicted {
    fn from(dropped: core::Dropped) -> Self {
        Self {
            ids: dropped.segments.into_iter().map(|id| id.0).collect(),
            tokens: dropped.amount.tokens,
            nbytes: dropped.amount.nbytes,
        }
    }
}

#[pymethods]
impl Evicted {
    fn __bool__(&self) -> bool {
        !self.ids.is_empty()
    }

    fn __repr__(&self) -> String {
        format!("Evicted({} ids, tokens={}, nbytes={})", self.ids.len(), self.tokens, self.nbytes)
    }
}

/// Segments that were joined into one.
#[pyclass(frozen, get_all, module = "kvcache._core")]
#[derive(Clone)]
pub(crate) struct Joined {
    /// Id of the joined segment.
    segment: u64,
    /// Ids of the segments it replaces, in token order.
    replaced: Vec<u64>,
}

impl From<&core::Joined> for Joined {
    fn from(joined: &core::Joined) -> Self {
        Self { segment: joined.segment.0, replaced: joined.replaced.iter().map(|id| id.0).collect() }
    }
}

/// What to do to the arrays, in the order of the fields.
#[pyclass(frozen, get_all, module = "kvcache._core")]
#[derive(Clone, Default)]
pub(crate) struct Owed {
    /// Segments joined under a new id.
    pub(crate) joins: Vec<Joined>,
    /// Segments whose rewritten arrays replace their old ones.
    pub(crate) rewritten: Vec<u64>,
    /// Segments that left the index.
    pub(crate) segments: Vec<u64>,
    /// Checkpoints that left the index.
    pub(crate) checkpoints: Vec<u64>,
}

#[pymethods]
impl Owed {
    fn __bool__(&self) -> bool {
        !self.is_empty()
    }
}

impl Owed {
    pub(crate) fn is_empty(&self) -> bool {
        self.joins.is_empty()
            && [&self.rewritten, &self.segments, &self.checkpoints].iter().all(|ids| ids.is_empty())
    }
}
