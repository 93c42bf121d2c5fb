//! What can go wrong, and a broken invariant's name.

use std::fmt;

/// A call that the index cannot carry out. Nothing has changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A token id outside 0..2³¹.
    InvalidToken {
        /// Where in the query.
        position: usize,
        /// The 32 bits found there.
        key: u32,
    },
    /// Media spans must be in order, apart from each other, not empty and inside the tokens.
    InvalidSpan {
        /// Which of the spans, from 0.
        index: usize,
        /// Its first token.
        start: usize,
        /// Its length in tokens.
        length: usize,
        /// How many tokens the query has.
        tokens: usize,
    },
    /// A query is longer than the 2³¹ tokens that a tree can count.
    TooLong {
        /// Tokens in the query.
        tokens: usize,
    },
    /// The draft or plan is unknown, since it was ended before; or, where only a draft, it cannot
    /// be carried out any more: its place, its room or what it stood on is gone.
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
                "media span {index} covers [{start}, {}) of {tokens} tokens; spans must be in \
                 order, apart from each other, not empty and inside the tokens",
                start.saturating_add(*length)
            ),
            Self::TooLong { tokens } => {
                write!(f, "a prompt of {tokens} tokens is longer than the limit of 2147483647")
            }
            Self::UnknownPlan => f.write_str("this plan was ended before, or cannot be carried out any more"),
        }
    }
}

impl std::error::Error for Error {}

/// A broken invariant, found by `validate()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}
