//! Reads records into the caller's memory with scattered reads, and verifies them.

use std::{
    io::{self, ErrorKind, IoSliceMut},
    ops::Range,
};

use super::{
    MAX_HEADER, PAYLOAD_ALIGNMENT, STEP_TOKENS,
    header::{Damage, Header},
    spec::Extent,
};
use crate::files::{Handle, read_exact};

/// Why a record, or a part of one, could not be read.
#[derive(Debug)]
pub enum Failure {
    /// The file is not a valid record.
    Damaged(Damage),
    /// The file system failed.
    Io(io::Error),
    /// The range is outside the record, or the caller's slices do not match it.
    Slices,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::UnexpectedEof { Self::Damaged(Damage::Short) } else { Self::Io(error) }
    }
}

impl From<Damage> for Failure {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

/// Reads and checks the header of an open file. O(header): one or two reads, one of 16 KiB for most records.
///
/// # Errors
/// Damage, or the file system's error.
pub fn read_header(handle: &dyn Handle) -> Result<Header, Failure> {
    let stat = handle.stat()?;
    if !stat.is_file {
        return Err(Damage::Corrupt("type of the file").into());
    }
    let file = usize::try_from(stat.bytes).unwrap_or(usize::MAX).min(MAX_HEADER);
    let mut bytes = vec![0; file.min(PAYLOAD_ALIGNMENT)];
    read_exact(handle, &mut [IoSliceMut::new(&mut bytes)], 0)?;
    let length = Header::length(&bytes)?;
    if length > file {
        return Err(Damage::Short.into());
    }
    let read = bytes.len();
    bytes.resize(length, 0);
    if read < length {
        read_exact(handle, &mut [IoSliceMut::new(&mut bytes[read..])], read as u64)?;
    }
    Ok(Header::parse(&bytes, stat.bytes)?)
}

/// Arrays are read in groups of about this many bytes, to verify each while it is in the CPU cache.
const GROUP_BYTES: usize = 1 << 18;

/// Reads tokens `range` (relative to the record's first) of every array into `slices`, and verifies them.
///
/// `slices` follows the arrays in order. An array with a token axis takes one slice of `range.len()` rows for
/// each index of the axes before that one; an array without takes one slice of all its bytes; an empty array
/// takes none. Rows outside the range that share a checksum with it, at most 510 per run, are read into
/// scratch memory. On an error, the contents of the slices are unspecified.
///
/// # Errors
/// Damage, the file system's error, or slices of the wrong lengths.
pub fn read_range(
    handle: &dyn Handle,
    header: &Header,
    range: Range<usize>,
    slices: &mut [&mut [u8]],
) -> Result<(), Failure> {
    check(header, &range, slices)?;
    let mut slices = slices.iter_mut();
    let mut scratch = Vec::new();
    let (mut offset, mut checksums) = (header.payload, header.checksums.as_slice());
    let mut group: Vec<Part<'_>> = Vec::new();
    let mut bytes = 0;
    for (index, extent) in header.extents.iter().enumerate() {
        let (own, rest) = checksums.split_at(extent.steps());
        checksums = rest;
        let part = Part {
            extent: *extent,
            offset,
            checksums: own,
            rows: extent.select(&range),
            slices: slices.by_ref().take(extent.outer).map(|slice| &mut **slice).collect(),
        };
        offset += extent.bytes() as u64;
        bytes += part.cover().len() * extent.row * extent.outer;
        group.push(part);
        if bytes >= GROUP_BYTES || index + 1 == header.extents.len() {
            read_group(handle, &mut group, &mut scratch)?;
            group.clear();
            bytes = 0;
        }
    }
    Ok(())
}

fn check(header: &Header, range: &Range<usize>, slices: &[&mut [u8]]) -> Result<(), Failure> {
    if range.is_empty() || range.end > header.spec.tokens.len() {
        return Err(Failure::Slices);
    }
    let mut lengths = slices.iter().map(|slice| slice.len());
    for extent in &header.extents {
        let length = extent.select(range).len() * extent.row;
        if !(0..extent.outer).all(|_| lengths.next() == Some(length)) {
            return Err(Failure::Slices);
        }
    }
    if lengths.next().is_some() { Err(Failure::Slices) } else { Ok(()) }
}

/// One array's share of a read.
struct Part<'a> {
    extent: Extent,
    /// Offset of the array in the file.
    offset: u64,
    checksums: &'a [u32],
    rows: Range<usize>,
    slices: Vec<&'a mut [u8]>,
}

