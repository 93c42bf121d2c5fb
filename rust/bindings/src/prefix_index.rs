//! `PrefixIndex`: the index by itself, bookkeeping only.

use std::sync::Mutex;

use kvcache_core as core;
use pyo3::prelude::*;

use crate::arguments::{Namespace, Policy, Size, limits, not_negative};
use crate::error::{broken, lock};
use crate::tokens;
use crate::types::dropped::Evicted;
use crate::types::lookup::Match;
use crate::types::stats::IndexStats;
use crate::types::store::Inserted;

/// A native prefix tree over token ids with LRU eviction and a byte ledger; bookkeeping only.
///
/// For schedulers, routers and simulation: it holds no arrays and imports no MLX. Safe to share between
/// threads. Raises `ConfigError` for a limit or size that is negative or beyond 63 bits.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct PrefixIndex(Mutex<core::PrefixIndex>);

#[pymethods]
impl PrefixIndex {
    #[new]
    #[pyo3(
        signature = (*, max_bytes = None, max_buffers = None, segment_tokens = Size(1024), policy = Policy::default()),
        text_signature = "(*, max_bytes=None, max_buffers=None, segment_tokens=1024, policy='lru')"
    )]
    fn new(
        max_bytes: Option<Size>,
        max_buffers: Option<Size>,
        segment_tokens: Size,
        policy: Policy,
    ) -> PyResult<Self> {
        let (max_bytes, max_buffers) = (max_bytes.map(|size| size.0), max_buffers.map(|size| size.0));
        let limits = limits(max_bytes, max_buffers, segment_tokens.0, 1, policy)?;
        Ok(Self(Mutex::new(core::PrefixIndex::new(limits))))
    }

    /// Finds the longest stored prefix of `tokens`: `length` tokens, all of them where all are stored.
    ///
    /// With `touch` it becomes the most recently used; otherwise nothing changes. O(len(tokens)); the
    /// number of stored prompts plays no part. Raises `TokenError` for an id outside 0..2³¹-1 anywhere
    /// in `tokens`, `TypeError` for tokens of another type.
    #[pyo3(
        signature = (tokens, *, namespace = Namespace::default(), touch = true),
        text_signature = "($self, tokens, *, namespace='', touch=True)"
    )]
    fn match_prefix(&self, tokens: &Bound<'_, PyAny>, namespace: Namespace, touch: bool) -> PyResult<Match> {
        let tokens = tokens::read(tokens)?;
        let mut index = lock(&self.0)?;
        let length = tokens.keys().len();
        let found = tokens.with_query(&mut index, length, &[], false, |index, query| {
            index.match_prefix(&namespace.0, query, length, touch.then_some(0))
        });
        found.map(Match::from)
    }

    /// Plans, evicts and commits in one step, bookkeeping only: each token counts `bytes_per_token`.
    ///
    /// The longest prefix that fits the limits is kept: `length` tokens, of which `new_tokens` were not
    /// held before; `evicted` made room for them. O(len(tokens)). Raises as `match_prefix`.
    #[pyo3(
        signature = (tokens, *, namespace = Namespace::default(), bytes_per_token = Size(1)),
        text_signature = "($self, tokens, *, namespace='', bytes_per_token=1)"
    )]
    fn insert(
        &self,
        tokens: &Bound<'_, PyAny>,
        namespace: Namespace,
        bytes_per_token: Size,
    ) -> PyResult<Inserted> {
        let py = tokens.py();
        let bytes_per_token = not_negative("bytes_per_token", bytes_per_token.0)?;
        let tokens = tokens::read(tokens)?;
        let length = tokens.keys().len();
        let inserted = tokens.with_query(&mut *lock(&self.0)?, length, &[], true, |index, query| {
            index.insert(&namespace.0, query, bytes_per_token, 0)
        })?;
        Inserted::new(py, inserted)
    }

    /// Evicts the least recently used segments until at least `nbytes` are gone. O(1) amortised each.
    fn evict(&self, nbytes: Size) -> PyResult<Evicted> {
        let need = core::Need { nbytes: not_negative("nbytes", nbytes.0)?, ..core::Need::default() };
        Ok(lock(&self.0)?.evict(need).into())
    }

    /// Drops everything.
    fn clear(&self) -> PyResult<Evicted> {
        Ok(lock(&self.0)?.clear().into())
    }

    /// Figures as they are now. O(1).
    fn stats(&self) -> PyResult<IndexStats> {
        Ok(lock(&self.0)?.stats().into())
    }

    /// Recomputes every counter and link; raises `InternalError` naming what is broken. O(everything).
    fn validate(&self) -> PyResult<()> {
        lock(&self.0)?.validate().map_err(|found| broken(&found))
    }
}
