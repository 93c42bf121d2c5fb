//! Lookups, and the leases that protect what a fetch copies.

use kvcache_core as core;
use pyo3::prelude::*;

use crate::cache_index::CacheIndex;
use crate::error::lock;
use crate::tickets::Lease;
use crate::tokens::{SpanArgument, Tokens};
use crate::types::lookup::{Acquired, Match};

#[pymethods]
impl CacheIndex {
    /// Finds the longest usable prefix of at most `limit` tokens. Changes nothing.
    fn lookup(
        &self,
        tokens: &Tokens,
        namespace: &str,
        media: Vec<SpanArgument>,
        limit: usize,
    ) -> PyResult<Match> {
        let length = tokens.keys().len();
        let prefix =
            tokens.with_query(&mut lock(&self.inner)?.index, length, &media, false, |index, query| {
                index.match_prefix(namespace, query, limit, None)
            });
        prefix.map(Match::from)
    }

    /// Finds the longest usable prefix of at most `limit` tokens, and leases it so that a fetch can copy it.
    fn acquire(
        &self,
        py: Python<'_>,
        tokens: &Tokens,
        namespace: &str,
        media: Vec<SpanArgument>,
        limit: usize,
    ) -> PyResult<Acquired> {
        let length = tokens.keys().len();
        let (prefix, scope) =
            tokens.with_query(&mut lock(&self.inner)?.index, length, &media, false, |index, query| {
                index.acquire(namespace, query, limit)
            })?;
        Acquired::new(py, prefix, scope, None, &self.abandonments)
    }

    /// Like `acquire`, and moves the part that nothing else uses out of the index.
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
        let (prefix, taken) =
            tokens.with_query(&mut inner.index, length, &media, false, |index, query| {
                index.take(namespace, query, limit)
            })?;
        let dropped = inner.dropped(taken.dropped);
        drop(inner);
        Acquired::new(py, prefix, taken.scope, Some(dropped), &self.abandonments)
    }

    /// How many tokens `take` would move out of the index. Changes nothing.
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

    /// Ends a lease. What it covered becomes the most recently used. A second call does nothing.
    fn release(&self, lease: &Bound<'_, Lease>, stamp: u64) -> PyResult<()> {
        let mut inner = lock(&self.inner)?;
        if lease.get().end() {
            let dropped = inner.index.release(core::LeaseId(lease.get().id), stamp);
            inner.owe(&dropped);
        }
        Ok(())
    }

    /// Records that the caller has rewritten a segment on a lease's path into `parts` parts, and owes the
    /// swap. Returns False if the segment is gone or already has fewer parts.
    fn compacted(&self, lease: &Bound<'_, Lease>, segment: u64, parts: u32) -> PyResult<bool> {
        let mut inner = lock(&self.inner)?;
        let lease = core::LeaseId(lease.get().id);
        let accepted = inner.index.compacted(lease, core::SegmentId(segment), parts);
        if accepted {
            inner.owed.rewritten.push(segment);
        }
        Ok(accepted)
    }
}
