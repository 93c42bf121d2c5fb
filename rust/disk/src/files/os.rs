//! The operating system's file operations, through std, or rustix where std lacks the call.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, IoSlice, IoSliceMut},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, Timespec, Timestamps, UTIME_OMIT};

use super::{Files, Handle, Open, Stat};

/// The file system of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsFiles;

impl Files for OsFiles {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn Handle>> {
        let mut options = OpenOptions::new();
        let flags = match how {
            // Non-blocking, in case someone put a named pipe there.
            Open::Read => (options.read(true), OFlags::NOFOLLOW | OFlags::NONBLOCK).1,
            Open::Create => (options.write(true).create_new(true), OFlags::NOFOLLOW).1,
            Open::Shared => (options.read(true).write(true).create(true), OFlags::NOFOLLOW).1,
            Open::Folder => (options.read(true), OFlags::NOFOLLOW | OFlags::DIRECTORY).1,
        };
        let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
        Ok(Box::new(options.mode(0o600).custom_flags(flags).open(path)?))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        fs::symlink_metadata(path).map(|metadata| stat(&metadata))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        fs::set_permissions(path, Permissions::from_mode(mode))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn touch(&self, path: &Path, modified: Duration) -> io::Result<()> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: i64::try_from(modified.as_secs()).map_err(io::Error::other)?,
                tv_nsec: i64::from(modified.subsec_nanos()),
            },
        };
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn available(&self, path: &Path) -> io::Result<u64> {
        let volume = rustix::fs::statvfs(path)?;
        Ok(volume.f_bavail.saturating_mul(volume.f_frsize))
    }
}

/// Maximum bytes per call. macOS rejects a vectored call of 2³¹ bytes or more; Linux truncates it.
const MAX_CALL: usize = 1 << 30;

impl Handle for File {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        if buffers[0].len() > MAX_CALL {
            return Ok(rustix::io::pread(self, &mut buffers[0][..MAX_CALL], offset)?);
        }
        let count = prefix(buffers.iter().map(|buffer| buffer.len()));
        Ok(rustix::io::preadv(self, &mut buffers[..count], offset)?)
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        if buffers[0].len() > MAX_CALL {
            return Ok(rustix::io::pwrite(self, &buffers[0][..MAX_CALL], offset)?);
        }
        let count = prefix(buffers.iter().map(|buffer| buffer.len()));
        Ok(rustix::io::pwritev(self, &buffers[..count], offset)?)
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = rustix::fs::fadvise(self, offset, bytes.try_into().ok(), rustix::fs::Advice::WillNeed);
        #[cfg(target_vendor = "apple")]
        let _ = rustix::fs::fcntl_rdadvise(self, offset, bytes);
    }

    fn stat(&self) -> io::Result<Stat> {
        self.metadata().map(|metadata| stat(&metadata))
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn lock(&self, wait: bool) -> io::Result<bool> {
        let how = if wait { FlockOperation::LockExclusive } else { FlockOperation::NonBlockingLockExclusive };
        loop {
            match rustix::fs::flock(self, how) {
                Ok(()) => return Ok(true),
                Err(rustix::io::Errno::WOULDBLOCK) if !wait => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(self, FlockOperation::Unlock)?)
    }
}

/// How many leading buffers fit in one call: at most 1,024 (`IOV_MAX`), and [`MAX_CALL`] bytes in all.
fn prefix(lengths: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0_usize;
    lengths
        .take(1024)
        .take_while(|length| {
            bytes = bytes.saturating_add(*length);
            bytes <= MAX_CALL
        })
        .count()
}

fn stat(metadata: &fs::Metadata) -> Stat {
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Stat {
        is_file: metadata.is_file(),
        is_folder: metadata.is_dir(),
        bytes: metadata.len(),
        modified: modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        links: metadata.nlink(),
        identity: (metadata.dev(), metadata.ino()),
        mode: metadata.mode() & 0o7777,
    }
}
