//! Evicting records until there is room.

use std::{
    io::{self, ErrorKind},
    time::Duration,
};

use super::{Refusal, gate::Locked, index::Parent, lock};
use crate::{
    digest::Digest,
    name::Name,
    record::{Failure, read_header},
};

/// Minimum interval between scans for records of other processes, unless there is no room without them.
const RESCAN: Duration = Duration::from_secs(10);

impl Locked<'_> {
    /// Evicts down to the limit, as far as possible.
    pub(super) fn trim(&mut self) {
        let _ = self.make_room(0, None, false);
    }

    /// Evicts in eviction order until `bytes` fit under the limit and, with `reserve`, leave the reserve free.
    /// Evicts nothing if evicting everything would not be enough. For the reserve, evicts at most what it
    /// lacked at first, since on some volumes (with snapshots) eviction frees nothing.
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

    /// Evicts the next record. Returns `false` if none is evictable.
    pub(super) fn evict_one(&mut self, parent: Option<Digest>, reason: &'static str) -> io::Result<bool> {
        let last = *lock(&self.folder.last);
        loop {
            let Some(name) = lock(&self.folder.index).victim(parent, last.as_ref()) else { return Ok(false) };
            let unlinked = lock(&self.folder.index).unlinked(name.space, name.layout);
            if !unlinked.is_empty() {
                self.read_parents(&unlinked)?;
                continue;
            }
            let known = lock(&self.folder.index).get(&name).copied();
            let stat = match self.folder.files.stat(&self.folder.path(name.path())) {
                Ok(stat) => Some(stat),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            // Another process has used it in the meantime.
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

    /// Removes a record's file, and its bytes from the ledger, which the caller must save. Returns `false` if
    /// the file was already gone.
    pub(super) fn remove(&mut self, name: &Name) -> io::Result<bool> {
        let (files, path) = (&*self.folder.files, self.folder.path(name.path()));
        let removed = match files.stat(&path).and_then(|stat| files.unlink(&path).map(|()| stat.bytes)) {
            Ok(bytes) => {
                // Someone may have extended it since it was counted.
                let counted = lock(&self.folder.index).get(name).map_or(0, |entry| entry.bytes);
                self.ledger.stored = self.ledger.stored.saturating_sub(bytes.min(counted));
                if bytes != counted {
                    self.folder.suspect();
                }
                true
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Another process may have removed and subtracted it: only a scan can tell.
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

    /// Reads the parents of these records from their headers, and removes records with a damaged header.
    fn read_parents(&mut self, names: &[Name]) -> io::Result<()> {
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
                // Use the parent that its name gives.
                Err(_) => Parent::Absent,
            };
            lock(&self.folder.index).update(name, |entry| entry.parent = parent);
        }
        Ok(())
    }
}
