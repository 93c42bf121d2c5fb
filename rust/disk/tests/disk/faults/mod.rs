//! A file system that fails on request, and tracks the size of its files.

mod trace;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Write},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use kvcache_disk::files::{Files, Handle, Open, OsFiles, Stat};

pub(crate) use trace::{Event, Trace};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Open,
    Stat,
    List,
    MakeFolder,
    SetMode,
    Rename,
    Unlink,
    RemoveFolder,
    Touch,
    Available,
    Read,
    Write,
    HandleStat,
    Sync,
    Lock,
    Unlock,
}

/// What to make fail.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    /// (call, error number, forever): this call, counted from 0, fails; with `forever`, all later ones too.
    pub(crate) fail: Option<(usize, i32, bool)>,
    /// Only calls of this kind fail.
    pub(crate) only: Option<Op>,
    /// Reads and writes transfer at most this many bytes.
    pub(crate) short: Option<usize>,
    /// Every other read and write is interrupted.
    pub(crate) interrupt: bool,
    /// Free bytes that the volume reports.
    pub(crate) available: Option<u64>,
    /// Calls of this kind hang until [`Faults::resume`].
    pub(crate) stall: Option<Op>,
    /// A fault that callers cannot detect: see `selftest`.
    pub(crate) lie: Option<Lie>,
}

/// Faults without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Files are not removed.
    Unlink,
    /// Renamed files are lost.
    Rename,
    /// Files are longer than what was written.
    Grow,
    /// Modification times are not stored.
    Touch,
    /// Bits flip between the disk and the caller, after every check.
    Flip,
}

#[derive(Default)]
struct Shared {
    plan: Mutex<Plan>,
    calls: Mutex<Vec<Op>>,
    changed: Condvar,
    trace: Mutex<Trace>,
    log: Option<File>,
}

#[derive(Clone, Default)]
pub(crate) struct Faults(Arc<Shared>);

impl Faults {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Appends every event to a file, which several processes may share.
    pub(crate) fn logging(log: &Path) -> Arc<Self> {
        let log = File::options().create(true).append(true).open(log).unwrap();
        Arc::new(Self(Arc::new(Shared { log: Some(log), ..Shared::default() })))
    }

    pub(crate) fn plan(&self, plan: Plan) {
        *self.0.plan.lock().unwrap() = plan;
        self.0.calls.lock().unwrap().clear();
        self.0.changed.notify_all();
    }

    pub(crate) fn resume(&self) {
        self.plan(Plan::default());
    }

    /// Calls since the last plan.
    pub(crate) fn calls(&self) -> Vec<Op> {
        self.0.calls.lock().unwrap().clone()
    }

    pub(crate) fn peak(&self) -> u64 {
        self.0.trace.lock().unwrap().peak
    }

    /// Records that someone else has changed a file to this length, or deleted it.
    pub(crate) fn changed(&self, path: &Path, bytes: Option<u64>) {
        self.note(&Event::Remove(path.into()));
        if let Some(bytes) = bytes {
            self.note(&Event::Grow(path.into(), bytes));
        }
    }

    fn note(&self, event: &Event) {
        self.0.trace.lock().unwrap().apply(event);
        if let Some(mut log) = self.0.log.as_ref() {
            log.write_all(event.line().as_bytes()).unwrap();
        }
    }

    /// Counts a call, and makes it hang or fail as planned.
    fn call(&self, op: Op) -> io::Result<Plan> {
        let mut plan = self.0.plan.lock().unwrap();
        while plan.stall == Some(op) {
            plan = self.0.changed.wait(plan).unwrap();
        }
        let mut calls = self.0.calls.lock().unwrap();
        let index = calls.len();
        calls.push(op);
        if let Some((at, error, forever)) = plan.fail
            && (index == at || forever && index > at)
            && plan.only.is_none_or(|only| only == op)
        {
            return Err(io::Error::from_raw_os_error(error));
        }
        if plan.interrupt && matches!(op, Op::Read | Op::Write) && index.is_multiple_of(2) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(*plan)
    }
}

impl Files for Faults {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn Handle>> {
        self.call(Op::Open)?;
        let inner = OsFiles.open(path, how)?;
        if how != Open::Read {
            self.note(&Event::Grow(path.into(), 0));
        }
        Ok(Box::new(FaultyHandle { inner, path: path.into(), files: self.clone() }))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.call(Op::Stat)?;
        OsFiles.stat(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.call(Op::List)?;
        OsFiles.list(path)
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.call(Op::MakeFolder)?;
        OsFiles.make_folder(path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.call(Op::SetMode)?;
        OsFiles.set_mode(path, mode)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let plan = self.call(Op::Rename)?;
        OsFiles.rename(from, to)?;
        self.note(&Event::Rename(from.into(), to.into()));
        if plan.lie == Some(Lie::Rename) { OsFiles.unlink(to) } else { Ok(()) }
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let plan = self.call(Op::Unlink)?;
        if plan.lie == Some(Lie::Unlink) {
            return Ok(());
        }
        OsFiles.unlink(path)?;
        self.note(&Event::Remove(path.into()));
        Ok(())
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.call(Op::RemoveFolder)?;
        OsFiles.remove_folder(path)
    }

    fn touch(&self, path: &Path, modified: Duration) -> io::Result<()> {
        let plan = self.call(Op::Touch)?;
        if plan.lie == Some(Lie::Touch) {
            return Ok(());
        }
        OsFiles.touch(path, modified)
    }

    fn available(&self, path: &Path) -> io::Result<u64> {
        let plan = self.call(Op::Available)?;
        plan.available.map_or_else(|| OsFiles.available(path), Ok)
    }
}

struct FaultyHandle {
    inner: Box<dyn Handle>,
    path: PathBuf,
    files: Faults,
}

impl Handle for FaultyHandle {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let plan = self.files.call(Op::Read)?;
        match (plan.short, buffers.iter_mut().find(|buffer| !buffer.is_empty())) {
            (Some(short), Some(buffer)) => {
                let count = buffer.len().min(short);
                self.inner.read_at(&mut [IoSliceMut::new(&mut buffer[..count])], offset)
            }
            _ => self.inner.read_at(buffers, offset),
        }
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let plan = self.files.call(Op::Write)?;
        let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let count = length.min(plan.short.unwrap_or(length));
        self.files.note(&Event::Grow(self.path.clone(), offset + count as u64));
        if plan.lie == Some(Lie::Grow) {
            self.files.note(&Event::Grow(self.path.clone(), offset + 2 * count as u64));
        }
        match (plan.short, buffers.iter().find(|buffer| !buffer.is_empty())) {
            (Some(_), Some(buffer)) => {
                self.inner.write_at(&[IoSlice::new(&buffer[..count.min(buffer.len())])], offset)
            }
            _ => self.inner.write_at(buffers, offset),
        }
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        self.inner.will_read(offset, bytes);
    }

    fn stat(&self) -> io::Result<Stat> {
        self.files.call(Op::HandleStat)?;
        self.inner.stat()
    }

    fn sync(&self) -> io::Result<()> {
        // Only the call matters: a real sync takes milliseconds.
        self.files.call(Op::Sync).map(drop)
    }

    fn lock(&self, wait: bool) -> io::Result<bool> {
        self.files.call(Op::Lock)?;
        self.inner.lock(wait)
    }

    fn unlock(&self) -> io::Result<()> {
        self.files.call(Op::Unlock)?;
        self.inner.unlock()
    }
}
