//! The file operations that this crate uses, as a trait so that tests can inject faults.

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

/// How to open a file. None of these follows a symbolic link in the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// For reading.
    Read,
    /// For writing a new file of mode 0600. Fails if the name exists.
    Create,
    /// For reading and writing. Creates a file of mode 0600 if it is missing.
    Shared,
    /// A folder, to sync its entries.
    Folder,
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Whether it is a regular file.
    pub is_file: bool,
    /// Whether it is a folder.
    pub is_folder: bool,
    /// Length in bytes.
    pub bytes: u64,
    /// Modification time since the Unix epoch.
    pub modified: Duration,
    /// Number of hard links; 0 once it is unlinked.
    pub links: u64,
    /// Device and inode.
    pub identity: (u64, u64),
    /// Permission bits.
    pub mode: u32,
}

/// A file system. Every call may block, and returns the operating system's error.
#[allow(clippy::missing_errors_doc)]
pub trait Files: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn Handle>>;
    /// The metadata of `path` itself, without following a link.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// The names in a folder in any order, without `.` and `..`.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// Creates one folder of mode 0700.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Sets permission bits.
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()>;
    /// Renames atomically within a file system, replacing any existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty folder.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Sets the modification time of `path` itself, without following a link.
    fn touch(&self, path: &Path, modified: Duration) -> io::Result<()>;
    /// Free bytes on the volume for an unprivileged user.
    fn available(&self, path: &Path) -> io::Result<u64>;
}

/// An open file. Reads and writes may be short, and may be interrupted.
#[allow(clippy::missing_errors_doc)]
pub trait Handle: Send + Sync {
    /// Reads into `buffers` in order from `offset`. Returns 0 at the end of the file.
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;
    /// Writes `buffers` in order at `offset`.
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Hints that these bytes will be read soon. Must not wait, and may do nothing.
    fn will_read(&self, offset: u64, bytes: u64);
    /// The metadata of the open file.
    fn stat(&self) -> io::Result<Stat>;
    /// Waits until the data are on the device.
    fn sync(&self) -> io::Result<()>;
    /// Takes the exclusive advisory lock. Returns `false` if another process holds it and `wait` is false.
    /// Dropping the handle releases the lock, and so does the end of the process, however it ends.
    fn lock(&self, wait: bool) -> io::Result<bool>;
    /// Releases the lock.
    fn unlock(&self) -> io::Result<()>;
}
