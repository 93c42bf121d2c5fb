//! What calls return: plain frozen objects.

use kvcache_core as core;
use pyo3::prelude::*;

use crate::tickets::{Abandonments, Announced, Lease, Plan};

/// What left the index.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Dropped {
    segments: Vec<u64>,
    checkpoints: Vec<u64>,
    nbytes: u64,
    buffers: u64,
    tokens: u64,
    units: u64,
}

#[pymethods]
impl Dropped {
    fn __bool__(&self) -> bool {
        !self.segments.is_empty() || !self.checkpoints.is_empty()
    }
}

impl From<core::Dropped> for Dropped {
    fn from(dropped: core::Dropped) -> Self {
        Self {
            segments: dropped.segments.into_iter().map(|id| id.0).collect(),
            checkpoints: dropped.checkpoints.into_iter().map(|id| id.0).collect(),
            nbytes: dropped.amount.nbytes,
            buffers: dropped.amount.buffers,
            tokens: dropped.amount.tokens,
            units: dropped.units,
        }
    }
}

/// What an eviction of a bookkeeping index dropped.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Evicted {
    ids: Vec<u64>,
    tokens: u64,
    nbytes: u64,
}

impl From<core::Dropped> for Evicted {
    fn from(dropped: core::Dropped) -> Self {
        Self {
            ids: dropped.segments.into_iter().map(|id| id.0).collect(),
            tokens: dropped.amount.tokens,
            nbytes: dropped.amount.nbytes,
        }
    }
}

#[pymethods]
impl Evicted {
    fn __bool__(&self) -> bool {
        !self.ids.is_empty()
    }

    fn __repr__(&self) -> String {
        format!("Evicted({} ids, tokens={}, nbytes={})", self.ids.len(), self.tokens, self.nbytes)
    }
}

/// What a lookup found. Lengths are in tokens.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Match {
    length: usize,
    matched: usize,
    reason: &'static str,
    checkpoint_at: Option<usize>,
    layout: Option<u64>,
    nodes_visited: usize,
}

#[pymethods]
impl Match {
    fn __bool__(&self) -> bool {
        self.length > 0
    }

    fn __repr__(&self) -> String {
        format!("Match(length={}, matched={}, reason={:?})", self.length, self.matched, self.reason)
    }
}

impl From<core::Match> for Match {
    fn from(found: core::Match) -> Self {
        Self {
            length: found.length,
            matched: found.matched,
            reason: match found.reason {
                core::Reason::Hit => "hit",
                core::Reason::NoEntry => "no_entry",
                core::Reason::NoCheckpoint => "no_checkpoint",
                core::Reason::Media => "media",
                core::Reason::TooShort => "too_short",
            },
            checkpoint_at: found.checkpoint_at,
            layout: found.layout.map(|layout| layout.0),
            nodes_visited: found.visited,
        }
    }
}

/// A hit under a lease: what to copy, from the root down.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Acquired {
    found: Py<Match>,
    lease: Option<Py<Lease>>,
    /// (segment id, leading tokens used)
    pieces: Vec<(u64, usize)>,
    /// (checkpoint id, its position)
    checkpoint: Option<(u64, usize)>,
    /// What a take moved out of the index.
    taken: Option<Py<Dropped>>,
}

impl Acquired {
    pub(crate) fn new(
        py: Python<'_>,
        found: core::Match,
        scope: core::Scope,
        taken: Option<Dropped>,
        abandonments: &Abandonments,
    ) -> PyResult<Self> {
        let lease = scope.lease.map(|lease| Py::new(py, Lease::new(lease.0, abandonments)));
        Ok(Self {
            found: Py::new(py, Match::from(found))?,
            lease: lease.transpose()?,
            pieces: scope.pieces.into_iter().map(|piece| (piece.segment.0, piece.tokens)).collect(),
            checkpoint: scope.checkpoint.map(|(id, at)| (id.0, at)),
            taken: taken.map(|taken| Py::new(py, taken)).transpose()?,
        })
    }
}

/// The outcome of planning a store.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Planned {
    /// `ready`, `already`, `too_large` or `inside_media`
    outcome: &'static str,
    plan: Option<Py<Plan>>,
    length: usize,
    matched: usize,
    /// (segment id, start, end)
    segments: Vec<(u64, usize, usize)>,
    /// (old segment id, upper id, lower id, tokens of the upper half)
    split: Option<(u64, u64, u64, usize)>,
    checkpoint: Option<u64>,
    evicted: Py<Dropped>,
}

