//! Tickets: leases, plans and rooms as Python objects that end themselves when they are collected.
//!
//! An exception can arrive between any two bytecodes, even between the call that creates a lease and the
//! assignment that would keep it. A ticket that is collected before it ends adds its id to a list, and the
//! cache ends everything on the list before its next call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

/// The array ids that a plan announced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announced {
    pub(crate) segments: Vec<u64>,
    pub(crate) checkpoint: Option<u64>,
}

/// A ticket that was collected before it ended.
pub(crate) enum Abandoned {
    Lease(u64),
    Plan(u64, Announced),
    Room(u64, u64),
}

/// The list of abandoned tickets. Its lock is never held while Python code runs.
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

    /// Whether the list is non-empty. One atomic load.
    pub(crate) fn any(&self) -> bool {
        self.0.any.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Vec<Abandoned> {
        let mut list = self.0.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.any.store(false, Ordering::Release);
        std::mem::take(&mut list)
    }
}

/// Protects a path from eviction until it is released or collected.
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

/// A draft or a plan, until its commit or abort.
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

/// Room reserved under the limits for arrays that are being created.
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct Room {
    pub(crate) nbytes: u64,
    pub(crate) buffers: u64,
    ended: AtomicBool,
    abandonments: Abandonments,
}

impl Room {
    pub(crate) fn new(nbytes: u64, buffers: u64, abandonments: &Abandonments) -> Self {
        Self { nbytes, buffers, ended: AtomicBool::new(false), abandonments: abandonments.clone() }
    }

    /// True for the first caller.
    pub(crate) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            self.abandonments.push(Abandoned::Room(self.nbytes, self.buffers));
        }
    }
}
