//! Counts of work, in tests only: what must not grow with anything but what a call touches.
//!
//! Counted are entries of slabs (nodes, trees), children and leases that are looked at.

#[cfg(test)]
thread_local! {
    static LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Something was looked at. Nothing outside tests.
#[inline]
pub(crate) fn look() {
    #[cfg(test)]
    LOOKED_AT.with(|count| count.set(count.get() + 1));
}

#[cfg(test)]
mod tests;