impl Planned {
    pub(crate) fn new(
        py: Python<'_>,
        planned: core::Planned,
        evicted: Dropped,
        abandonments: &Abandonments,
    ) -> PyResult<Self> {
        let evicted = Py::new(py, evicted)?;
        let outcome = match &planned {
            core::Planned::Ready(_) => "ready",
            core::Planned::Already => "already",
            core::Planned::TooLarge => "too_large",
            core::Planned::InsideMedia => "inside_media",
        };
        let core::Planned::Ready(plan) = planned else {
            return Ok(Self {
                outcome,
                plan: None,
                length: 0,
                matched: 0,
                segments: Vec::new(),
                split: None,
                checkpoint: None,
                evicted,
            });
        };
        let halves = plan.split.iter().flat_map(|split| [split.upper.0, split.lower.0]);
        let announced = Announced {
            segments: plan.segments.iter().map(|new| new.id.0).chain(halves).collect(),
            checkpoint: plan.checkpoint.map(|id| id.0),
        };
        let ticket = Plan::new(plan.id.0, announced, abandonments);
        Ok(Self {
            outcome,
            plan: Some(Py::new(py, ticket)?),
            length: plan.length,
            matched: plan.matched,
            segments: plan.segments.iter().map(|new| (new.id.0, new.start, new.end)).collect(),
            split: plan.split.map(|split| (split.old.0, split.upper.0, split.lower.0, split.at)),
            checkpoint: plan.checkpoint.map(|id| id.0),
            evicted,
        })
    }
}

/// The outcome of drafting a store.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Drafted {
    /// `open`, `already` or `inside_media`
    outcome: &'static str,
    draft: Option<Py<Plan>>,
    /// Tokens that are held already.
    matched: usize,
    /// Tokens that fit; 0 where none do.
    length: usize,
    /// Tokens that fit if the node that the key diverges in is given up.
    length_anew: usize,
}

impl Drafted {
    pub(crate) fn new(py: Python<'_>, outcome: core::Outcome, abandonments: &Abandonments) -> PyResult<Self> {
        let closed = |outcome| Self { outcome, draft: None, matched: 0, length: 0, length_anew: 0 };
        Ok(match outcome {
            core::Outcome::Already => closed("already"),
            core::Outcome::InsideMedia => closed("inside_media"),
            core::Outcome::Open(drafted) => Self {
                outcome: "open",
                draft: Some(Py::new(py, Plan::new(drafted.id.0, Announced::default(), abandonments))?),
                matched: drafted.matched,
                length: drafted.length,
                length_anew: drafted.length_anew,
            },
        })
    }
}

/// What an insert into a bookkeeping index did.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Inserted {
    length: usize,
    new_tokens: usize,
    evicted: Py<Evicted>,
}

#[pymethods]
impl Inserted {
    fn __repr__(&self) -> String {
        format!("Inserted(length={}, new_tokens={})", self.length, self.new_tokens)
    }
}

impl Inserted {
    pub(crate) fn new(py: Python<'_>, inserted: core::Inserted) -> PyResult<Self> {
        Ok(Self {
            length: inserted.length,
            new_tokens: inserted.new_tokens,
            evicted: Py::new(py, Evicted::from(inserted.evicted))?,
        })
    }
}

/// Figures as they stand now. `index_bytes` are the index's own bytes on the heap.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct IndexStats {
    nbytes: u64,
    ntokens: u64,
    buffers: u64,
    nodes: u64,
    segments: u64,
    checkpoints: u64,
    sequences: u64,
    units: u64,
    namespaces: u64,
    leased_bytes: u64,
    reserved_bytes: u64,
    index_bytes: u64,
}

#[pymethods]
impl IndexStats {
    fn __repr__(&self) -> String {
        format!(
            "IndexStats(nbytes={}, ntokens={}, nodes={}, segments={}, checkpoints={}, index_bytes={})",
            self.nbytes, self.ntokens, self.nodes, self.segments, self.checkpoints, self.index_bytes
        )
    }
}

impl From<core::Stats> for IndexStats {
    fn from(stats: core::Stats) -> Self {
        Self {
            units: stats.units,
            namespaces: stats.namespaces,
            leased_bytes: stats.leased_bytes,
            reserved_bytes: stats.reserved_bytes,
            index_bytes: stats.index_bytes,
            ..Self::from(stats.trees)
        }
    }
}

impl From<core::TreeStats> for IndexStats {
    /// One namespace's share: what is kept for all namespaces together is 0.
    fn from(trees: core::TreeStats) -> Self {
        Self {
            nbytes: trees.nbytes,
            ntokens: trees.ntokens,
            buffers: trees.buffers,
            nodes: trees.nodes,
            segments: trees.segments,
            checkpoints: trees.checkpoints,
            sequences: trees.sequences,
            units: 0,
            namespaces: 1,
            leased_bytes: 0,
            reserved_bytes: 0,
            index_bytes: 0,
        }
    }
}
