//! Stores: drafted, settled, promised, committed or given up.

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
    /// Plans to store the first `length` tokens.
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

    /// The first step of `plan` alone: finds the place and protects it.
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

    /// Settles a draft's length; with `recopy`, by giving up the node that the key diverges in.
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

    /// Reserves what was settled, once it has room.
    fn promise(&self, py: Python<'_>, draft: &Bound<'_, Plan>) -> PyResult<Planned> {
        let promised = lock(&self.inner)?.index.promise(core::PlanId(draft.get().id));
        let plan = promised.map_err(|error| to_python(&error))?;
        // The plan goes on under the draft's id, in a ticket of its own.
        draft.get().end();
        Planned::new(py, core::Planned::Ready(plan), core::Dropped::default().into(), &self.abandonments)
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
        inner.owe_joins(&committed.joined);
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
}
