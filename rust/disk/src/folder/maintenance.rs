//! Maintenance of a folder: recency, removal, headers, checks.

use std::{io::ErrorKind, path::Path, time::Duration};

use super::{Folder, Refusal, index::Parent, lock};
use crate::{
    digest::Digest,
    name::Name,
    record::{Damage, Failure, Header, read_header},
};

impl Folder {
    /// Marks the records of a path, ordered from head to tail, as used now, so that no head is older than its
    /// tail. Ignores errors, since the eviction order is only a heuristic.
    pub fn touch(&self, path: &[Name]) {
        for (name, used) in path.iter().zip(self.ticks(path.len())) {
            self.touch_at(name, used);
        }
    }

    /// Marks a record as used at a time from [`ticks`](Self::ticks).
    pub(crate) fn touch_at(&self, name: &Name, used: Duration) {
        if self.files.touch(&self.path(name.path()), used).is_ok() {
            lock(&self.index).update(name, |entry| entry.used = used);
        }
    }

    /// Reads the headers of all records of a namespace, over all layouts and in any order, and passes each to
    /// `visit` with its time of last use until that returns `false`. Removes files that are not valid records.
    /// O(records), about 0.1 ms each. Call it after [`wait_ready`](Self::wait_ready), and not while holding a
    /// lock that a fetch needs.
    pub fn headers(&self, space: Digest, mut visit: impl FnMut(Header, Duration) -> bool) {
        let names: Vec<Name> =
            lock(&self.index).names().filter(|name| name.space == space).map(|name| **name).collect();
        for name in names {
            let Ok(header) = self.header(&name) else { continue };
            let parent = Parent::of(header.spec.parent.as_ref());
            let mut index = lock(&self.index);
            index.update(&name, |entry| entry.parent = parent);
            let used = index.get(&name).map_or(Duration::ZERO, |entry| entry.used);
            drop(index);
            if !visit(header, used) {
                return;
            }
        }
    }

