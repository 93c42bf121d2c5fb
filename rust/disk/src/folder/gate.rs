//! The lock that processes share, and what is done on entering it.

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

/// The root folder as this process has it open.
pub(super) struct Root {
    /// `None` after an error: closing it gives the lock back for certain.
    ledger: Option<Box<dyn Handle>>,
    identity: (u64, u64),
    /// A process that was forked shares its parent's locks, so it needs a root of its own.
    process: u32,
    /// Open and locked for as long as this process uses the folder: so others see that it lives.
    owner: Option<(PathBuf, Box<dyn Handle>)>,
    /// Names our owner file and our temporary files.
    pub(super) id: u64,
    /// Room that this process has claimed, by temporary file, whatever the ledger says.
    pub(super) claims: BTreeMap<PathBuf, u64>,
    /// Temporary files that could not be removed; still claimed.
    leftovers: Vec<PathBuf>,
    /// Records ever published, as far as the index knows of them.
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
    /// Makes the ledger what other processes see.
    pub(super) fn save(&mut self) -> io::Result<()> {
        let claimed = self.root.claims.values().sum();
        if !self.ledger.set(self.root.id, claimed) {
            return Err(io::Error::other("more processes write to the folder than its ledger has room for"));
        }
        let saved = match &self.root.ledger {
            Some(handle) => self.ledger.write(&**handle),
            None => Err(closed()),
        };
        // What others still see has our claims in full; what we knew in addition is counted again.
        saved.inspect_err(|_| self.root.scanned = None)
    }
}

fn closed() -> io::Error {
    io::Error::other("the ledger is closed")
}

impl Folder {
    /// Runs `action` while no other process and no other thread of this one is in here.
    pub(super) fn locked<R>(
        &self,
        action: impl FnOnce(&mut Locked<'_>) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        self.try_again()?;
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

    /// Takes the lock of the ledger that is in the folder now, and reads it.
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
            // The folder was deleted under us, and our claims with it: make it again.
            *gate = None;
        }
        Err(io::Error::other("the folder is deleted as fast as it is made"))
    }

    fn open_root(&self) -> io::Result<Root> {
        let path = &self.settings.root;
        make_folders(&*self.files, path)?;
        // Through a link, if the root is one.
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
    /// Shows that we live, removes what could not be removed before, scans where nothing is known.
    fn begin(&mut self, unreadable: bool) -> io::Result<()> {
        if self.root.owner.is_none() {
            let born = self.folder.clock.now().as_nanos();
            let name = format!("{OWNER}{}-{born}-{:016x}", std::process::id(), self.root.id);
            let path = self.folder.path(name);
            let handle = self.folder.files.open(&path, Open::Shared)?;
            if !handle.lock(false)? {
                return Err(io::Error::other("the folder's file system has no working locks"));
            }
            self.root.owner = Some((path, handle));
        }
        for temporary in std::mem::take(&mut self.root.leftovers) {
            self.forget(&temporary);
        }
        if unreadable || self.root.scanned.is_none() {
            self.scan()?;
            self.trim();
            // Where this fails, what needs it saved will fail, and the next to enter scans again.
            let _ = self.save();
        }
        Ok(())
    }

    /// Gives the room of a temporary file back, once the file is gone.
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

/// Makes `path` and what is missing above it, all of mode 0700.
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
