//! The only place that maps core errors to Python exceptions.

use std::sync::{Mutex, MutexGuard};

use kvcache_core::{BrokenInvariant, Error};
use pyo3::prelude::*;

pyo3::import_exception!(kvcache.errors, BusyError);
pyo3::import_exception!(kvcache.errors, ConfigError);
pyo3::import_exception!(kvcache.errors, InternalError);
pyo3::import_exception!(kvcache.errors, TokenError);

/// The Python exception for a core error.
pub(crate) fn to_python(error: &Error) -> PyErr {
    match error {
        Error::InvalidToken { .. } | Error::TooLong { .. } => TokenError::new_err(error.to_string()),
        Error::InvalidSpan { .. } => ConfigError::new_err(error.to_string()),
        Error::UnknownPlan => InternalError::new_err(error.to_string()),
    }
}

pub(crate) fn invariant(broken: &BrokenInvariant) -> PyErr {
    InternalError::new_err(format!("broken invariant: {broken}"))
}

/// Locks an index. An earlier call that panicked may have left it half changed, so a poisoned lock is an
/// error.
pub(crate) fn lock<T>(index: &Mutex<T>) -> PyResult<MutexGuard<'_, T>> {
    index.lock().map_err(|_| InternalError::new_err("the index is unusable: an earlier call on it panicked"))
}
