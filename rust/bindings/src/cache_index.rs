//! `CacheIndex`: the two-step protocol of a cache that keeps arrays under the index's ids.

use std::sync::Mutex;

use kvcache_core as core;
use pyo3::prelude::*;

use crate::error::{broken, lock, to_python};
use crate::prefix_index::{Policy, limits, not_negative};
use crate::tokens::{SpanArgument, Tokens};
use crate::types::{Acquired, Committed, Drafted, Dropped, IndexStats, Match, Planned};

/// The index behind `KVPrefixCache`.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct CacheIndex(Mutex<core::PrefixIndex>);

/// (bytes, buffers, trimmable)
type Checkpoint = (u64, u32, bool);

/// A store's figures, as Python gives them.
struct Request<'a> {
    namespace: &'a str,
    layout: u64,
    bytes_per_token: u64,
    segment_buffers: u32,
    checkpoint: Option<Checkpoint>,
    label: u16,
    prompt: Option<usize>,
}

impl<'a> Request<'a> {
    fn store(&self, query: &core::Query<'a>) -> core::StoreRequest<'a> {
        core::StoreRequest {
            namespace: self.namespace,
            layout: core::LayoutId(self.layout),
            query: *query,
            bytes_per_token: self.bytes_per_token,
            segment_buffers: self.segment_buffers,
            checkpoint: self.checkpoint.map(|(nbytes, buffers, trimmable)| core::CheckpointSpec {
                nbytes,
                buffers,
                trimmable,
            }),
            label: self.label,
            prompt: self.prompt,
        }
    }
}

#[pymethods]
impl CacheIndex {
    #[new]
    #[pyo3(signature = (*, max_bytes, max_buffers, segment_tokens, max_checkpoints, policy))]
    fn new(
        max_bytes: Option<i64>,
        max_buffers: Option<i64>,
        segment_tokens: i64,
        max_checkpoints: i64,
        policy: Policy,
    ) -> PyResult<Self> {
        let Policy = policy;
        let limits = limits(max_bytes, max_buffers, segment_tokens, max_checkpoints)?;
        Ok(Self(Mutex::new(core::PrefixIndex::new(limits))))
    }

    /// What a fetch of at most `limit` tokens would find. Changes nothing.
    fn lookup(
        &self,
        tokens: &Tokens,
        namespace: &str,
        media: Vec<SpanArgument>,
        limit: usize,
    ) -> PyResult<Match> {
        let length = tokens.keys().len();
        let found = tokens.with_query(&mut *lock(&self.0)?, length, &media, false, |index, query| {
            index.match_prefix(namespace, query, limit, None)
        });
        found.map(Match::from)
    }

    /// Leases what a fetch of at most `limit` tokens copies.
    fn acquire(
        &self,
        py: Python<'_>,
        tokens: &Tokens,
        namespace: &str,
        media: Vec<SpanArgument>,
        limit: usize,
    ) -> PyResult<Acquired> {
        let length = tokens.keys().len();
        let (found, scope) =
            tokens.with_query(&mut *lock(&self.0)?, length, &media, false, |index, query| {
                index.acquire(namespace, query, limit)
            })?;
        Acquired::new(py, found, scope, None)
    }

    /// As `acquire`, and moves the exclusively held part out of the index.
    fn take(
        &self,
        py: Python<'_>,
        tokens: &Tokens,
        namespace: &str,
        media: Vec<SpanArgument>,
        limit: usize,
    ) -> PyResult<Acquired> {
        let length = tokens.keys().len();
        let (found, taken) =
            tokens.with_query(&mut *lock(&self.0)?, length, &media, false, |index, query| {
                index.take(namespace, query, limit)
            })?;
        Acquired::new(py, found, taken.scope, Some(taken.dropped))
    }

    /// Ends a lease; what it covered becomes the most recently used.
    fn release(&self, lease: u64, stamp: u64) -> PyResult<Dropped> {
        Ok(lock(&self.0)?.release(core::LeaseId(lease), stamp).into())
    }

