//! Claims of room, and the evictions that make it.

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
    time::Duration,
};

use super::{
    Folder, Refusal,
    gate::{Locked, TEMPORARY},
    index::{Entry, Parent},
    lock,
};
use crate::{
    digest::Digest,
    files::{Handle, Open},
    name::Name,
    record::{Failure, read_header},
};

/// Records of other processes are looked for at most this often, unless there is no room without them.
const RESCAN: Duration = Duration::from_secs(10);

/// Room for one file, and the empty file.
pub(super) struct Claim {
    pub(super) name: Name,
    pub(super) parent: Option<Name>,
    pub(super) bytes: u64,
    pub(super) temporary: PathBuf,
    pub(super) handle: Box<dyn Handle>,
}

/// What became of a record that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is on disk, and was not before.
    Written,
    /// It was there.
    Duplicate,
}

impl Folder {
    /// Evicts until there is room for `bytes`, claims it, and makes a temporary file. `Ok(None)` where the
    /// record is on disk.
    pub(super) fn claim(
        &self,
        name: Name,
        parent: Option<Name>,
        bytes: u64,
    ) -> Result<Option<Claim>, Refusal> {
        self.locked(|locked| {
            let files = &*self.files;
            if locked.is_there(&name, parent.as_ref(), bytes) {
                return Ok(None);
            }
            locked.require(parent.as_ref())?;
            let room = locked.make_room(bytes, parent.map(|parent| parent.end), true);
            let temporary = self.path(format!("{TEMPORARY}{:016x}-{}", locked.root.id, self.serial()));
            let claimed = room.and_then(|()| {
                locked.root.claims.insert(temporary.clone(), bytes);
                locked.save().map_err(Refusal::Io)?;
                files.open(&temporary, Open::Create).map_err(Refusal::Io)
            });
            match claimed {
                Ok(handle) => Ok(Some(Claim { name, parent, bytes, temporary, handle })),
                Err(refusal) => {
                    if locked.root.claims.contains_key(&temporary) {
                        locked.forget(&temporary);
                    }
                    let _ = locked.save();
                    Err(refusal)
                }
            }
        })
    }

    /// Gives a claim back and removes its file.
    pub(super) fn release(&self, claim: &Claim) {
        let _ = self.locked(|locked| {
            if locked.root.claims.contains_key(&claim.temporary) {
                locked.forget(&claim.temporary);
            }
            locked.save().map_err(Refusal::Io)
        });
    }

    /// Renames the finished file to its name. Where this fails, the file is gone and its room given back.
    pub(super) fn publish(&self, claim: &Claim) -> Result<Put, Refusal> {
        let published = self.locked(|locked| locked.publish(claim));
        if published.is_err() {
            self.release(claim);
        }
        published
    }
}

