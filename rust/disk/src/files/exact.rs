//! Whole reads and writes out of short and interrupted ones.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use super::Handle;

/// More interruptions in a row than any signal handler causes: give up instead of spinning.
const MAX_INTERRUPTS: usize = 1000;

/// Fills `buffers` from `offset`, or fails with `UnexpectedEof` where the file ends before.
pub(crate) fn read_exact(
    handle: &dyn Handle,
    mut buffers: &mut [IoSliceMut<'_>],
    mut offset: u64,
) -> io::Result<()> {
    let mut interrupts = 0;
    // Empty buffers in front would make a read of 0 bytes look like the end of the file.
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

/// `Ok` where the call is to be repeated.
fn interrupted(error: io::Error, interrupts: &mut usize) -> io::Result<()> {
    *interrupts += 1;
    if error.kind() == ErrorKind::Interrupted && *interrupts <= MAX_INTERRUPTS { Ok(()) } else { Err(error) }
}
