//! The file operations that this crate uses, as a trait: tests put faults between it and the disk.

use std::{
    ffi::OsString,
    io::{self, IoSlice, IoSliceMut},
    path::Path,
    time::Duration,
};

mod exact;
mod os;

pub(crate) use exact::{read_exact, write_all};
pub use os::OsFiles;

/// How a file is opened. None of them follows a symbolic link in the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// For reading.
    Read,
    /// For writing; fails where the name is taken. Mode 0600.
    Create,
    /// For reading and writing; made where it is missing. Mode 0600.
    Shared,
    /// A folder, to make its entries durable.
    Folder,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Regular file.
    pub is_file: bool,
    /// Folder.
    pub is_folder: bool,
    /// Length in bytes.
    pub bytes: u64,
    /// Modification time since 1970.
    pub modified: Duration,
    /// Names that it has; 0 once it is unlinked.
    pub links: u64,
    /// Device and inode.
    pub identity: (u64, u64),
    /// Permission bits.
    pub mode: u32,
}

/// A file system. Every call may block; every error is the operating system's.
#[allow(clippy::missing_errors_doc)]
pub trait Files: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn Handle>>;
    /// What is at `path` itself, links not followed.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// Names in a folder, in any order; without `.` and `..`.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// Makes one folder of mode 0700.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Sets permission bits.
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Renames within a file system, over what is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Sets the modification time of what is at `path` itself.
    fn touch(&self, path: &Path, modified: Duration) -> io::Result<()>;
    /// Free bytes of the volume for a user without privileges.
    fn available(&self, path: &Path) -> io::Result<u64>;
}

/// An open file. Reads and writes may be short, and may be interrupted.
#[allow(clippy::missing_errors_doc)]
pub trait Handle: Send + Sync {
    /// Reads into `buffers` in order from `offset`; 0 at the end of the file.
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;
    /// Writes `buffers` in order at `offset`.
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Says that these bytes are read soon. A hint: it waits for nothing, and nobody minds if it does nothing.
    fn will_read(&self, offset: u64, bytes: u64);
    /// What it is.
    fn stat(&self) -> io::Result<Stat>;
    /// Waits until the data are on the device.
    fn sync(&self) -> io::Result<()>;
    /// Takes the exclusive advisory lock; `false` where another holds it and `wait` is false. Dropping the
    /// handle gives it back, and so does the end of the process, however it ends.
    fn lock(&self, wait: bool) -> io::Result<bool>;
    /// Gives the lock back.
    fn unlock(&self) -> io::Result<()>;
}
