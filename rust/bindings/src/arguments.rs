//! Arguments from Python, each checked in one place.

use kvcache_core as core;
use pyo3::Borrowed;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::error::ConfigError;
use crate::tokens;

pub(crate) fn limits(
    max_bytes: Option<i64>,
    max_buffers: Option<i64>,
    segment_tokens: i64,
    max_checkpoints: i64,
    policy: Policy,
) -> PyResult<core::Limits> {
    let positive = |name: &str, value: i64| {
        let usable = usize::try_from(value).ok().filter(|value| *value > 0);
        usable.ok_or_else(|| ConfigError::new_err(format!("{name} must be at least 1, found {value}")))
    };
    let limit = |name: &str, value: Option<i64>, unlimited: u64| {
        value.map_or(Ok(unlimited), |value| not_negative(name, value))
    };
    let default = core::Limits::default();
    Ok(core::Limits {
        max_bytes: limit("max_bytes", max_bytes, default.max_bytes)?,
        max_buffers: limit("max_buffers", max_buffers, default.max_buffers)?,
        segment_tokens: positive("segment_tokens", segment_tokens)?,
        max_checkpoints: positive("max_checkpoints", max_checkpoints)?,
        policy: policy.0,
    })
}

/// A size argument. Rejects bools, and anything beyond 63 bits.
pub(crate) struct Size(pub(crate) i64);

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if is_boolean(&object) {
            return Err(PyTypeError::new_err(format!("sizes must be integers, found {}", object.repr()?)));
        }
        match object.extract::<i64>() {
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Err(ConfigError::new_err(format!("sizes must fit 63 bits, found {}", tokens::shown(&object))))
            }
            value => value.map(Self),
        }
    }
}

/// A namespace argument. Rejects a str that cannot be encoded as UTF-8 (a lone surrogate).
#[derive(Default)]
pub(crate) struct Namespace(pub(crate) String);

impl<'a, 'py> FromPyObject<'a, 'py> for Namespace {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let Ok(text) = object.cast::<PyString>() else {
            let name = type_name(&object);
            return Err(PyTypeError::new_err(format!("namespace must be a str, found {name}")));
        };
        text.to_cow().map(|text| Self(text.into_owned())).or_else(|_| {
            let shown = object.repr()?;
            Err(ConfigError::new_err(format!(
                "namespace must be a str without lone surrogates, found {}",
                shown.to_string_lossy()
            )))
        })
    }
}

/// An eviction policy argument, by name.
#[derive(Default)]
pub(crate) struct Policy(core::Policy);

impl<'a, 'py> FromPyObject<'a, 'py> for Policy {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let Ok(name) = object.cast::<PyString>() else {
            let name = type_name(&object);
            return Err(PyTypeError::new_err(format!("policy must be a str, found {name}")));
        };
        let name = name.to_string_lossy();
        core::Policy::named(&name).map(Self).ok_or_else(|| {
            let known = policies().collect::<Vec<_>>().join(", ");
            ConfigError::new_err(format!("policy must be one of {known}, found {name:?}"))
        })
    }
}

/// The names of the eviction policies.
pub(crate) fn policies() -> impl ExactSizeIterator<Item = &'static str> {
    core::Policy::ALL.into_iter().map(core::Policy::name)
}

pub(crate) fn not_negative(name: &str, value: i64) -> PyResult<u64> {
    u64::try_from(value)
        .map_err(|_| ConfigError::new_err(format!("{name} must not be negative, found {value}")))
}

/// Whether `item` is a Python or numpy bool. Both convert to integers (numpy's with a warning in older
/// versions), but a bool is never meant as a size or a token id.
pub(crate) fn is_boolean(item: &Bound<'_, PyAny>) -> bool {
    item.is_instance_of::<PyBool>() || matches!(type_name(item).as_str(), "bool" | "bool_")
}

pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
