//! The folder's cross-process lock, and the work done on entering it.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Folder, Refusal, ledger::Ledger, lock};
use crate::files::{Files, Handle, Open};

pub(super) const LEDGER: &str = ".ledger";
pub(super) const OWNER: &str = ".owner-";
pub(super) const TEMPORARY: &str = ".tmp-";

/// This process's open root folder.
pub(super) struct Root {
    /// `None` after an error: closing the handle reliably releases the lock.
    ledger: Option<Box<dyn Handle>>,
    identity: (u64, u64),
    /// A forked process shares its parent's locks, so it must open a root of its own.
    process: u32,
    /// Open and locked for as long as this process uses the folder, so that others see that it is alive.
    owner: Option<(PathBuf, Box<dyn Handle>)>,
    /// Part of the names of our owner file and temporary files.
    pub(super) id: u64,
    /// Room that this process has claimed, by temporary file. Authoritative over the ledger.
    pub(super) claims: BTreeMap<PathBuf, u64>,
    /// Temporary files that could not be removed. Their room is still claimed.
    leftovers: Vec<PathBuf>,
    /// Value of the ledger's `published` up to which the index has seen every record.
    pub(super) known: u64,
    /// When the folder was last scanned.
    pub(super) scanned: Option<Duration>,
}

/// The folder while this process holds the lock.
pub(super) struct Locked<'a> {
    pub(super) folder: &'a Folder,
    pub(super) root: &'a mut Root,
    pub(super) ledger: Ledger,
}

impl Locked<'_> {
    /// Writes the ledger, so that other processes see it.
    pub(super) fn save(&mut self) -> io::Result<()> {
        let claimed = self.root.claims.values().sum();
        if !self.ledger.set(self.root.id, claimed) {
            return Err(io::Error::other("too many processes write to the folder for its ledger to list"));
        }
        let saved = match &self.root.ledger {
            Some(handle) => self.ledger.write(&**handle),
            None => Err(closed()),
        };
        // The ledger on disk still includes our claims in full, so it is safe but too high: scan again.
        saved.inspect_err(|_| self.root.scanned = None)
    }
}

fn closed() -> io::Error {
    io::Error::other("the ledger is closed")
}

impl Folder {
    /// Runs `action` under the folder's lock, exclusive among all processes and threads.
    pub(super) fn locked<R>(
        &self,
        action: impl FnOnce(&mut Locked<'_>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        self.check_not_off()?;
        let mut gate = lock(&self.gate);
        let entered = self.enter(&mut gate);
        let (Ok(ledger), Some(root)) = (entered.as_ref(), gate.as_mut()) else {
            let error = entered.err().unwrap_or_else(closed);
            self.turn_off(&error);
            return Err(Refusal::Io(error));
        };
        let mut locked = Locked { folder: self, root, ledger: ledger.clone().unwrap_or_default() };
        let result = match locked.begin(ledger.is_none()) {
            Ok(()) => {
                self.turn_on();
                action(&mut locked)
            }
            Err(error) => {
                self.turn_off(&error);
                Err(Refusal::Io(error))
            }
        };
        self.note(&locked.ledger);
        let unlocked = root.ledger.as_ref().map_or_else(|| Err(closed()), |handle| handle.unlock());
        if unlocked.is_err() {
            root.ledger = None;
        }
        result
    }

    /// Locks the ledger file that is now in the folder, and reads it.
    fn enter(&self, gate: &mut Option<Root>) -> io::Result<Option<Ledger>> {
        if gate.as_ref().is_some_and(|root| root.process != std::process::id()) {
            *gate = None;
        }
        for _ in 0..3 {
            let root = match gate {
                Some(root) => root,
                None => gate.insert(self.open_root()?),
            };
            let handle = match root.ledger.take() {
                Some(handle) => handle,
                None => self.files.open(&self.path(LEDGER), Open::Shared)?,
            };
            handle.lock(true)?;
            let here = match self.files.stat(&self.path(LEDGER)) {
                Ok(stat) => Some(stat.identity),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            if here == Some(root.identity) && handle.stat()?.identity == root.identity {
                let ledger = Ledger::read(&*handle)?;
                root.ledger = Some(handle);
                return Ok(ledger);
            }
            // Someone deleted the folder, and our claims with it: create it again.
            *gate = None;
        }
        Err(io::Error::other("something keeps deleting the folder"))
    }

    fn open_root(&self) -> io::Result<Root> {
        let path = &self.settings.root;
        make_folders(&*self.files, path)?;
        // Follows a link, if the root is one.
        let stat = self.files.stat(&path.join("."))?;
        if stat.mode & 0o077 != 0 {
            self.files.set_mode(path, 0o700)?;
        }
        let ledger = self.files.open(&self.path(LEDGER), Open::Shared)?;
        let identity = ledger.stat()?.identity;
        let id = RandomState::new().build_hasher().finish();
        Ok(Root {
            ledger: Some(ledger),
            identity,
            process: std::process::id(),
            owner: None,
            id,
            claims: BTreeMap::new(),
            leftovers: Vec::new(),
            known: 0,
            scanned: None,
        })
    }

    /// A path below the root.
    pub(super) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.settings.root.join(relative)
    }
}

impl Locked<'_> {
    /// Marks this process as alive, retries removing leftovers, and scans if there is no valid state yet.
    fn begin(&mut self, unreadable: bool) -> io::Result<()> {
        if self.root.owner.is_none() {
            let born = self.folder.clock.now().as_nanos();
            let name = format!("{OWNER}{}-{born}-{:016x}", std::process::id(), self.root.id);
            let path = self.folder.path(name);
            let handle = self.folder.files.open(&path, Open::Shared)?;
            if !handle.lock(false)? {
                return Err(io::Error::other("file locks do not work on the folder's file system"));
            }
            self.root.owner = Some((path, handle));
        }
        for temporary in std::mem::take(&mut self.root.leftovers) {
            self.forget(&temporary);
        }
        if unreadable || self.root.scanned.is_none() {
            self.scan()?;
            self.trim();
            // If this fails, any later save fails too, and the next entry scans again.
            let _ = self.save();
        }
        Ok(())
    }

    /// Removes a temporary file, and releases its room once the file is gone.
    pub(super) fn forget(&mut self, temporary: &Path) {
        match self.folder.files.unlink(temporary) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                self.root.leftovers.push(temporary.to_path_buf());
            }
            _ => drop(self.root.claims.remove(temporary)),
        }
    }

    /// Ends this process's use of the folder.
    pub(super) fn leave(&mut self) -> io::Result<()> {
        for temporary in self.root.claims.keys().cloned().collect::<Vec<_>>() {
            self.forget(&temporary);
        }
        self.save()?;
        if let Some((path, _)) = &self.root.owner {
            self.folder.files.unlink(path)?;
        }
        self.root.owner = None;
        Ok(())
    }
}

/// Creates `path` and all missing folders above it, with mode 0700.
pub(super) fn make_folders(files: &dyn Files, path: &Path) -> io::Result<()> {
    match files.make_folder(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_folders(files, path.parent().ok_or(error)?)?;
            match files.make_folder(path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
