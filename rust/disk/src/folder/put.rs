//! Writes one record, from checksum to rename.

use std::path::{Path, PathBuf};

use super::{Folder, Put, Refusal, lock, stats::is_full};
use crate::{
    files::{Files, Open},
    record::{self, Spec},
};

impl Folder {
    /// Writes a record on this thread: checks and checksums it, makes room, writes a temporary file and
    /// renames it. A record that is already on disk writes nothing. Updates the counters. Blocks for as long as
    /// the disk, or a process that holds the folder's lock, does.
    ///
    /// If the volume is full, evicts at least as many bytes as the record needs and tries again; if that fails
    /// too, nothing is written for a minute. After three device errors in a row, the folder is read-only.
    ///
    /// # Errors
    /// Why the record was not written. Nothing of it is left on disk.
    pub fn put(&self, spec: &Spec, arrays: &[&[u8]]) -> Result<Put, Refusal> {
        let put = self.writable().and_then(|()| self.put_uncounted(spec, arrays));
        match &put {
            Ok(Put::Written) => {}
            Ok(Put::Duplicate) => self.count_duplicate(),
            Err(refusal) => self.count_refusal(refusal),
        }
        put
    }

    fn put_uncounted(&self, spec: &Spec, arrays: &[&[u8]]) -> Result<Put, Refusal> {
        let invalid = |error: record::SpecError| Refusal::Invalid(error.0);
        let bytes = record::file_bytes(spec).map_err(invalid)?;
        // A shortcut for the common case, before computing checksums and without the lock.
        let known = lock(&self.index).get(&spec.name).is_some_and(|entry| entry.bytes == bytes);
        let on_disk = || self.files.stat(&self.path(spec.name.path())).is_ok_and(|stat| stat.bytes == bytes);
        if known && on_disk() {
            return Ok(Put::Duplicate);
        }
        let header = record::encode(spec, arrays).map_err(invalid)?;
        let put = match self.attempt(spec, &header, arrays, bytes) {
            Err(Refusal::Io(error)) if is_full(&error) => {
                self.evict_from_full_volume(spec, bytes);
                self.attempt(spec, &header, arrays, bytes)
            }
            first => first,
        };
        match &put {
            Ok(Put::Written) => self.count_written(bytes),
            Err(Refusal::Io(error)) if is_full(error) => self.pause(),
            Err(Refusal::Io(error)) => self.note_write_error(error),
            _ => {}
        }
        put
    }

    fn attempt(&self, spec: &Spec, header: &[u8], arrays: &[&[u8]], bytes: u64) -> Result<Put, Refusal> {
        let Some(claim) = self.claim(spec.name, spec.parent, bytes)? else { return Ok(Put::Duplicate) };
        let written = record::write(&*claim.handle, header, arrays)
            .and_then(|()| if self.settings.durable { claim.handle.sync() } else { Ok(()) });
        if let Err(error) = written {
            self.release(&claim);
            return Err(Refusal::Io(error));
        }
        let put = self.publish(&claim)?;
        if self.settings.durable && put == Put::Written {
            let path = self.path(spec.name.path());
            lock(&self.unsynced).extend(path.ancestors().skip(1).take(4).map(Path::to_path_buf));
        }
        Ok(put)
    }

    /// Evicts at least `bytes` from a full volume, whatever it reports as free.
    fn evict_from_full_volume(&self, spec: &Spec, bytes: u64) {
        let parent = spec.parent.map(|parent| parent.end);
        let _ = self.locked(|locked| {
            let before = locked.ledger.stored;
            let enough = lock(&self.index).free_bytes() >= bytes;
            while enough
                && before.saturating_sub(locked.ledger.stored) < bytes
                && locked.evict_one(parent, "full")?
            {}
            locked.save().map_err(Refusal::Io)
        });
    }

    /// Syncs the folders of records written since the last call. Called once per batch. Does nothing unless
    /// the folder is durable.
    pub fn sync(&self) {
        let folders: Vec<PathBuf> = std::mem::take(&mut *lock(&self.unsynced)).into_iter().collect();
        for folder in folders {
            sync_folder(&*self.files, &folder);
        }
    }
}

/// Ignores errors: a folder that is gone needs no sync, and a record lost to a failed one is a miss or fails
/// its checksum.
fn sync_folder(files: &dyn Files, folder: &Path) {
    let _ = files.open(folder, Open::Folder).and_then(|handle| handle.sync());
}
