//! `SectionLock`: a lock between threads that knows its owner.
//!
//! `CPython` may run a finalizer, a generator's close or a signal handler between any two bytecodes, even
//! inside a block that holds a lock. If that code calls into the cache, an ordinary lock would deadlock.
//! This lock is acquired and released in native code only, so it always knows its owner, and raises an
//! error on re-entry instead of waiting.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use pyo3::prelude::*;

use crate::error::BusyError;

/// A lock for `with` blocks. Entering it again on the thread that holds it raises `BusyError`.
#[pyclass(frozen, module = "kvcache._core")]
#[derive(Default)]
pub(crate) struct SectionLock {
    owner: Mutex<Option<ThreadId>>,
    released: Condvar,
}

impl SectionLock {
    /// The inner mutex is held for a few instructions that cannot panic.
    fn owner(&self) -> MutexGuard<'_, Option<ThreadId>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, me: ThreadId) {
        let mut owner = self.owner();
        while owner.is_some() {
            owner = self.released.wait(owner).unwrap_or_else(PoisonError::into_inner);
        }
        *owner = Some(me);
    }
}

#[pymethods]
impl SectionLock {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Waits for other threads with the GIL released.
    fn __enter__(&self, py: Python<'_>) -> PyResult<()> {
        let me = thread::current().id();
        {
            let mut owner = self.owner();
            match *owner {
                None => {
                    *owner = Some(me);
                    return Ok(());
                }
                Some(other) if other == me => {
                    return Err(BusyError::new_err(
                        "this thread is already inside a call on this cache, which a signal handler or a \
                         finalizer interrupted; call again after it has returned",
                    ));
                }
                Some(_) => {}
            }
        }
        py.detach(|| self.wait(me));
        Ok(())
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, pyo3::types::PyTuple>) {
        *self.owner() = None;
        self.released.notify_one();
    }

    /// Whether the calling thread holds it.
    #[getter]
    fn owned(&self) -> bool {
        *self.owner() == Some(thread::current().id())
    }
}
