//! Errors, and broken invariants.

use std::fmt;

/// A call that the index cannot carry out. The call has changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A token id outside 0..2³¹.
    InvalidToken {
        /// Position in the query.
        position: usize,
        /// The 32 bits at that position.
        key: u32,
    },
    /// Media spans must be sorted, disjoint, non-empty and within the tokens.
    InvalidSpan {
        /// The span's index in the list.
        index: usize,
        /// First token of the span.
        start: usize,
        /// Length of the span in tokens.
        length: usize,
        /// Tokens in the query.
        tokens: usize,
    },
    /// The query exceeds the 2³¹ tokens that a tree can count.
    TooLong {
        /// Tokens in the query.
        tokens: usize,
    },
    /// The draft or plan has already ended. Or it is a draft that can no longer be carried out: the
    /// tree around its place has changed, or its room is gone.
    UnknownPlan,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidToken { position, key } => write!(
                f,
                "token ids must be from 0 to 2147483647, found {} at position {position}",
                key.cast_signed()
            ),
            Self::InvalidSpan { index, start, length, tokens } => write!(
                f,
                "media span {index} covers [{start}, {}) of {tokens} tokens; spans must be sorted, \
                disjoint, non-empty and within the tokens",
                start.saturating_add(*length)
            ),
            Self::TooLong { tokens } => {
                write!(f, "a prompt of {tokens} tokens is longer than the limit of 2147483647")
            }
            Self::UnknownPlan => f.write_str("this plan has already ended, or can no longer be carried out"),
        }
    }
}

impl std::error::Error for Error {}

/// An invariant that `validate()` found broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenInvariant(pub String);

impl fmt::Display for BrokenInvariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BrokenInvariant {}