impl Locked<'_> {
    /// A record without the one above it could never be used.
    fn require(&self, parent: Option<&Name>) -> Result<(), Refusal> {
        let Some(parent) = parent else { return Ok(()) };
        match self.folder.files.stat(&self.folder.path(parent.path())) {
            Ok(stat) if stat.is_file => Ok(()),
            Ok(_) => Err(Refusal::Parent),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Refusal::Parent),
            Err(error) => Err(Refusal::Io(error)),
        }
    }

    /// Whether the record is on disk, perhaps by another process: then it is known from now on.
    fn is_there(&self, name: &Name, parent: Option<&Name>, bytes: u64) -> bool {
        let Ok(stat) = self.folder.files.stat(&self.folder.path(name.path())) else { return false };
        let there = stat.is_file && stat.bytes == bytes;
        let mut index = lock(&self.folder.index);
        if there && index.get(name).is_none() {
            index.insert(*name, Entry { bytes, used: stat.modified, parent: Parent::of(parent) });
        }
        there
    }

    fn publish(&mut self, claim: &Claim) -> Result<Put, Refusal> {
        let files = &*self.folder.files;
        if !self.root.claims.contains_key(&claim.temporary) {
            // The folder was deleted meanwhile, and the file in it.
            return Err(Refusal::Io(ErrorKind::NotFound.into()));
        }
        self.require(claim.parent.as_ref())?;
        if self.is_there(&claim.name, claim.parent.as_ref(), claim.bytes) {
            self.forget(&claim.temporary);
            let _ = self.save();
            return Ok(Put::Duplicate);
        }
        let path = self.folder.path(claim.name.path());
        let there = files.stat(&path).ok();
        let used = self.folder.tick();
        // Where times cannot be set, the system's own has to do.
        let _ = files.touch(&claim.temporary, used);
        let parent = path.parent().unwrap_or(&path);
        super::gate::make_folders(files, parent)?;
        files.rename(&claim.temporary, &path)?;
        // What the ledger has claimed on disk covers the file until this is saved.
        self.root.claims.remove(&claim.temporary);
        self.ledger.stored += claim.bytes;
        if let Some(there) = there {
            // Subtracted only where it is certain to have been counted.
            let counted = lock(&self.folder.index).get(&claim.name).is_some_and(|e| e.bytes == there.bytes);
            self.ledger.stored -= if counted { there.bytes.min(self.ledger.stored) } else { 0 };
            self.folder.suspect();
        }
        self.ledger.published += 1;
        self.root.known += 1;
        let _ = self.save();
        let parent = Parent::of(claim.parent.as_ref());
        lock(&self.folder.index).insert(claim.name, Entry { bytes: claim.bytes, used, parent });
        *lock(&self.folder.last) = Some(claim.name);
        Ok(Put::Written)
    }

    /// Evicts what is over the limit, if it can.
    pub(super) fn trim(&mut self) {
        let _ = self.make_room(0, None, false);
    }

    /// Evicts, oldest first, until `bytes` fit below the limit and, if asked, above the reserve. Where all
    /// that may go would not be enough, nothing goes; and no more goes for the reserve than it lacked at first,
    /// since on some volumes (snapshots) nothing comes back.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        parent: Option<Digest>,
        reserve: bool,
    ) -> Result<(), Refusal> {
        let settings = &self.folder.settings;
        if bytes > settings.max_bytes {
            return Err(Refusal::TooLarge);
        }
        let stale = self.root.scanned.is_none_or(|at| at + RESCAN <= self.folder.clock.now());
        let mut scanned = false;
        let (mut lacked, mut freed) = (None, 0);
        loop {
            let claimed = self.ledger.claimed();
            let over = (self.ledger.stored + claimed + bytes).saturating_sub(settings.max_bytes);
            let short = if reserve {
                let free = self.folder.files.available(&settings.root)?;
                (settings.reserve + claimed + bytes).saturating_sub(free)
            } else {
                0
            };
            if over == 0 && short == 0 {
                return Ok(());
            }
            if over == 0 && freed >= *lacked.get_or_insert(freed + short) {
                return Err(Refusal::Reserve);
            }
            let before = self.ledger.stored;
            let unknown = self.root.known != self.ledger.published || self.folder.is_suspect();
            let enough = lock(&self.folder.index).free_bytes() >= over.max(short);
            if !scanned && (!enough || stale && unknown) {
                scanned = true;
                self.scan()?;
            } else if bytes > 0 && !enough
                || !self.evict_one(parent, if over > 0 { "limit" } else { "reserve" })?
            {
                if scanned {
                    return Err(if over > 0 { Refusal::Room } else { Refusal::Reserve });
                }
                scanned = true;
                self.scan()?;
            } else {
                freed += before.saturating_sub(self.ledger.stored);
            }
        }
    }

    /// `false` where nothing may go.
    pub(super) fn evict_one(&mut self, parent: Option<Digest>, reason: &'static str) -> io::Result<bool> {
        let last = *lock(&self.folder.last);
        loop {
            let Some(name) = lock(&self.folder.index).victim(parent, last.as_ref()) else { return Ok(false) };
            let unlinked = lock(&self.folder.index).unlinked(name.space, name.layout);
            if !unlinked.is_empty() {
                self.link(&unlinked)?;
                continue;
            }
            let known = lock(&self.folder.index).get(&name).copied();
            let stat = match self.folder.files.stat(&self.folder.path(name.path())) {
                Ok(stat) => Some(stat),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            // Another process has used it since.
            if let (Some(stat), Some(known)) = (stat, known)
                && stat.modified > known.used
            {
                lock(&self.folder.index).update(&name, |entry| entry.used = stat.modified);
                continue;
            }
            if self.remove(&name)? {
                self.folder.count_drop(reason);
                return Ok(true);
            }
        }
    }

    /// Removes a record and its bytes from the ledger, which the caller saves; `false` where it was gone.
    pub(super) fn remove(&mut self, name: &Name) -> io::Result<bool> {
        let (files, path) = (&*self.folder.files, self.folder.path(name.path()));
        let removed = match files.stat(&path).and_then(|stat| files.unlink(&path).map(|()| stat.bytes)) {
            Ok(bytes) => {
                // Somebody may have made it longer since it was counted.
                let counted = lock(&self.folder.index).get(name).map_or(0, |entry| entry.bytes);
                self.ledger.stored = self.ledger.stored.saturating_sub(bytes.min(counted));
                if bytes != counted {
                    self.folder.suspect();
                }
                true
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Whoever removed it may have subtracted it already: only a scan can tell.
                self.folder.suspect();
                false
            }
            Err(error) => return Err(error),
        };
        lock(&self.folder.index).remove(name);
        for above in path.ancestors().skip(1).take(3) {
            if files.remove_folder(above).is_err() {
                break;
            }
        }
        Ok(removed)
    }

    /// Reads where these records hang, and removes those whose header is damaged.
    fn link(&mut self, names: &[Name]) -> io::Result<()> {
        for name in names {
            let header = match self.folder.open_record(name).map_err(Failure::Io) {
                Ok(handle) => read_header(&*handle),
                Err(failure) => Err(failure),
            };
            let parent = match header {
                Ok(header) => Parent::of(header.spec.parent.as_ref()),
                Err(Failure::Damaged(_)) => {
                    if self.remove(name)? {
                        self.folder.count_drop("corrupt");
                    }
                    continue;
                }
                // It hangs where its name says.
                Err(_) => Parent::Absent,
            };
            lock(&self.folder.index).update(name, |entry| entry.parent = parent);
        }
        Ok(())
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
