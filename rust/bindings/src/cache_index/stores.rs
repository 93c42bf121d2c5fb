//! Stores: draft, settle, promise, then commit or abort.

use kvcache_core as core;
use pyo3::prelude::*;

use crate::cache_index::CacheIndex;
use crate::error::{lock, to_python};
use crate::tickets::Plan;
use crate::tokens::Tokens;
use crate::types::dropped::Dropped;
use crate::types::store::{Drafted, Planned, Settled, StoreRequest};

#[pymethods]
impl CacheIndex {
    /// Plans to store the first `length` tokens, and makes room for them.
    #[pyo3(signature = (tokens, length, request, *, stamp))]
    fn plan(
        &self,
        py: Python<'_>,
        tokens: &Tokens,
        length: usize,
        request: &Bound<'_, StoreRequest>,
        stamp: u64,
    ) -> PyResult<Planned> {
        let request = request.get();
        let mut inner = lock(&self.inner)?;
        let (planned, evicted) =
            tokens.with_query(&mut inner.index, length, &request.media, true, |index, query| {
                index.plan(&request.store(query), stamp)
            })?;
        if let core::Planned::Already(joined) = &planned {
            inner.owe_joins(joined);
        }
        let evicted = inner.dropped(evicted);
        drop(inner);
        Planned::new(py, planned, evicted, &self.abandonments)
    }

    /// The first step of `plan`: finds the place and leases it.
    #[pyo3(signature = (tokens, length, request, *, stamp))]
    fn draft(
        &self,
        py: Python<'_>,
        tokens: &Tokens,
        length: usize,
        request: &Bound<'_, StoreRequest>,
        stamp: u64,
    ) -> PyResult<Drafted> {
        let request = request.get();
        let mut inner = lock(&self.inner)?;
        let outcome = tokens.with_query(&mut inner.index, length, &request.media, true, |index, query| {
            index.draft(&request.store(query), stamp)
        })?;
        if let core::Outcome::Already(joined) = &outcome {
            inner.owe_joins(joined);
        }
        drop(inner);
        Drafted::new(py, outcome, &self.abandonments)
    }

    /// Settles a draft's length; with `recopy`, by dropping the node in which the key diverges.
    fn settle(
        &self,
        py: Python<'_>,
        draft: &Bound<'_, Plan>,
        length: usize,
        recopy: bool,
    ) -> PyResult<Settled> {
        let mut inner = lock(&self.inner)?;
        let settled = inner.index.settle(core::PlanId(draft.get().id), length, recopy);
        let (over, dropped) = settled.map_err(|error| to_python(&error))?;
        let given_up = inner.dropped(dropped);
        drop(inner);
        Settled::new(py, over, given_up)
    }

    /// Reserves room for what was settled, and returns what to copy.
    fn promise(&self, py: Python<'_>, draft: &Bound<'_, Plan>) -> PyResult<Planned> {
        let promised = lock(&self.inner)?.index.promise(core::PlanId(draft.get().id));
        let plan = promised.map_err(|error| to_python(&error))?;
        // The plan keeps the draft's id but gets a ticket of its own.
        draft.get().end();
        Planned::new(py, core::Planned::Ready(plan), core::Dropped::default().into(), &self.abandonments)
    }

    /// Adds a plan's tokens to the tree. Its arrays must already be stored under the announced ids, since
    /// any later call may need them. Returns False, and owes the arrays, if the tree has changed since the
    /// plan.
    fn commit(&self, plan: &Bound<'_, Plan>, stamp: u64) -> PyResult<bool> {
        let mut inner = lock(&self.inner)?;
        let plan = plan.get();
        let committed = inner.index.commit(core::PlanId(plan.id), stamp);
        let committed = committed.map_err(|error| to_python(&error))?;
        plan.end();
        if committed.stale {
            inner.owe_plan(&plan.announced);
        }
        inner.owe_joins(&committed.joined);
        inner.owe(&committed.dropped);
        Ok(!committed.stale)
    }

    /// Abandons a draft or a plan. Returns the KV that only its lease kept. Does nothing if it has already
    /// ended or was cleared.
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
}
