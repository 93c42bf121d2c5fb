//! `CacheIndex`: the two-step protocol of a cache that keeps arrays under the index's ids.

use std::sync::Mutex;

use kvcache_core as core;
use pyo3::prelude::*;

use crate::error::{broken, lock, to_python};
use crate::prefix_index::{Policy, limits, not_negative};
use crate::tickets::{Abandoned, Abandonments, Announced, Lease, Plan};
use crate::tokens::{SpanArgument, Tokens};
use crate::types::{Acquired, Drafted, Dropped, IndexStats, Match, Planned};

/// The index behind `KVPrefixCache`.
///
/// What leaves the index is owed: the caller drops the arrays under these ids and then says so with
/// `settled`. A caller that is interrupted in between finds the ids still owed.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct CacheIndex {
    inner: Mutex<Inner>,
    abandonments: Abandonments,
}

#[derive(Default)]
struct Inner {
    index: core::PrefixIndex,
    owed: Owed,
}

/// Ids of arrays that the index no longer knows.
#[derive(Default)]
struct Owed {
    segments: Vec<u64>,
    checkpoints: Vec<u64>,
}

impl Inner {
    /// Notes what left the index.
    fn owe(&mut self, dropped: &core::Dropped) {
        self.owed.segments.extend(dropped.segments.iter().map(|id| id.0));
        self.owed.checkpoints.extend(dropped.checkpoints.iter().map(|id| id.0));
    }

    fn dropped(&mut self, dropped: core::Dropped) -> Dropped {
        self.owe(&dropped);
        dropped.into()
    }

