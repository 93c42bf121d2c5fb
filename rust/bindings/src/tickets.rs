//! Leases and plans as objects: whoever lets go of one without ending it gives it back.
//!
//! An exception can arrive between any two bytecodes, also between the call that made a lease and the
//! assignment that would have kept it. A ticket that is collected puts its id on a list, and the index
//! ends what is on it before its next call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

/// The ids of arrays that a plan announced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announced {
    pub(crate) segments: Vec<u64>,
    pub(crate) checkpoint: Option<u64>,
}

/// What was collected without having been ended.
pub(crate) enum Abandoned {
    Lease(u64),
    Plan(u64, Announced),
}

/// Where collected tickets go. Never held while Python runs.
#[derive(Clone, Default)]
pub(crate) struct Abandonments(Arc<Inner>);

#[derive(Default)]
struct Inner {
    any: AtomicBool,
    list: Mutex<Vec<Abandoned>>,
}

impl Abandonments {
    fn push(&self, ticket: Abandoned) {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner).push(ticket);
        self.0.any.store(true, Ordering::Release);
    }

    /// One load.
    pub(crate) fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Vec<Abandoned> {
        let mut list = self.0.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.any.store(false, Ordering::Release);
        std::mem::take(&mut list)
    }
}

/// A path that eviction leaves alone, until it is released or collected.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct Lease {
    pub(crate) id: u64,
    ended: AtomicBool,
    abandonments: Abandonments,
}

impl Lease {
    pub(crate) fn new(id: u64, abandonments: &Abandonments) -> Self {
        Self { id, ended: AtomicBool::new(false), abandonments: abandonments.clone() }
    }

    /// True for the first caller.
    pub(crate) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            self.abandonments.push(Abandoned::Lease(self.id));
        }
    }
}

/// A draft or a plan between its making and its commit or abort.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct Plan {
    pub(crate) id: u64,
    pub(crate) announced: Announced,
    ended: AtomicBool,
    abandonments: Abandonments,
}

impl Plan {
    pub(crate) fn new(id: u64, announced: Announced, abandonments: &Abandonments) -> Self {
        Self { id, announced, ended: AtomicBool::new(false), abandonments: abandonments.clone() }
    }

    /// True for the first caller.
    pub(crate) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            let announced = std::mem::take(&mut self.announced);
            self.abandonments.push(Abandoned::Plan(self.id, announced));
        }
    }
}