    /// Plans to store the first `length` tokens. `checkpoint` is (bytes, buffers, trimmable); the answer
    /// begins after `prompt_length` tokens.
    #[pyo3(signature = (tokens, length, *, namespace, media, layout, bytes_per_token, segment_buffers, checkpoint, label, stamp, prompt_length = None))]
    #[allow(clippy::too_many_arguments)]
    fn plan(
        &self,
        py: Python<'_>,
        tokens: &Tokens,
        length: usize,
        namespace: &str,
        media: Vec<SpanArgument>,
        layout: u64,
        bytes_per_token: u64,
        segment_buffers: u32,
        checkpoint: Option<Checkpoint>,
        label: u16,
        stamp: u64,
        prompt_length: Option<usize>,
    ) -> PyResult<Planned> {
        let prompt = prompt_length;
        let request =
            Request { namespace, layout, bytes_per_token, segment_buffers, checkpoint, label, prompt };
        let (planned, evicted) =
            tokens.with_query(&mut *lock(&self.0)?, length, &media, true, |index, query| {
                index.plan(&request.store(query), stamp)
            })?;
        Planned::new(py, planned, evicted)
    }

    /// The first step of `plan` alone: finds the place and protects it.
    #[pyo3(signature = (tokens, length, *, namespace, media, layout, bytes_per_token, segment_buffers, checkpoint, label, stamp, prompt_length = None))]
    #[allow(clippy::too_many_arguments)]
    fn draft(
        &self,
        tokens: &Tokens,
        length: usize,
        namespace: &str,
        media: Vec<SpanArgument>,
        layout: u64,
        bytes_per_token: u64,
        segment_buffers: u32,
        checkpoint: Option<Checkpoint>,
        label: u16,
        stamp: u64,
        prompt_length: Option<usize>,
    ) -> PyResult<Drafted> {
        let prompt = prompt_length;
        let request =
            Request { namespace, layout, bytes_per_token, segment_buffers, checkpoint, label, prompt };
        let outcome = tokens.with_query(&mut *lock(&self.0)?, length, &media, true, |index, query| {
            index.draft(&request.store(query), stamp)
        })?;
        Ok(outcome.into())
    }

    /// Settles a draft's length. Returns the bytes and buffers that are over the limits then, and
    /// what went with the node that was given up.
    fn settle(&self, draft: u64, length: usize, anew: bool) -> PyResult<(u64, u64, Dropped)> {
        let settled = lock(&self.0)?.settle(core::PlanId(draft), length, anew);
        let (over, dropped) = settled.map_err(|error| to_python(&error))?;
        Ok((over.nbytes, over.buffers, dropped.into()))
    }

    /// Reserves what was settled, once it has room.
    fn promise(&self, py: Python<'_>, draft: u64) -> PyResult<Planned> {
        let plan = lock(&self.0)?.promise(core::PlanId(draft)).map_err(|error| to_python(&error))?;
        Planned::new(py, core::Planned::Ready(plan), core::Dropped::default())
    }

    /// Units that an eviction of as much would take; evicts nothing.
    #[pyo3(signature = (*, nbytes = 0, buffers = 0, tokens = 0))]
    fn count_units(&self, nbytes: u64, buffers: u64, tokens: u64) -> PyResult<u64> {
        let need = core::Need { nbytes, buffers, tokens, ..core::Need::default() };
        Ok(lock(&self.0)?.count_units(need))
    }

    /// Units last used at or before `stamp`.
    fn count_idle(&self, stamp: u64) -> PyResult<u64> {
        Ok(lock(&self.0)?.count_idle(stamp))
    }

    /// By how many bytes so much more would be over the limits; None where evicting all that no
    /// lease holds would not make that room.
    fn over(&self, nbytes: u64) -> PyResult<Option<u64>> {
        let index = lock(&self.0)?;
        Ok(index.holds(nbytes, 0).then(|| index.over(nbytes, 0).nbytes))
    }

    /// The index in lines of text, without bytes: equal on ranks to which the same was done.
    fn outline(&self) -> PyResult<Vec<String>> {
        Ok(lock(&self.0)?.outline())
    }

    fn commit(&self, py: Python<'_>, plan: u64, stamp: u64) -> PyResult<Committed> {
        let committed = lock(&self.0)?.commit(core::PlanId(plan), stamp);
        Committed::new(py, committed.map_err(|error| to_python(&error))?)
    }

    fn abort(&self, plan: u64) -> PyResult<Dropped> {
        let dropped = lock(&self.0)?.abort(core::PlanId(plan));
        Ok(dropped.map_err(|error| to_python(&error))?.into())
    }