    /// Notes that a plan's arrays, if they exist, belong to nothing.
    fn owe_plan(&mut self, announced: &Announced) {
        self.owed.segments.extend(&announced.segments);
        self.owed.checkpoints.extend(announced.checkpoint);
    }
}

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
        let limits = limits(max_bytes, max_buffers, segment_tokens, max_checkpoints, policy)?;
        let inner = Inner { index: core::PrefixIndex::new(limits), owed: Owed::default() };
        Ok(Self { inner: Mutex::new(inner), abandonments: Abandonments::default() })
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
        let found =
            tokens.with_query(&mut lock(&self.inner)?.index, length, &media, false, |index, query| {
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
            tokens.with_query(&mut lock(&self.inner)?.index, length, &media, false, |index, query| {
                index.acquire(namespace, query, limit)
            })?;
        Acquired::new(py, found, scope, None, &self.abandonments)
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
        let mut inner = lock(&self.inner)?;
        let (found, taken) = tokens.with_query(&mut inner.index, length, &media, false, |index, query| {
            index.take(namespace, query, limit)
        })?;
        let dropped = inner.dropped(taken.dropped);
        drop(inner);
        Acquired::new(py, found, taken.scope, Some(dropped), &self.abandonments)
    }

    /// How many tokens `take` would move out of the index now.
    fn takeable(
        &self,
        tokens: &Tokens,
        namespace: &str,
        media: Vec<SpanArgument>,
        limit: usize,
    ) -> PyResult<usize> {
        let length = tokens.keys().len();
        tokens.with_query(&mut lock(&self.inner)?.index, length, &media, false, |index, query| {
            index.takeable(namespace, query, limit)
        })
    }

    /// Ends a lease; what it covered becomes the most recently used. A second time does nothing.
    fn release(&self, lease: &Bound<'_, Lease>, stamp: u64) -> PyResult<()> {
        let mut inner = lock(&self.inner)?;
        if lease.get().end() {
            let dropped = inner.index.release(core::LeaseId(lease.get().id), stamp);
            inner.owe(&dropped);
        }
        Ok(())
    }

    /// Whether some lease or plan was collected before it was ended. One load.
    #[getter]
    fn abandoned(&self) -> bool {
        self.abandonments.any()
    }

    /// Ends the leases and plans that were collected before they were ended.
    fn end_abandoned(&self) -> PyResult<()> {
        let mut inner = lock(&self.inner)?;
        for ticket in self.abandonments.take() {
            let dropped = match ticket {
                Abandoned::Lease(id) => inner.index.release(core::LeaseId(id), 0),
                Abandoned::Plan(id, announced) => {
                    inner.owe_plan(&announced);
                    // Unknown where the index was cleared since.
                    inner.index.abort(core::PlanId(id)).unwrap_or_default()
                }
            };
            inner.owe(&dropped);
        }
        Ok(())
    }

    /// (segments, checkpoints) that left the index since the last `settled`.
    #[getter]
    fn owed(&self) -> PyResult<(Vec<u64>, Vec<u64>)> {
        let inner = lock(&self.inner)?;
        Ok((inner.owed.segments.clone(), inner.owed.checkpoints.clone()))
    }

    /// Whether anything is owed.
    #[getter]
    fn owes(&self) -> PyResult<bool> {
        let inner = lock(&self.inner)?;
        Ok(!inner.owed.segments.is_empty() || !inner.owed.checkpoints.is_empty())
    }

    /// The arrays under all owed ids are gone.
    fn settled(&self) -> PyResult<()> {
        lock(&self.inner)?.owed = Owed::default();
        Ok(())
    }

    /// Plans to store the first `length` tokens. `checkpoint` is (bytes, buffers, trimmable).
    #[pyo3(signature = (tokens, length, *, namespace, media, layout, bytes_per_token, segment_buffers, checkpoint, label, stamp))]
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
    ) -> PyResult<Planned> {
        let request = Request { namespace, layout, bytes_per_token, segment_buffers, checkpoint, label };
        let mut inner = lock(&self.inner)?;
        let (planned, evicted) =
            tokens.with_query(&mut inner.index, length, &media, true, |index, query| {
                index.plan(&request.store(query), stamp)
            })?;
        let evicted = inner.dropped(evicted);
        drop(inner);
        Planned::new(py, planned, evicted, &self.abandonments)
    }

    /// The first step of `plan` alone: finds the place and protects it.
    #[pyo3(signature = (tokens, length, *, namespace, media, layout, bytes_per_token, segment_buffers, checkpoint, label, stamp))]
    #[allow(clippy::too_many_arguments)]
    fn draft(
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
    ) -> PyResult<Drafted> {
        let request = Request { namespace, layout, bytes_per_token, segment_buffers, checkpoint, label };
        let outcome =
            tokens.with_query(&mut lock(&self.inner)?.index, length, &media, true, |index, query| {
                index.draft(&request.store(query), stamp)
            })?;
        Drafted::new(py, outcome, &self.abandonments)
    }

    /// Settles a draft's length. Returns the bytes and buffers that are over the limits then, and
    /// what went with the node that was given up.
    fn settle(&self, draft: &Bound<'_, Plan>, length: usize, anew: bool) -> PyResult<(u64, u64, Dropped)> {
        let mut inner = lock(&self.inner)?;
        let settled = inner.index.settle(core::PlanId(draft.get().id), length, anew);
        let (over, dropped) = settled.map_err(|error| to_python(&error))?;
        Ok((over.nbytes, over.buffers, inner.dropped(dropped)))
    }

    /// Reserves what was settled, once it has room.
    fn promise(&self, py: Python<'_>, draft: &Bound<'_, Plan>) -> PyResult<Planned> {
        let promised = lock(&self.inner)?.index.promise(core::PlanId(draft.get().id));
        let plan = promised.map_err(|error| to_python(&error))?;
        // The plan goes on under the draft's id, in a ticket of its own.
        draft.get().end();
        Planned::new(py, core::Planned::Ready(plan), core::Dropped::default().into(), &self.abandonments)
    }

    /// Units that an eviction of as much would take; evicts nothing.
    #[pyo3(signature = (*, nbytes = 0, buffers = 0, tokens = 0))]
    fn count_units(&self, nbytes: u64, buffers: u64, tokens: u64) -> PyResult<u64> {
        let need = core::Need { nbytes, buffers, tokens, ..core::Need::default() };
        Ok(lock(&self.inner)?.index.count_units(need))
    }

    /// Units last used at or before `stamp`.
    fn count_idle(&self, stamp: u64) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.count_idle(stamp))
    }

    /// By how many bytes so much more would be over the limits; None where evicting all that no
    /// lease holds would not make that room.
    fn over(&self, nbytes: u64) -> PyResult<Option<u64>> {
        let index = &lock(&self.inner)?.index;
        Ok(index.holds(nbytes, 0).then(|| index.over(nbytes, 0).nbytes))
    }

    /// The index in lines of text, without bytes: equal on ranks to which the same was done.
    fn outline(&self) -> PyResult<Vec<String>> {
        Ok(lock(&self.inner)?.index.outline())
    }

    /// Makes a plan part of the tree. Its arrays must be in place under the announced ids: from here on
    /// any call may ask for them. False, and the arrays owed, where the tree changed in between.
    fn commit(&self, plan: &Bound<'_, Plan>, stamp: u64) -> PyResult<bool> {
        let mut inner = lock(&self.inner)?;
        let plan = plan.get();
        let committed = inner.index.commit(core::PlanId(plan.id), stamp);
        let committed = committed.map_err(|error| to_python(&error))?;
        plan.end();
        if committed.stale {
            inner.owe_plan(&plan.announced);
        }
        inner.owe(&committed.dropped);
        Ok(!committed.stale)
    }

    /// Gives a draft or a plan up. One that has ended already, or was cleared away, is passed over.
    /// What is dropped is KV that nothing but its lease kept.
    fn abort(&self, plan: &Bound<'_, Plan>) -> PyResult<Dropped> {
        let mut inner = lock(&self.inner)?;
        let plan = plan.get();
        if !plan.end() {
            return Ok(core::Dropped::default().into());
        }
        inner.owe_plan(&plan.announced);
        let dropped = inner.index.abort(core::PlanId(plan.id)).unwrap_or_default();
        Ok(inner.dropped(dropped))
    }

    /// Evicts the shortest run of the order of eviction that reaches all figures.
    #[pyo3(signature = (*, nbytes = 0, buffers = 0, tokens = 0, units = 0, sequences = 0))]
    fn evict(&self, nbytes: i64, buffers: i64, tokens: i64, units: i64, sequences: i64) -> PyResult<Dropped> {
        let need = core::Need {
            nbytes: not_negative("nbytes", nbytes)?,
            buffers: not_negative("buffers", buffers)?,
            tokens: not_negative("tokens", tokens)?,
            units: not_negative("units", units)?,
            sequences: not_negative("sequences", sequences)?,
        };
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.evict(need);
        Ok(inner.dropped(dropped))
    }

    fn evict_idle(&self, stamp: u64) -> PyResult<Dropped> {
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.evict_idle(stamp);
        Ok(inner.dropped(dropped))
    }

    /// Room under the limits; None, and nothing evicted, where leases leave too little.
    fn make_room(&self, nbytes: u64, buffers: u64) -> PyResult<Option<Dropped>> {
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.make_room(nbytes, buffers);
        Ok(dropped.map(|dropped| inner.dropped(dropped)))
    }

    fn drop(&self, namespace: &str) -> PyResult<Dropped> {
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.drop_namespace(namespace);
        Ok(inner.dropped(dropped))
    }

    fn clear(&self) -> PyResult<Dropped> {
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.clear();
        Ok(inner.dropped(dropped))
    }

    /// Layouts that the namespace has trees of, oldest first.
    fn layouts(&self, namespace: &str) -> PyResult<Vec<u64>> {
        Ok(lock(&self.inner)?.index.layouts(namespace).into_iter().map(|layout| layout.0).collect())
    }

    fn namespaces(&self) -> PyResult<Vec<String>> {
        Ok(lock(&self.inner)?.index.namespaces().map(str::to_owned).collect())
    }

    /// (sequences, bytes) of each label.
    fn labels(&self) -> PyResult<Vec<(u64, u64)>> {
        Ok(lock(&self.inner)?.index.labels().iter().map(|label| (label.sequences, label.nbytes)).collect())
    }

    #[pyo3(signature = (namespace = None))]
    fn stats(&self, namespace: Option<&str>) -> PyResult<IndexStats> {
        let index = &lock(&self.inner)?.index;
        Ok(match namespace {
            None => index.stats().into(),
            Some(namespace) => index.namespace_stats(namespace).into(),
        })
    }

    /// Numbers of the layouts that a tree, a draft or a plan refers to.
    fn live_layouts(&self) -> PyResult<Vec<u64>> {
        Ok(lock(&self.inner)?.index.live_layouts().into_iter().map(|layout| layout.0).collect())
    }

    /// Bytes that leases keep. O(1).
    #[getter]
    fn leased_bytes(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.leased_bytes())
    }

    /// Units that could be evicted now. O(1).
    #[getter]
    fn units(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.units())
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

    /// Distinct ends of stores that are fully present. O(1).
    #[getter]
    fn sequences(&self) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.sequences())
    }

    fn validate(&self) -> PyResult<()> {
        lock(&self.inner)?.index.validate().map_err(|found| broken(&found))
    }
}
