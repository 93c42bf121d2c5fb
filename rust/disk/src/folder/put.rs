//! Writing one record, from checksum to rename.

use std::path::{Path, PathBuf};

use super::{Folder, Put, Refusal, lock, stats::is_full};
use crate::{
    files::{Files, Open},
    record::{self, Spec},
};

impl Folder {
    /// Writes a record on this thread: checks and checksums it, makes room, writes a temporary file, renames
    /// it. A record that is there costs no bytes. Counts what it did and what it refused. Blocks as long as
    /// the disk, or a process that holds the folder's lock, does.
    ///
    /// A full volume: as many bytes of old records as this one has are evicted, it is tried once more, and
    /// then nothing is written for a minute. Three errors of the device in a row: the folder is read-only.
    ///
    /// # Errors
    /// Why it was not written. Nothing of it is left.
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
        // Before all checksums and without the lock, for what is most often there.
        let known = lock(&self.index).get(&spec.name).is_some_and(|entry| entry.bytes == bytes);
        let there = || self.files.stat(&self.path(spec.name.path())).is_ok_and(|stat| stat.bytes == bytes);
        if known && there() {
            return Ok(Put::Duplicate);
        }
        let header = record::encode(spec, arrays).map_err(invalid)?;
        let put = match self.attempt(spec, &header, arrays, bytes) {
            Err(Refusal::Io(error)) if is_full(&error) => {
                self.make_room_on_volume(spec, bytes);
                self.attempt(spec, &header, arrays, bytes)
            }
            first => first,
        };
        match &put {
            Ok(Put::Written) => self.count_written(bytes),
            Err(Refusal::Io(error)) if is_full(error) => self.pause(),
            Err(Refusal::Io(error)) => self.blame(error),
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

    /// The volume is full, whatever it says of its free bytes: at least as many of ours go.
    fn make_room_on_volume(&self, spec: &Spec, bytes: u64) {
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

    /// Makes the names of records written since the last call durable: once a batch. Without `durable`, nothing.
    pub fn sync(&self) {
        let folders: Vec<PathBuf> = std::mem::take(&mut *lock(&self.unsynced)).into_iter().collect();
        for folder in folders {
            sync_folder(&*self.files, &folder);
        }
    }
}

/// A folder that is gone needs no sync, and what a failure of one loses, a checksum or a miss will show.
fn sync_folder(files: &dyn Files, folder: &Path) {
    let _ = files.open(folder, Open::Folder).and_then(|handle| handle.sync());
}
