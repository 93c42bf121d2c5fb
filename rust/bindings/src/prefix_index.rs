//! `PrefixIndex`: the index on its own, for bookkeeping.

use std::sync::Mutex;

use kvcache_core as core;
use pyo3::prelude::*;

use crate::arguments::{Namespace, Policy, Size, limits, not_negative};
use crate::error::{invariant, lock};
use crate::tokens;
use crate::types::dropped::Evicted;
use crate::types::lookup::Match;
use crate::types::stats::IndexStats;
use crate::types::store::Inserted;

/// A native prefix tree over token ids with LRU eviction and a byte ledger. Bookkeeping only.
///
/// For schedulers, routers and simulators: it holds no arrays and does not import MLX. Safe to share
/// between threads. Raises `ConfigError` if a limit or size is negative or exceeds 63 bits.
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

    /// Finds the longest stored prefix of `tokens`; `length` tokens of it are reusable, up to all of them.
    ///
    /// With `touch`, it becomes the most recently used; otherwise nothing changes. O(len(tokens)),
    /// independent of the number of stored prompts. Raises `TokenError` if any id in `tokens` is outside
    /// 0..2³¹-1, and `TypeError` if `tokens` has another type.
    #[pyo3(
        signature = (tokens, *, namespace = Namespace::default(), touch = true),
        text_signature = "($self, tokens, *, namespace='', touch=True)"
    )]
    fn match_prefix(&self, tokens: &Bound<'_, PyAny>, namespace: Namespace, touch: bool) -> PyResult<Match> {
        let tokens = tokens::read(tokens)?;
        let mut index = lock(&self.0)?;
        let length = tokens.keys().len();
        let prefix = tokens.with_query(&mut index, length, &[], false, |index, query| {
            index.match_prefix(&namespace.0, query, length, touch.then_some(0))
        });
        prefix.map(Match::from)
    }

    /// Plans, evicts and commits in one step. Bookkeeping only: each token counts `bytes_per_token`.
    ///
    /// Keeps the longest prefix that fits the limits: `length` tokens, of which `new_tokens` were not held
    /// before. `evicted` is what made room for them. O(len(tokens)). Raises the same as `match_prefix`.
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

    /// Evicts the least recently used segments until at least `nbytes` are freed. Amortised O(1) each.
    fn evict(&self, nbytes: Size) -> PyResult<Evicted> {
        let need = core::Need { nbytes: not_negative("nbytes", nbytes.0)?, ..core::Need::default() };
        Ok(lock(&self.0)?.evict(need).into())
    }

    /// Drops everything.
    fn clear(&self) -> PyResult<Evicted> {
        Ok(lock(&self.0)?.clear().into())
    }

    /// Current statistics. O(1).
    fn stats(&self) -> PyResult<IndexStats> {
        Ok(lock(&self.0)?.stats().into())
    }

    /// Recomputes every counter and link. Raises `InternalError` that names the first broken invariant.
    /// O(everything).
    fn validate(&self) -> PyResult<()> {
        lock(&self.0)?.validate().map_err(|broken| invariant(&broken))
    }
}
