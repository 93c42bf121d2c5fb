//! What keeps a folder in order: recency, removal, headers, checks.

use std::{io::ErrorKind, path::Path, time::Duration};

use super::{Folder, Refusal, index::Parent, lock};
use crate::{
    digest::Digest,
    name::Name,
    record::{Damage, Failure, Header, read_header},
};

impl Folder {
    /// Marks the records of a path, from head to tail, as used now: so that no head is older than its tail.
    /// Errors are ignored: the order of eviction is a hint.
    pub fn touch(&self, path: &[Name]) {
        for (name, used) in path.iter().zip(self.ticks(path.len())) {
            self.touch_at(name, used);
        }
    }

    /// Marks a record as used at one of [`ticks`](Self::ticks).
    pub(crate) fn touch_at(&self, name: &Name, used: Duration) {
        if self.files.touch(&self.path(name.path()), used).is_ok() {
            lock(&self.index).update(name, |entry| entry.used = used);
        }
    }

    /// Reads the headers of a namespace's records, of all its layouts, in any order, and hands each to `visit`
    /// with its time of last use, until that returns `false`. Files that are no such records are removed.
    /// O(records): about 0.1 ms each. Call it after [`wait_ready`](Self::wait_ready), without locks that a
    /// fetch needs.
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

    /// Reads the header of one record, whether the index knows it or not. A file that is no such record is
    /// removed and counted. Blocks as long as the disk does.
    ///
    /// # Errors
    /// Damage, or the file system's error: `NotFound` where there is none.
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

    /// Looks whether a record is there, and forgets it if not.
    pub(crate) fn look(&self, name: &Name) {
        if let Err(error) = self.files.stat(&self.path(name.path()))
            && error.kind() == ErrorKind::NotFound
        {
            self.forget(name);
        }
    }

    /// Removes a record that turned out to be no good, unless another file than `identity` has its name by now.
    /// Not under the lock, for which a fetch must not wait; so the room it had is found by the next scan.
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

    /// Removes these records; what hangs below them is no longer of use, and is evicted in its time.
    ///
    /// # Errors
    /// The first record that could not be removed; those before it are.
    pub fn remove(&self, names: &[Name]) -> Result<u64, Refusal> {
        self.remove_counted(names, "removed")
    }

    /// Removes all records of a namespace, those of other processes too.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn remove_namespace(&self, space: Digest) -> Result<u64, Refusal> {
        self.rescan()?;
        let names: Vec<Name> =
            lock(&self.index).names().filter(|name| name.space == space).map(|name| **name).collect();
        self.remove(&names)
    }

    /// Removes all records. Files that are not ours stay.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub fn clear(&self) -> Result<u64, Refusal> {
        self.rescan()?;
        let names: Vec<Name> = lock(&self.index).names().map(|name| **name).collect();
        self.remove(&names)
    }

    /// Removes the records last used before `time` (since 1970).
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
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

    /// Evicts, oldest first, until all files have at most `bytes` bytes or nothing more may go.
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

    /// Looks at every name in the folder: what other processes wrote, what somebody deleted.
    ///
    /// # Errors
    /// The file system's.
    pub fn rescan(&self) -> Result<(), Refusal> {
        self.locked(|locked| {
            locked.scan()?;
            locked.save().map_err(Refusal::Io)
        })
    }

    /// Ends this process's use of the folder for now; any later call begins it again.
    pub fn leave(&self) {
        let mut gate = lock(&self.gate);
        if gate.is_some() {
            drop(gate);
            let _ = self.locked(|locked| locked.leave().map_err(Refusal::Io));
            gate = lock(&self.gate);
        }
        *gate = None;
    }

    /// Names of all records of which this process knows, in any order.
    pub fn names(&self) -> Vec<Name> {
        lock(&self.index).names().map(|name| **name).collect()
    }

    /// For tests and for `kvcache tier verify`: that the ledger is at least what the files have, and that the
    /// index does not contradict itself.
    ///
    /// # Errors
    /// What is broken.
    pub fn check(&self) -> Result<(), String> {
        lock(&self.index).check()?;
        let checked = self.locked(|locked| {
            let promised = locked.ledger.stored;
            locked.scan()?;
            let real = locked.ledger.stored;
            locked.save()?;
            Ok((promised, real))
        });
        match checked {
            Ok((promised, real)) if promised < real => {
                Err(format!("the ledger has {promised} bytes, the files have {real}"))
            }
            Ok(_) => lock(&self.index).check(),
            Err(refusal) => Err(format!("{}: {refusal}", Path::display(&self.settings.root))),
        }
    }
}
