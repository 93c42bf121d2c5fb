//! `PrefixIndex`: the index by itself, bookkeeping only.

use std::sync::Mutex;

use kvcache_core as core;
use pyo3::Borrowed;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::{ConfigError, broken, lock};
use crate::tokens;
use crate::types::{Evicted, IndexStats, Inserted, Match};

/// A native prefix tree over token ids with LRU eviction and a byte ledger; bookkeeping only.
///
/// For schedulers, routers and simulation: it holds no arrays and imports no MLX. Safe to share between
/// threads. Raises `ConfigError` for a limit or size that is negative or beyond 63 bits.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct PrefixIndex(Mutex<core::PrefixIndex>);

pub(crate) fn limits(
    max_bytes: Option<i64>,
    max_buffers: Option<i64>,
    segment_tokens: i64,
    max_checkpoints: i64,
) -> PyResult<core::Limits> {
    let positive = |name: &str, value: i64| {
        let usable = usize::try_from(value).ok().filter(|value| *value > 0);
        usable.ok_or_else(|| ConfigError::new_err(format!("{name} must be at least 1, found {value}")))
    };
    let limit = |name: &str, value: Option<i64>, unlimited: u64| match value {
        None => Ok(unlimited),
        Some(value) => u64::try_from(value)
            .map_err(|_| ConfigError::new_err(format!("{name} must not be negative, found {value}"))),
    };
    let default = core::Limits::default();
    Ok(core::Limits {
        max_bytes: limit("max_bytes", max_bytes, default.max_bytes)?,
        max_buffers: limit("max_buffers", max_buffers, default.max_buffers)?,
        segment_tokens: positive("segment_tokens", segment_tokens)?,
        max_checkpoints: positive("max_checkpoints", max_checkpoints)?,
    })
}

/// A size as Python gives it. What does not fit 64 bits is out of every range.
pub(crate) struct Size(i64);

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<i64>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Err(ConfigError::new_err(format!("sizes must fit 63 bits, found {}", tokens::shown(&object))))
            }
            value => value.map(Self),
        }
    }
}

/// The names of the eviction policies.
pub(crate) const POLICIES: [&str; 1] = ["lru"];

/// A namespace. One that has no bytes (a lone surrogate) is refused by a sentence.
#[derive(Default)]
pub(crate) struct Namespace(String);

impl<'a, 'py> FromPyObject<'a, 'py> for Namespace {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let Ok(text) = object.cast::<PyString>() else {
            let found = tokens::type_name(&object);
            return Err(PyTypeError::new_err(format!("namespace must be a str, found {found}")));
        };
        text.to_cow().map(|text| Self(text.into_owned())).or_else(|_| {
            let shown = object.repr()?;
            Err(ConfigError::new_err(format!(
                "namespace must be a text without lone surrogates, found {}",
                shown.to_string_lossy()
            )))
        })
    }
}

/// A policy's name, checked. There is only one, so nothing is kept of it.
pub(crate) struct Policy;

impl<'a, 'py> FromPyObject<'a, 'py> for Policy {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let Ok(name) = object.cast::<PyString>() else {
            let found = tokens::type_name(&object);
            return Err(PyTypeError::new_err(format!("policy must be a str, found {found}")));
        };
        let name = name.to_string_lossy();
        if POLICIES.contains(&&*name) {
            return Ok(Self);
        }
        let known = POLICIES.join(", ");
        Err(ConfigError::new_err(format!("policy must be one of {known}, found {name:?}")))
    }
}

pub(crate) fn not_negative(name: &str, value: i64) -> PyResult<u64> {
    u64::try_from(value)
        .map_err(|_| ConfigError::new_err(format!("{name} must not be negative, found {value}")))
}

#[pymethods]
impl PrefixIndex {
    #[new]
    #[pyo3(
        signature = (*, max_bytes = None, max_buffers = None, segment_tokens = Size(1024), policy = Policy),
        text_signature = "(*, max_bytes=None, max_buffers=None, segment_tokens=1024, policy='lru')"
    )]
    fn new(
        max_bytes: Option<Size>,
        max_buffers: Option<Size>,
        segment_tokens: Size,
        policy: Policy,
    ) -> PyResult<Self> {
        let Policy = policy;
        let (max_bytes, max_buffers) = (max_bytes.map(|size| size.0), max_buffers.map(|size| size.0));
        let limits = limits(max_bytes, max_buffers, segment_tokens.0, 1)?;
        Ok(Self(Mutex::new(core::PrefixIndex::new(limits))))
    }

    /// Finds the longest stored prefix of `tokens`: `length` tokens, all of them where all are stored.
    ///
    /// With `touch` it becomes the most recently used; otherwise nothing changes. O(len(tokens)); the
    /// number of stored prompts plays no part. Raises `TokenError` for an id outside 0..2³¹-1 anywhere
    /// in `tokens`, `TypeError` for tokens of another type.
    #[pyo3(
        signature = (tokens, *, namespace = Namespace::default(), touch = true),
        text_signature = "($self, tokens, *, namespace='', touch=True)"
    )]
    fn match_prefix(&self, tokens: &Bound<'_, PyAny>, namespace: Namespace, touch: bool) -> PyResult<Match> {
        let tokens = tokens::read(tokens)?;
        let mut index = lock(&self.0)?;
        let length = tokens.keys().len();
        let found = tokens.with_query(&mut index, length, &[], false, |index, query| {
            index.match_prefix(&namespace.0, query, length, touch.then_some(0))
        });
        found.map(Match::from)
    }

    /// Plans, evicts and commits in one step, bookkeeping only: each token counts `bytes_per_token`.
    ///
    /// The longest prefix that fits the limits is kept: `length` tokens, of which `new_tokens` were not
    /// held before; `evicted` made room for them. O(len(tokens)). Raises as `match_prefix`.
    #[pyo3(
        signature = (tokens, *, namespace = Namespace::default(), bytes_per_token = Size(1)),
        text_signature = "($self, tokens, *, namespace='', bytes_per_token=1)"
    )]
    fn insert(
        &self,
        tokens: &Bound<'_, PyAny>,
        namespace: Namespace,
        bytes_per_token: Size,
    ) -> PyResult<Inserted> {
        let py = tokens.py();
        let bytes_per_token = not_negative("bytes_per_token", bytes_per_token.0)?;
        let tokens = tokens::read(tokens)?;
        let length = tokens.keys().len();
        let inserted = tokens.with_query(&mut *lock(&self.0)?, length, &[], true, |index, query| {
            index.insert(&namespace.0, query, bytes_per_token, 0)
        })?;
        Inserted::new(py, inserted)
    }

    /// Evicts the least recently used segments until at least `nbytes` are gone. O(1) amortised each.
    fn evict(&self, nbytes: Size) -> PyResult<Evicted> {
        let need = core::Need { nbytes: not_negative("nbytes", nbytes.0)?, ..core::Need::default() };
        Ok(lock(&self.0)?.evict(need).into())
    }

    /// Drops everything.
    fn clear(&self) -> PyResult<Evicted> {
        Ok(lock(&self.0)?.clear().into())
    }

    /// Figures as they are now. O(1).
    fn stats(&self) -> PyResult<IndexStats> {
        Ok(lock(&self.0)?.stats().into())
    }

    /// Recomputes every counter and link; raises `InternalError` naming what is broken. O(everything).
    fn validate(&self) -> PyResult<()> {
        lock(&self.0)?.validate().map_err(|found| broken(&found))
    }
}
