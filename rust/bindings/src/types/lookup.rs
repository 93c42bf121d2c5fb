//! The results of lookups and fetches.

use kvcache_core as core;
use pyo3::prelude::*;

use crate::tickets::{Abandonments, Lease};
use crate::types::dropped::Dropped;

/// The longest usable prefix. Lengths are in tokens.
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
    fn from(prefix: core::Match) -> Self {
        Self {
            length: prefix.length,
            matched: prefix.matched,
            reason: match prefix.reason {
                core::Reason::Hit => "hit",
                core::Reason::NoEntry => "no_entry",
                core::Reason::NoCheckpoint => "no_checkpoint",
                core::Reason::Media => "media",
                core::Reason::TooShort => "too_short",
            },
            checkpoint_at: prefix.checkpoint_at,
            layout: prefix.layout.map(|layout| layout.0),
            nodes_visited: prefix.visited,
        }
    }
}

/// The part of a hit that one segment serves.
#[pyclass(frozen, get_all, module = "kvcache._core")]
#[derive(Clone)]
pub(crate) struct Piece {
    segment: u64,
    /// How many of its leading tokens to use.
    tokens: usize,
}

impl From<core::Piece> for Piece {
    fn from(piece: core::Piece) -> Self {
        Self { segment: piece.segment.0, tokens: piece.tokens }
    }
}

/// The checkpoint that a hit continues from.
#[pyclass(frozen, get_all, module = "kvcache._core")]
#[derive(Clone)]
pub(crate) struct Resumed {
    id: u64,
    /// Tokens before it. If that is more than the hit's length, it must be trimmed.
    position: usize,
}

/// A hit under a lease: what to copy, from the root down.
#[pyclass(frozen, get_all, module = "kvcache._core")]
pub(crate) struct Acquired {
    found: Py<Match>,
    lease: Option<Py<Lease>>,
    pieces: Vec<Piece>,
    checkpoint: Option<Resumed>,
    /// What `take` moved out of the index.
    taken: Option<Py<Dropped>>,
}

impl Acquired {
    pub(crate) fn new(
        py: Python<'_>,
        prefix: core::Match,
        scope: core::Scope,
        taken: Option<Dropped>,
        abandonments: &Abandonments,
    ) -> PyResult<Self> {
        let lease = scope.lease.map(|lease| Py::new(py, Lease::new(lease.0, abandonments)));
        Ok(Self {
            found: Py::new(py, Match::from(prefix))?,
            lease: lease.transpose()?,
            pieces: scope.pieces.into_iter().map(Piece::from).collect(),
            checkpoint: scope.checkpoint.map(|(id, position)| Resumed { id: id.0, position }),
            taken: taken.map(|taken| Py::new(py, taken)).transpose()?,
        })
    }
}