    /// Reads the header of one record, which need not be in the index. Removes and counts a file that is not a
    /// valid record. Blocks for as long as the disk does.
    ///
    /// # Errors
    /// Damage, or the file system's error: `NotFound` if there is no such file.
    pub fn header(&self, name: &Name) -> Result<Header, Failure> {
        let handle = self.open_record(name).inspect_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                lock(&self.index).remove(name);
            }
        })?;
        let identity = handle.stat()?.identity;
        let header = read_header(&*handle).and_then(|header| {
            let misplaced = header.spec.name != *name;
            if misplaced { Err(Damage::Corrupt("name in the header").into()) } else { Ok(header) }
        });
        if let Err(Failure::Damaged(damage)) = &header {
            self.discard(name, Some(identity), if *damage == Damage::Short { "short" } else { "corrupt" });
        }
        header
    }

    /// Checks that a record is on disk, and removes it from the index if not.
    pub(crate) fn confirm(&self, name: &Name) {
        if let Err(error) = self.files.stat(&self.path(name.path()))
            && error.kind() == ErrorKind::NotFound
        {
            self.forget(name);
        }
    }

    /// Removes a bad record, unless its name now belongs to another file than `identity`. Works without the
    /// folder's lock, since a fetch must not wait for it; the next scan reclaims the room.
    pub(crate) fn discard(&self, name: &Name, identity: Option<(u64, u64)>, reason: &'static str) {
        let path = self.path(name.path());
        let Ok(stat) = self.files.stat(&path) else { return };
        let same = !stat.is_folder && identity.is_none_or(|identity| identity == stat.identity);
        if same && self.files.unlink(&path).is_ok() {
            self.suspect();
            self.count_drop(reason);
            lock(&self.index).remove(name);
        }
    }

    /// Removes these records. Records below them become useless, and are evicted in due course.
    ///
    /// # Errors
    /// The error for the first record that could not be removed. Those before it are removed.
    pub fn remove(&self, names: &[Name]) -> Result<u64, Refusal> {
        self.remove_counted(names, "removed")
    }

    /// Removes all records of a namespace, including those of other processes.
    ///
    /// # Errors
    /// See [`remove`](Self::remove).
    pub fn remove_namespace(&self, space: Digest) -> Result<u64, Refusal> {
        self.rescan()?;
        let names: Vec<Name> =
            lock(&self.index).names().filter(|name| name.space == space).map(|name| **name).collect();
        self.remove(&names)
    }

    /// Removes all records. Foreign files stay.
    ///
    /// # Errors
    /// See [`remove`](Self::remove).
    pub fn clear(&self) -> Result<u64, Refusal> {
        self.rescan()?;
        let names: Vec<Name> = lock(&self.index).names().map(|name| **name).collect();
        self.remove(&names)
    }

    /// Removes all records last used before `time` (since the Unix epoch).
    ///
    /// # Errors
    /// See [`remove`](Self::remove).
    pub fn expire(&self, time: Duration) -> Result<u64, Refusal> {
        self.rescan()?;
        let index = lock(&self.index);
        let old = |name: &&std::sync::Arc<Name>| index.get(name).is_some_and(|entry| entry.used < time);
        let names: Vec<Name> = index.names().filter(old).map(|name| **name).collect();
        drop(index);
        self.remove_counted(&names, "expired")
    }

    fn remove_counted(&self, names: &[Name], reason: &'static str) -> Result<u64, Refusal> {
        self.locked(|locked| {
            let mut removed = 0;
            let mut error = None;
            for name in names {
                match locked.remove(name) {
                    Ok(true) => {
                        removed += 1;
                        self.count_drop(reason);
                    }
                    Ok(false) => {}
                    Err(failed) => {
                        error = Some(failed);
                        break;
                    }
                }
            }
            locked.save()?;
            error.map_or(Ok(removed), |error| Err(error.into()))
        })
    }

    /// Evicts in eviction order until all files hold at most `bytes` bytes or nothing else is evictable.
    ///
    /// # Errors
    /// The file system's.
    pub fn evict_to(&self, bytes: u64) -> Result<(), Refusal> {
        self.locked(|locked| {
            locked.scan()?;
            while locked.ledger.stored + locked.ledger.claimed() > bytes && locked.evict_one(None, "limit")? {
            }
            locked.save().map_err(Refusal::Io)
        })
    }

    /// Scans the folder for records that other processes wrote, and for files that were deleted.
    ///
    /// # Errors
    /// The file system's.
    pub fn rescan(&self) -> Result<(), Refusal> {
        self.locked(|locked| {
            locked.scan()?;
            locked.save().map_err(Refusal::Io)
        })
    }

    /// Ends this process's use of the folder. Any later call starts it again.
    pub fn leave(&self) {
        let mut gate = lock(&self.gate);
        if gate.is_some() {
            drop(gate);
            let _ = self.locked(|locked| locked.leave().map_err(Refusal::Io));
            gate = lock(&self.gate);
        }
        *gate = None;
    }

    /// The names of all records known to this process, in any order.
    pub fn names(&self) -> Vec<Name> {
        lock(&self.index).names().map(|name| **name).collect()
    }

    /// Checks that the ledger is not below the size of the files, and that the index is consistent. For tests
    /// and for `kvcache tier verify`.
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check(&self) -> Result<(), String> {
        lock(&self.index).check()?;
        let checked = self.locked(|locked| {
            let ledger = locked.ledger.stored;
            locked.scan()?;
            let files = locked.ledger.stored;
            locked.save()?;
            Ok((ledger, files))
        });
        match checked {
            Ok((ledger, files)) if ledger < files => {
                Err(format!("the ledger counts {ledger} bytes, but the files hold {files}"))
            }
            Ok(_) => lock(&self.index).check(),
            Err(refusal) => Err(format!("{}: {refusal}", Path::display(&self.settings.root))),
        }
    }
}
