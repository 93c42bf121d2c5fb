//! Complete reads and writes, built from calls that may be short or interrupted.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use super::Handle;

/// More interruptions in a row than signals plausibly cause. Past this, fail instead of spinning.
const MAX_INTERRUPTS: usize = 1000;

/// Fills `buffers` from `offset`, or fails with `UnexpectedEof` if the file is too short.
pub(crate) fn read_exact(
    handle: &dyn Handle,
    mut buffers: &mut [IoSliceMut<'_>],
    mut offset: u64,
) -> io::Result<()> {
    let mut interrupts = 0;
    // With leading empty buffers, a read of 0 bytes would look like the end of the file.
    IoSliceMut::advance_slices(&mut buffers, 0);
    while !buffers.is_empty() {
        match handle.read_at(buffers, offset) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                interrupts = 0;
                offset += count as u64;
                IoSliceMut::advance_slices(&mut buffers, count);
            }
            Err(error) => interrupted(error, &mut interrupts)?,
        }
    }
    Ok(())
}

/// Writes all of `buffers` at `offset`.
pub(crate) fn write_all(
    handle: &dyn Handle,
    mut buffers: &mut [IoSlice<'_>],
    mut offset: u64,
) -> io::Result<()> {
    let mut interrupts = 0;
    IoSlice::advance_slices(&mut buffers, 0);
    while !buffers.is_empty() {
        match handle.write_at(buffers, offset) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => {
                interrupts = 0;
                offset += count as u64;
                IoSlice::advance_slices(&mut buffers, count);
            }
            Err(error) => interrupted(error, &mut interrupts)?,
        }
    }
    Ok(())
}

/// Returns `Ok` if the call should be retried.
fn interrupted(error: io::Error, interrupts: &mut usize) -> io::Result<()> {
    *interrupts += 1;
    if error.kind() == ErrorKind::Interrupted && *interrupts <= MAX_INTERRUPTS { Ok(()) } else { Err(error) }
}
