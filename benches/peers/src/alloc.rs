//! Counts live heap bytes, and only while asked to: timings pay one relaxed load an allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};

pub(crate) struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicIsize = AtomicIsize::new(0);

fn add(bytes: isize) {
    if COUNTS.load(Relaxed) {
        LIVE.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size().cast_signed());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size.cast_signed() - layout.size().cast_signed());
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        add(-layout.size().cast_signed());
        unsafe { System.dealloc(at, layout) }
    }
}

/// What `make` returns, and the heap bytes by which the process grew.
pub(crate) fn growth<R>(make: impl FnOnce() -> R) -> (R, isize) {
    LIVE.store(0, Relaxed);
    COUNTS.store(true, Relaxed);
    let made = make();
    COUNTS.store(false, Relaxed);
    (made, LIVE.load(Relaxed))
}