    /// Evicts units in LRU order until all figures are reached.
    #[pyo3(signature = (*, nbytes = 0, buffers = 0, tokens = 0, units = 0, sequences = 0))]
    fn evict(&self, nbytes: i64, buffers: i64, tokens: i64, units: i64, sequences: i64) -> PyResult<Dropped> {
        let need = core::Need {
            nbytes: not_negative("nbytes", nbytes)?,
            buffers: not_negative("buffers", buffers)?,
            tokens: not_negative("tokens", tokens)?,
            units: not_negative("units", units)?,
            sequences: not_negative("sequences", sequences)?,
        };
        Ok(lock(&self.0)?.evict(need).into())
    }

    fn evict_idle(&self, stamp: u64) -> PyResult<Dropped> {
        Ok(lock(&self.0)?.evict_idle(stamp).into())
    }

    /// Room under the limits; None, and nothing evicted, where leases leave too little.
    fn make_room(&self, nbytes: u64, buffers: u64) -> PyResult<Option<Dropped>> {
        Ok(lock(&self.0)?.make_room(nbytes, buffers).map(Dropped::from))
    }

    /// The arrays of a segment on a lease's path were rewritten into `parts` parts. False: the segment is
    /// gone, or has fewer.
    fn compacted(&self, lease: u64, segment: u64, parts: u32) -> PyResult<bool> {
        Ok(lock(&self.0)?.compacted(core::LeaseId(lease), core::SegmentId(segment), parts))
    }

    /// Takes free room under the limits for arrays that are not held yet; False, and nothing taken, where
    /// there is too little. Evicts nothing.
    fn reserve_bytes(&self, nbytes: u64, buffers: u64) -> PyResult<bool> {
        Ok(lock(&self.0)?.reserve_bytes(nbytes, buffers))
    }

    /// Gives back what `reserve_bytes` took.
    fn unreserve_bytes(&self, nbytes: u64, buffers: u64) -> PyResult<()> {
        lock(&self.0)?.unreserve_bytes(nbytes, buffers);
        Ok(())
    }

    fn drop(&self, namespace: &str) -> PyResult<Dropped> {
        Ok(lock(&self.0)?.drop_namespace(namespace).into())
    }

    fn clear(&self) -> PyResult<Dropped> {
        Ok(lock(&self.0)?.clear().into())
    }

    /// Layouts that the namespace has trees of, oldest first.
    fn layouts(&self, namespace: &str) -> PyResult<Vec<u64>> {
        Ok(lock(&self.0)?.layouts(namespace).into_iter().map(|layout| layout.0).collect())
    }

    fn namespaces(&self) -> PyResult<Vec<String>> {
        Ok(lock(&self.0)?.namespaces().map(str::to_owned).collect())
    }

    /// (sequences, bytes) of each label.
    fn labels(&self) -> PyResult<Vec<(u64, u64)>> {
        Ok(lock(&self.0)?.labels().iter().map(|label| (label.sequences, label.nbytes)).collect())
    }

    #[pyo3(signature = (namespace = None))]
    fn stats(&self, namespace: Option<&str>) -> PyResult<IndexStats> {
        let index = lock(&self.0)?;
        Ok(match namespace {
            None => index.stats().into(),
            Some(namespace) => index.namespace_stats(namespace).into(),
        })
    }

    /// Bytes held. O(1).
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(lock(&self.0)?.nbytes())
    }

    /// Tokens held. O(1).
    #[getter]
    fn ntokens(&self) -> PyResult<u64> {
        Ok(lock(&self.0)?.ntokens())
    }

    /// Distinct ends of stores that are fully present. O(1).
    #[getter]
    fn sequences(&self) -> PyResult<u64> {
        Ok(lock(&self.0)?.sequences())
    }

    /// Units that an eviction can take now. O(1).
    #[getter]
    fn units(&self) -> PyResult<u64> {
        Ok(lock(&self.0)?.units())
    }

    /// Bytes that leases keep. O(1).
    #[getter]
    fn leased_bytes(&self) -> PyResult<u64> {
        Ok(lock(&self.0)?.leased_bytes())
    }

    /// Bytes promised to what is under way. O(1).
    #[getter]
    fn reserved_bytes(&self) -> PyResult<u64> {
        Ok(lock(&self.0)?.reserved_bytes())
    }

    /// Bytes that can be added without an eviction. O(1).
    #[getter]
    fn free_bytes(&self) -> PyResult<u64> {
        Ok(lock(&self.0)?.free_bytes())
    }

    fn validate(&self) -> PyResult<()> {
        lock(&self.0)?.validate().map_err(|found| broken(&found))
    }
}
