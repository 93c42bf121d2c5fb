//! Claims on room, and the files written into it.

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
};

use super::{
    Folder, Refusal,
    gate::{Locked, TEMPORARY},
    index::{Entry, Parent},
    lock,
};
use crate::{
    files::{Handle, Open},
    name::Name,
};

/// Room for one file, and the temporary file that takes it.
pub(super) struct Claim {
    pub(super) name: Name,
    pub(super) parent: Option<Name>,
    pub(super) bytes: u64,
    pub(super) temporary: PathBuf,
    pub(super) handle: Box<dyn Handle>,
}

/// The result of [`Folder::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The record is now on disk, and was not before.
    Written,
    /// The record was already on disk.
    Duplicate,
}

impl Folder {
    /// Evicts until there is room for `bytes`, claims it, and creates a temporary file. Returns `Ok(None)` if
    /// the record is already on disk.
    pub(super) fn claim(
        &self,
        name: Name,
        parent: Option<Name>,
        bytes: u64,
    ) -> Result<Option<Claim>, Refusal> {
        self.locked(|locked| {
            let files = &*self.files;
            if locked.is_on_disk(&name, parent.as_ref(), bytes) {
                return Ok(None);
            }
            locked.require_parent(parent.as_ref())?;
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

    /// Releases a claim, and removes its file.
    pub(super) fn release(&self, claim: &Claim) {
        let _ = self.locked(|locked| {
            if locked.root.claims.contains_key(&claim.temporary) {
                locked.forget(&claim.temporary);
            }
            locked.save().map_err(Refusal::Io)
        });
    }

    /// Renames the finished file to its name. On failure, removes the file and releases its room.
    pub(super) fn publish(&self, claim: &Claim) -> Result<Put, Refusal> {
        let published = self.locked(|locked| locked.publish(claim));
        if published.is_err() {
            self.release(claim);
        }
        published
    }
}

impl Locked<'_> {
    /// Checks that the parent is on disk: a record without its parent can never be used.
    fn require_parent(&self, parent: Option<&Name>) -> Result<(), Refusal> {
        let Some(parent) = parent else { return Ok(()) };
        match self.folder.files.stat(&self.folder.path(parent.path())) {
            Ok(stat) if stat.is_file => Ok(()),
            Ok(_) => Err(Refusal::Parent),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Refusal::Parent),
            Err(error) => Err(Refusal::Io(error)),
        }
    }

    /// Whether the record is on disk. If another process wrote it, adds it to the index.
    fn is_on_disk(&self, name: &Name, parent: Option<&Name>, bytes: u64) -> bool {
        let Ok(stat) = self.folder.files.stat(&self.folder.path(name.path())) else { return false };
        let on_disk = stat.is_file && stat.bytes == bytes;
        let mut index = lock(&self.folder.index);
        if on_disk && index.get(name).is_none() {
            index.insert(*name, Entry { bytes, used: stat.modified, parent: Parent::of(parent) });
        }
        on_disk
    }

    fn publish(&mut self, claim: &Claim) -> Result<Put, Refusal> {
        let files = &*self.folder.files;
        if !self.root.claims.contains_key(&claim.temporary) {
            // The folder was deleted in the meantime, along with the file.
            return Err(Refusal::Io(ErrorKind::NotFound.into()));
        }
        self.require_parent(claim.parent.as_ref())?;
        if self.is_on_disk(&claim.name, claim.parent.as_ref(), claim.bytes) {
            self.forget(&claim.temporary);
            let _ = self.save();
            return Ok(Put::Duplicate);
        }
        let path = self.folder.path(claim.name.path());
        let replaced = files.stat(&path).ok();
        let used = self.folder.tick();
        // If the time cannot be set, the file keeps the system's.
        let _ = files.touch(&claim.temporary, used);
        let parent = path.parent().unwrap_or(&path);
        super::gate::make_folders(files, parent)?;
        files.rename(&claim.temporary, &path)?;
        // Until this is saved, the claim in the ledger on disk still covers the file.
        self.root.claims.remove(&claim.temporary);
        self.ledger.stored += claim.bytes;
        if let Some(replaced) = replaced {
            // Subtract it only if it has certainly been counted.
            let counted =
                lock(&self.folder.index).get(&claim.name).is_some_and(|entry| entry.bytes == replaced.bytes);
            self.ledger.stored -= if counted { replaced.bytes.min(self.ledger.stored) } else { 0 };
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
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
