//! `CacheIndex`: the two-step protocol of a cache that keeps arrays under the index's ids.

mod evictions;
mod lookups;
mod stats;
mod stores;

use std::sync::Mutex;

use kvcache_core as core;
use pyo3::prelude::*;

use crate::arguments::{Policy, limits};
use crate::error::{invariant, lock};
use crate::tickets::{Abandoned, Abandonments, Announced};
use crate::types::dropped::{Dropped, Joined, Owed};

/// The index of a `KVPrefixCache`.
///
/// Ids that leave the index are owed: the caller drops the arrays under them and then calls `settled`. If
/// it is interrupted in between, the ids are still owed.
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

impl Inner {
    /// Records what left the index.
    fn owe(&mut self, dropped: &core::Dropped) {
        self.owed.segments.extend(dropped.segments.iter().map(|id| id.0));
        self.owed.checkpoints.extend(dropped.checkpoints.iter().map(|id| id.0));
    }

    fn owe_joins(&mut self, joins: &[core::Joined]) {
        self.owed.joins.extend(joins.iter().map(Joined::from));
    }

    fn dropped(&mut self, dropped: core::Dropped) -> Dropped {
        self.owe(&dropped);
        dropped.into()
    }

    /// Records the arrays of a plan that failed, which may or may not exist.
    fn owe_plan(&mut self, announced: &Announced) {
        self.owed.segments.extend(&announced.segments);
        self.owed.checkpoints.extend(announced.checkpoint);
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

    /// Whether any lease, plan or room was collected before it ended. One atomic load.
    #[getter]
    fn abandoned(&self) -> bool {
        self.abandonments.any()
    }

    /// Ends the leases, plans and rooms that were collected before they ended.
    fn end_abandoned(&self) -> PyResult<()> {
        let mut inner = lock(&self.inner)?;
        for ticket in self.abandonments.take() {
            let dropped = match ticket {
                Abandoned::Room(nbytes, buffers) => {
                    inner.index.unreserve_bytes(nbytes, buffers);
                    continue;
                }
                Abandoned::Lease(id) => inner.index.release(core::LeaseId(id), 0),
                Abandoned::Plan(id, announced) => {
                    inner.owe_plan(&announced);
                    // The plan is unknown if the index has been cleared since.
                    inner.index.abort(core::PlanId(id)).unwrap_or_default()
                }
            };
            inner.owe(&dropped);
        }
        Ok(())
    }

    /// Everything to do to the arrays since the last `settled`.
    #[getter]
    fn owed(&self) -> PyResult<Owed> {
        Ok(lock(&self.inner)?.owed.clone())
    }

    /// Whether anything is owed.
    #[getter]
    fn owes(&self) -> PyResult<bool> {
        Ok(!lock(&self.inner)?.owed.is_empty())
    }

    /// Marks everything owed as done.
    fn settled(&self) -> PyResult<()> {
        lock(&self.inner)?.owed = Owed::default();
        Ok(())
    }

    /// Recomputes every counter and link. Raises `InternalError` that names the first broken invariant.
    /// O(everything).
    fn validate(&self) -> PyResult<()> {
        lock(&self.inner)?.index.validate().map_err(|broken| invariant(&broken))
    }
}
