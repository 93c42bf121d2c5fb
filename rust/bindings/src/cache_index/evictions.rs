//! Eviction, dry runs of it, and room under the limits.

use kvcache_core as core;
use pyo3::prelude::*;

use crate::arguments::not_negative;
use crate::cache_index::CacheIndex;
use crate::error::lock;
use crate::tickets::Room;
use crate::types::dropped::Dropped;

#[pymethods]
impl CacheIndex {
    /// The number of units that `evict` would take for the same arguments. Evicts nothing.
    #[pyo3(signature = (*, nbytes = 0, buffers = 0, tokens = 0, sequences = 0, entries = 0))]
    fn count_units(
        &self,
        nbytes: u64,
        buffers: u64,
        tokens: u64,
        sequences: u64,
        entries: u64,
    ) -> PyResult<u64> {
        let need = core::Need { nbytes, buffers, tokens, units: 0, sequences, entries };
        Ok(lock(&self.inner)?.index.count_units(need))
    }

    /// The number of units that `evict_idle` would take. Evicts nothing.
    fn count_idle(&self, stamp: u64) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.count_idle(stamp))
    }

    /// How many bytes over the limit the index would be with `nbytes` more. None if even evicting
    /// everything that is not leased would not make room.
    fn over(&self, nbytes: u64) -> PyResult<Option<u64>> {
        let index = &lock(&self.inner)?.index;
        Ok(index.holds(nbytes, 0).then(|| index.over(nbytes, 0).nbytes))
    }

    /// Evicts units in eviction order until every argument is met. `sequences` counts nested ones
    /// separately, `entries` only those that no other one covers.
    #[pyo3(signature = (*, nbytes = 0, buffers = 0, tokens = 0, units = 0, sequences = 0, entries = 0))]
    fn evict(
        &self,
        nbytes: i64,
        buffers: i64,
        tokens: i64,
        units: i64,
        sequences: i64,
        entries: i64,
    ) -> PyResult<Dropped> {
        let need = core::Need {
            nbytes: not_negative("nbytes", nbytes)?,
            buffers: not_negative("buffers", buffers)?,
            tokens: not_negative("tokens", tokens)?,
            units: not_negative("units", units)?,
            sequences: not_negative("sequences", sequences)?,
            entries: not_negative("entries", entries)?,
        };
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.evict(need);
        Ok(inner.dropped(dropped))
    }

    /// Evicts units in eviction order for as long as the next one was last used at or before `stamp`.
    fn evict_idle(&self, stamp: u64) -> PyResult<Dropped> {
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.evict_idle(stamp);
        Ok(inner.dropped(dropped))
    }

    /// Evicts until `nbytes` and `buffers` fit under the limits. Returns None and evicts nothing if
    /// leases and reservations leave too little.
    fn make_room(&self, nbytes: u64, buffers: u64) -> PyResult<Option<Dropped>> {
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.make_room(nbytes, buffers);
        Ok(dropped.map(|dropped| inner.dropped(dropped)))
    }

    /// Reserves free room under the limits for arrays that the index does not hold yet. Returns None if
    /// that much is not free; never evicts.
    fn reserve_bytes(&self, nbytes: u64, buffers: u64) -> PyResult<Option<Room>> {
        let reserved = lock(&self.inner)?.index.reserve_bytes(nbytes, buffers);
        Ok(reserved.then(|| Room::new(nbytes, buffers, &self.abandonments)))
    }

    /// Releases room taken with `reserve_bytes`. A second call does nothing.
    fn unreserve_bytes(&self, room: &Bound<'_, Room>) -> PyResult<()> {
        let room = room.get();
        let mut inner = lock(&self.inner)?;
        if room.end() {
            inner.index.unreserve_bytes(room.nbytes, room.buffers);
        }
        Ok(())
    }

    /// Drops a namespace, leased or not.
    fn drop(&self, namespace: &str) -> PyResult<Dropped> {
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.drop_namespace(namespace);
        Ok(inner.dropped(dropped))
    }

    /// Drops everything, leased or not.
    fn clear(&self) -> PyResult<Dropped> {
        let mut inner = lock(&self.inner)?;
        let dropped = inner.index.clear();
        Ok(inner.dropped(dropped))
    }
}
