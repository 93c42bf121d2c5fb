//! Evictions, dry runs of them, and room under the limits.

use kvcache_core as core;
use pyo3::prelude::*;

use crate::arguments::not_negative;
use crate::cache_index::CacheIndex;
use crate::error::lock;
use crate::tickets::Room;
use crate::types::dropped::Dropped;

#[pymethods]
impl CacheIndex {
    /// Units that `evict` would take for the same figures; evicts nothing.
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

    /// Units last used at or before `stamp`.
    fn count_idle(&self, stamp: u64) -> PyResult<u64> {
        Ok(lock(&self.inner)?.index.count_idle(stamp))
    }

    /// By how many bytes `nbytes` more would be over the limits; None where evicting all that no
    /// lease holds would not make that room.
    fn over(&self, nbytes: u64) -> PyResult<Option<u64>> {
        let index = &lock(&self.inner)?.index;
        Ok(index.holds(nbytes, 0).then(|| index.over(nbytes, 0).nbytes))
    }

    /// Evicts units in eviction order until all figures are reached. `sequences` counts nested ones each,
    /// `entries` those that no other one covers.
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

    /// Takes free room under the limits for arrays that are not held yet; None, and nothing taken, where
    /// there is too little. Evicts nothing.
    fn reserve_bytes(&self, nbytes: u64, buffers: u64) -> PyResult<Option<Room>> {
        let reserved = lock(&self.inner)?.index.reserve_bytes(nbytes, buffers);
        Ok(reserved.then(|| Room::new(nbytes, buffers, &self.abandonments)))
    }

    /// Gives back what `reserve_bytes` took. A second time does nothing.
    fn unreserve_bytes(&self, room: &Bound<'_, Room>) -> PyResult<()> {
        let room = room.get();
        let mut inner = lock(&self.inner)?;
        if room.end() {
            inner.index.unreserve_bytes(room.nbytes, room.buffers);
        }
        Ok(())
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
}
