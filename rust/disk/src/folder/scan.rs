//! Scans the folder: file names alone rebuild the index.

use std::{
    collections::HashSet,
    ffi::OsString,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::{
    gate::{LEDGER, Locked, OWNER, TEMPORARY},
    index::{Entry, Parent},
    ledger::LEDGER_BYTES,
};
use crate::{
    digest::Digest,
    files::{Files, Open, Stat},
    name::Name,
};

/// Files deeper than this are not counted. Our own are at depth 4.
const MAX_DEPTH: usize = 16;

/// Maps `NotFound` to `Ok(None)`: other processes may remove files during the scan.
fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a scan counts.
#[derive(Default)]
struct Census {
    records: Vec<(Name, Entry)>,
    bytes: u64,
}

impl Census {
    fn count(&mut self, stat: &Stat) {
        self.bytes += stat.bytes;
    }

    /// Counts files that are not ours, and never touches them.
    fn count_foreign(&mut self, files: &dyn Files, path: &Path, depth: usize) -> io::Result<()> {
        let Some(stat) = optional(files.stat(path))? else { return Ok(()) };
        if !stat.is_folder {
            self.count(&stat);
        } else if depth < MAX_DEPTH {
            for name in optional(files.list(path))?.unwrap_or_default() {
                self.count_foreign(files, &path.join(name), depth + 1)?;
            }
        }
        Ok(())
    }

    /// Counts the records in the folder of one `h(start)`.
    fn count_records(
        &mut self,
        files: &dyn Files,
        path: &Path,
        space: Digest,
        layout: Digest,
        hash: &str,
    ) -> io::Result<()> {
        let Some(names) = optional(files.list(path))? else { return Ok(()) };
        if names.is_empty() {
            let _ = files.remove_folder(path);
        }
        for file in names {
            let at = path.join(&file);
            let tail = format!("{hash}/{}", file.to_str().unwrap_or_default());
            match (Name::parse(space, layout, &tail), optional(files.stat(&at))?) {
                (_, None) => {}
                (Some(name), Some(stat)) if stat.is_file => {
                    self.count(&stat);
                    self.records.push((
                        name,
                        Entry { bytes: stat.bytes, used: stat.modified, parent: Parent::Unread },
                    ));
                }
                _ => self.count_foreign(files, &at, 4)?,
            }
        }
        Ok(())
    }
}

/// The subfolders of one of our folders that are named by digests. Counts everything else as foreign.
fn digests(
    files: &dyn Files,
    path: &Path,
    census: &mut Census,
    depth: usize,
) -> io::Result<Vec<(Digest, PathBuf)>> {
    let mut digests = Vec::new();
    for name in optional(files.list(path))?.unwrap_or_default() {
        let at = path.join(&name);
        match name.to_str().unwrap_or_default().parse() {
            Ok(digest) if optional(files.stat(&at))?.is_some_and(|stat| stat.is_folder) => {
                digests.push((digest, at));
            }
            _ => census.count_foreign(files, &at, depth)?,
        }
    }
    Ok(digests)
}

impl Locked<'_> {
    /// Counts every file, rebuilds the index, and removes leftovers of dead processes. O(files). The lock
    /// is held, so no records are added during the scan; readers may remove some, so the count can only be too
    /// high.
    pub(super) fn scan(&mut self) -> io::Result<()> {
        let folder = self.folder;
        let files = &*folder.files;
        let root = &folder.settings.root;
        let mut census = Census::default();
        folder.suspected.store(false, std::sync::atomic::Ordering::Relaxed);

        let names = files.list(root)?;
        let alive = self.alive(&names)?;
        for name in &names {
            let path = root.join(name);
            let name = name.to_str().unwrap_or_default();
            if let Some(rest) = name.strip_prefix(TEMPORARY) {
                let id = rest.split_once('-').and_then(|(id, _)| u64::from_str_radix(id, 16).ok());
                if id.is_some_and(|id| alive.contains(&id)) {
                    continue; // counted as claimed
                }
                let _ = files.unlink(&path);
            }
            if name == LEDGER || name.starts_with(OWNER) || name.starts_with(TEMPORARY) {
                if let Some(stat) = optional(files.stat(&path))? {
                    // The ledger grows to its full size with the next write.
                    census.bytes += stat.bytes.max(if name == LEDGER { LEDGER_BYTES } else { 0 });
                }
            } else if let Ok(space) = name.parse::<Digest>()
                && optional(files.stat(&path))?.is_some_and(|stat| stat.is_folder)
            {
                for (layout, path) in digests(files, &path, &mut census, 2)? {
                    for (start, path) in digests(files, &path, &mut census, 3)? {
                        census.count_records(files, &path, space, layout, &start.to_string())?;
                    }
                }
            } else {
                census.count_foreign(files, &path, 1)?;
            }
        }
        self.ledger.slots.retain(|slot| alive.contains(&slot.0));
        self.ledger.stored = census.bytes;
        self.root.known = self.ledger.published;
        self.root.scanned = Some(folder.clock.now());
        super::lock(&folder.index).replace(census.records);
        Ok(())
    }

    /// The ids of the processes that use the folder. Removes owner files that no process has locked.
    fn alive(&self, names: &[OsString]) -> io::Result<HashSet<u64>> {
        let files = &*self.folder.files;
        let mut alive = HashSet::from([self.root.id]);
        for name in names {
            let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(OWNER)) else { continue };
            let id = rest.rsplit_once('-').and_then(|(_, id)| u64::from_str_radix(id, 16).ok());
            let path = self.folder.path(name);
            match id {
                Some(id) if id == self.root.id => {}
                Some(id) => {
                    let Some(handle) = optional(files.open(&path, Open::Shared))? else { continue };
                    if handle.lock(false)? {
                        let _ = files.unlink(&path);
                    } else {
                        alive.insert(id);
                    }
                }
                None => {}
            }
        }
        Ok(alive)
    }
}
