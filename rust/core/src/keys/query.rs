//! The keys that a call looks up or stores, and the positions where they must not be cut.

use crate::error::Error;
use crate::keys::token::{MAX_TOKEN, UNKNOWN_MEDIA};

/// Positions where a query must not be cut: those inside its media spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cuts(Vec<(u32, u32)>);

impl Cuts {
    /// Takes spans as (first token, one past the last), sorted and disjoint.
    pub(crate) fn new(spans: Vec<(u32, u32)>) -> Self {
        Self(spans)
    }

    pub(crate) fn none() -> &'static Self {
        static NONE: Cuts = Cuts(Vec::new());
        &NONE
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last position at or before `at` that is not inside a span. O(log spans).
    pub(crate) fn back(&self, at: usize) -> usize {
        let after = self.0.partition_point(|&(start, _)| (start as usize) < at);
        match self.0[..after].last() {
            Some(&(start, end)) if at < end as usize => start as usize,
            _ => at,
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u32, u32)>()
    }

    /// The first token of each span.
    pub(crate) fn starts(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|&(start, _)| start as usize)
    }
}

/// Keys to look up or store, and the positions where they must not be cut.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    pub(crate) keys: &'a [u32],
    pub(crate) cuts: &'a Cuts,
    /// The keys were checked when media ids were filled in. Otherwise the walk checks them: a key that
    /// equals a stored token is a token, so only the rest needs a check.
    pub(crate) checked: bool,
}

impl<'a> Query<'a> {
    /// Keys that have been checked.
    pub(crate) fn checked(keys: &'a [u32], cuts: &'a Cuts) -> Self {
        Self { keys, cuts, checked: true }
    }

    /// Plain token ids, without media. The call that uses them checks them.
    pub fn tokens(keys: &'a [u32]) -> Self {
        Self { keys, cuts: Cuts::none(), checked: false }
    }

    /// Length in tokens.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Checks that every span's content is interned, as it may not be in keys built for a lookup.
    pub(crate) fn check_contents(&self) -> Result<(), Error> {
        let unknown = self.cuts.starts().find(|at| self.keys[*at] == UNKNOWN_MEDIA);
        unknown.map_or(Ok(()), |position| Err(Error::InvalidToken { position, key: UNKNOWN_MEDIA }))
    }

    pub(crate) fn check_length(&self) -> Result<(), Error> {
        if self.keys.len() > MAX_TOKEN as usize {
            return Err(Error::TooLong { tokens: self.keys.len() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_inside_a_span_moves_back_to_its_start() {
        let cuts = Cuts::new(vec![(10, 20), (20, 25)]);
        let moved: Vec<usize> = [9, 10, 11, 19, 20, 21, 24, 25, 30].map(|at| cuts.back(at)).into();
        assert_eq!(moved, [9, 10, 10, 10, 20, 20, 20, 25, 30]);
    }
}