impl Part<'_> {
    /// The rows covered by the same checksums as the requested ones.
    fn cover(&self) -> Range<usize> {
        let start = self.rows.start / STEP_TOKENS * STEP_TOKENS;
        start..self.rows.end.next_multiple_of(STEP_TOKENS).min(self.extent.rows)
    }

    /// Bytes of the cover before and after the requested rows, per run.
    fn edges(&self) -> (usize, usize) {
        let cover = self.cover();
        ((self.rows.start - cover.start) * self.extent.row, (cover.end - self.rows.end) * self.extent.row)
    }
}

fn read_group(handle: &dyn Handle, group: &mut [Part<'_>], scratch: &mut Vec<u8>) -> Result<(), Failure> {
    let edges = |part: &Part<'_>| part.extent.outer * (part.edges().0 + part.edges().1);
    scratch.resize(group.iter().map(edges).sum(), 0);
    let mut spare = scratch.as_mut_slice();
    // Adjacent runs in the file share one call.
    let mut pending: Vec<IoSliceMut<'_>> = Vec::new();
    let (mut from, mut to) = (0, 0);
    for part in group.iter_mut() {
        let ((lead, tail), cover, extent) = (part.edges(), part.cover(), part.extent);
        for (outer, slice) in part.slices.iter_mut().enumerate() {
            let at = part.offset + ((outer * extent.rows + cover.start) * extent.row) as u64;
            if at != to {
                read_exact(handle, &mut pending, from)?;
                pending.clear();
                from = at;
            }
            to = at + (cover.len() * extent.row) as u64;
            let (before, rest) = std::mem::take(&mut spare).split_at_mut(lead);
            let (after, rest) = rest.split_at_mut(tail);
            spare = rest;
            pending.extend([before, &mut **slice, after].map(IoSliceMut::new));
        }
    }
    read_exact(handle, &mut pending, from)?;
    drop(pending);

    let mut spare = scratch.as_slice();
    for part in group {
        let (lead, tail) = part.edges();
        let (edges, rest) = spare.split_at(part.extent.outer * (lead + tail));
        spare = rest;
        verify(part, edges)?;
    }
    Ok(())
}

fn verify(part: &Part<'_>, edges: &[u8]) -> Result<(), Damage> {
    let ((lead, tail), cover, row) = (part.edges(), part.cover(), part.extent.row);
    for first in cover.clone().step_by(STEP_TOKENS) {
        let last = (first + STEP_TOKENS).min(cover.end);
        let step = (first - cover.start) * row..(last - cover.start) * row;
        let crc = part.slices.iter().enumerate().fold(0, |crc, (outer, slice)| {
            let edges = &edges[outer * (lead + tail)..(outer + 1) * (lead + tail)];
            let mut at = 0;
            [&edges[..lead], slice, &edges[lead..]].iter().fold(crc, |crc, piece| {
                let begin = step.start.clamp(at, at + piece.len()) - at;
                let end = step.end.clamp(at, at + piece.len()) - at;
                at += piece.len();
                crc32c::crc32c_append(crc, &piece[begin..end])
            })
        });
        if part.checksums.get(first / STEP_TOKENS) != Some(&crc) {
            return Err(Damage::Corrupt("checksum of an array"));
        }
    }
    Ok(())
}
