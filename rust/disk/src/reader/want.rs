//! Requests for records, and their results.

use std::{io, sync::Arc};

use crate::{
    name::{Identity, Media, Name},
    record::Header,
};

/// Owns the memory that a record is read into; the outcome returns it. A read that a stalled disk holds past
/// the deadline keeps the destination and drops it when the disk responds, so no thread ever writes into
/// memory that someone else uses.
pub trait Destination: Send + 'static {
    /// Returns the slices that [`read_range`](crate::record::read_range) takes.
    ///
    /// Caller guarantees: called once, on a reading thread.
    /// Must: return, array by array, one slice of the range's rows for each index of the axes before the token
    /// axis.
    fn slices(&mut self) -> Vec<&mut [u8]>;
}

impl Destination for Vec<Vec<u8>> {
    fn slices(&mut self) -> Vec<&mut [u8]> {
        self.iter_mut().map(Vec::as_mut_slice).collect()
    }
}

/// A request for one record, or a part of it.
#[derive(Debug)]
pub struct Want<D> {
    /// Name of the record.
    pub name: Name,
    /// The identity that the record must have.
    pub identity: Arc<Identity>,
    /// Position in the prompt of the first token to read. Does not affect arrays that cannot be cut.
    pub start: usize,
    /// The tokens to read, which the record must have at that position.
    pub tokens: Vec<u32>,
    /// The media spans that overlap these tokens, which the record must have too.
    pub media: Vec<Media>,
    /// Where to put the bytes.
    pub destination: D,
}

/// The result of a [`Want`].
#[derive(Debug)]
pub enum Outcome<D> {
    /// Read and verified: name, header, tokens, and a checksum over every byte.
    Read {
        /// The record's header.
        header: Box<Header>,
        /// The filled destination.
        destination: D,
    },
    /// There is no such file.
    Missing,
    /// The file is truncated. Removed.
    Short,
    /// A checksum or the header is wrong; the text says which. Removed.
    Corrupt(&'static str),
    /// The header is valid but has another name or identity. Removed.
    Misplaced,
    /// The record has other tokens or media. Removed.
    OtherTokens,
    /// The device failed. Removed.
    Broken(io::Error),
    /// The file system failed for a reason unrelated to the record. The record stays.
    Unreadable(io::Error),
    /// The destination's slices do not match the record, or the destination panicked. The record stays.
    Unfit,
    /// Not finished at the deadline, or not started because earlier reads are still stuck. The record stays;
    /// the destination is lost.
    Late,
    /// An earlier record of the same call could not be read.
    Skipped,
}

impl<D> Outcome<D> {
    /// The reason's name in [`Stats`](crate::folder::Stats).
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Missing => "missing",
            Self::Short => "short",
            Self::Corrupt(_) => "corrupt",
            Self::Misplaced => "misplaced",
            Self::OtherTokens => "other_tokens",
            Self::Broken(_) => "io_error",
            Self::Unreadable(_) => "unreadable",
            Self::Unfit => "unfit",
            Self::Late => "late",
            Self::Skipped => "skipped",
        }
    }

    /// Whether the record was read.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }
}
