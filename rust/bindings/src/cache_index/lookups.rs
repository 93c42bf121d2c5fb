//! Lookups, and the leases under which a fetch copies.

use kvcache_core as core;
use pyo3::prelude::*;

use crate::cache_index::CacheIndex;
use crate::error::lock;
use crate::tickets::Lease;
use crate::tokens::{SpanArgument, Tokens};
use crate::types::lookup::{Acquired, Match};

#[pymethods]
impl CacheIndex {
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

    /// The arrays of a segment on a lease's path were rewritten into `parts` parts, which are owed from
    /// here on. False: the segment is gone, or has fewer.
    fn compacted(&self, lease: &Bound<'_, Lease>, segment: u64, parts: u32) -> PyResult<bool> {
        let mut inner = lock(&self.inner)?;
        let lease = core::LeaseId(lease.get().id);
        let done = inner.index.compacted(lease, core::SegmentId(segment), parts);
        if done {
            inner.owed.rewritten.push(segment);
        }
        Ok(done)
    }
}
