//! `PrefixIndex`: the index by itself, bookkeeping only.

use std::sync::Mutex;

use kvcache_core as core;
use pyo3::prelude::*;

use crate::error::{ConfigError, broken, lock};
use crate::tokens;
use crate::types::{Evicted, IndexStats, Inserted, Match};

/// A native prefix tree with LRU order and byte ledger; bookkeeping only.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct PrefixIndex(Mutex<core::PrefixIndex>);

pub(crate) fn limits(
    max_bytes: Option<i64>,
    max_buffers: Option<i64>,
    segment_tokens: i64,
    max_checkpoints: i64,
) -> PyResult<core::Limits> {
    let positive = |name: &str, value: i64| {
        let usable = usize::try_from(value).ok().filter(|value| *value > 0);
        usable.ok_or_else(|| ConfigError::new_err(format!("{name} must be at least 1, found {value}")))
    };
    let limit = |name: &str, value: Option<i64>, unlimited: u64| match value {
        None => Ok(unlimited),
        Some(value) => u64::try_from(value)
            .map_err(|_| ConfigError::new_err(format!("{name} must not be negative, found {value}"))),
    };
    let default = core::Limits::default();
    Ok(core::Limits {
        max_bytes: limit("max_bytes", max_bytes, default.max_bytes)?,
        max_buffers: limit("max_buffers", max_buffers, default.max_buffers)?,
        segment_tokens: positive("segment_tokens", segment_tokens)?,
        max_checkpoints: positive("max_checkpoints", max_checkpoints)?,
    })
}

pub(crate) fn not_negative(name: &str, value: i64) -> PyResult<u64> {
    u64::try_from(value)
        .map_err(|_| ConfigError::new_err(format!("{name} must not be negative, found {value}")))
}

#[pymethods]
impl PrefixIndex {
    #[new]
    #[pyo3(signature = (*, max_bytes = None, max_buffers = None, segment_tokens = 1024))]
    fn new(max_bytes: Option<i64>, max_buffers: Option<i64>, segment_tokens: i64) -> PyResult<Self> {
        let limits = limits(max_bytes, max_buffers, segment_tokens, 1)?;
        Ok(Self(Mutex::new(core::PrefixIndex::new(limits))))
    }

    #[pyo3(signature = (tokens, *, namespace = "", touch = true))]
    fn match_prefix(&self, tokens: &Bound<'_, PyAny>, namespace: &str, touch: bool) -> PyResult<Match> {
        let tokens = tokens::read(tokens)?;
        let mut index = lock(&self.0)?;
        let length = tokens.keys().len();
        let found = tokens.with_query(&mut index, length, &[], false, |index, query| {
            index.match_prefix(namespace, query, length, touch.then_some(0))
        });
        found.map(Match::from)
    }

    #[pyo3(signature = (tokens, *, namespace = "", bytes_per_token = 1))]
    fn insert(&self, tokens: &Bound<'_, PyAny>, namespace: &str, bytes_per_token: i64) -> PyResult<Inserted> {
        let py = tokens.py();
        let bytes_per_token = not_negative("bytes_per_token", bytes_per_token)?;
        let tokens = tokens::read(tokens)?;
        let length = tokens.keys().len();
        let inserted = tokens.with_query(&mut *lock(&self.0)?, length, &[], true, |index, query| {
            index.insert(namespace, query, bytes_per_token, 0)
        })?;
        Inserted::new(py, inserted)
    }

    fn evict(&self, nbytes: i64) -> PyResult<Evicted> {
        let need = core::Need { nbytes: not_negative("nbytes", nbytes)?, ..core::Need::default() };
        Ok(lock(&self.0)?.evict(need).into())
    }

    fn clear(&self) -> PyResult<Evicted> {
        Ok(lock(&self.0)?.clear().into())
    }

    fn stats(&self) -> PyResult<IndexStats> {
        Ok(lock(&self.0)?.stats().into())
    }

    fn validate(&self) -> PyResult<()> {
        lock(&self.0)?.validate().map_err(|found| broken(&found))
    }
}
