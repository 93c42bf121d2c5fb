//! Work counters, in tests only: a call's work must depend only on what it touches.
//!
//! Every visit to a slab entry (node or tree), a child or a lease counts.

#[cfg(test)]
thread_local! {
    static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one visit. Does nothing outside tests.
#[inline]
pub(crate) fn visit() {
    #[cfg(test)]
    VISITS.with(|count| count.set(count.get() + 1));
}

#[cfg(test)]
mod tests;
