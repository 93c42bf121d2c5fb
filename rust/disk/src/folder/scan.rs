//! What is in the folder: the names are the index.

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

/// Deeper than this nothing is counted; our own files are at depth 4.
const MAX_DEPTH: usize = 16;

/// `Ok(None)` where there is nothing (any more).
fn missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Default)]
struct Found {
    records: Vec<(Name, Entry)>,
    bytes: u64,
}

impl Found {
    fn count(&mut self, stat: &Stat) {
        self.bytes += stat.bytes;
    }

    /// Whatever is not ours: counted, never touched.
    fn foreign(&mut self, files: &dyn Files, path: &Path, depth: usize) -> io::Result<()> {
        let Some(stat) = missing(files.stat(path))? else { return Ok(()) };
        if !stat.is_folder {
            self.count(&stat);
        } else if depth < MAX_DEPTH {
            for name in missing(files.list(path))?.unwrap_or_default() {
                self.foreign(files, &path.join(name), depth + 1)?;
            }
        }
        Ok(())
    }

    /// The folder of one `h(start)`.
    fn start(
        &mut self,
        files: &dyn Files,
        path: &Path,
        space: Digest,
        layout: Digest,
        hash: &str,
    ) -> io::Result<()> {
        let Some(names) = missing(files.list(path))? else { return Ok(()) };
        if names.is_empty() {
            let _ = files.remove_folder(path);
        }
        for file in names {
            let at = path.join(&file);
            let tail = format!("{hash}/{}", file.to_str().unwrap_or_default());
            match (Name::parse(space, layout, &tail), missing(files.stat(&at))?) {
                (_, None) => {}
                (Some(name), Some(stat)) if stat.is_file => {
                    self.count(&stat);
                    self.records.push((
                        name,
                        Entry { bytes: stat.bytes, used: stat.modified, parent: Parent::Unread },
                    ));
                }
                _ => self.foreign(files, &at, 4)?,
            }
        }
        Ok(())
    }
}

/// The entries of a folder of ours that are digests; the others are counted as foreign.
fn digests(
    files: &dyn Files,
    path: &Path,
    found: &mut Found,
    depth: usize,
) -> io::Result<Vec<(Digest, PathBuf)>> {
    let mut digests = Vec::new();
    for name in missing(files.list(path))?.unwrap_or_default() {
        let at = path.join(&name);
        match name.to_str().unwrap_or_default().parse() {
            Ok(digest) if missing(files.stat(&at))?.is_some_and(|stat| stat.is_folder) => {
                digests.push((digest, at));
            }
            _ => found.foreign(files, &at, depth)?,
        }
    }
    Ok(digests)
}

impl Locked<'_> {
    /// Counts every file, indexes the records, removes what dead processes left. O(files); the lock is held,
    /// so no record comes meanwhile, and what a reader removes meanwhile is counted at most too high.
    pub(super) fn scan(&mut self) -> io::Result<()> {
        let folder = self.folder;
        let files = &*folder.files;
        let root = &folder.settings.root;
        let mut found = Found::default();
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
                if let Some(stat) = missing(files.stat(&path))? {
                    // The ledger grows to its full length with the next write.
                    found.bytes += stat.bytes.max(if name == LEDGER { LEDGER_BYTES } else { 0 });
                }
            } else if let Ok(space) = name.parse::<Digest>()
                && missing(files.stat(&path))?.is_some_and(|stat| stat.is_folder)
            {
                for (layout, path) in digests(files, &path, &mut found, 2)? {
                    for (start, path) in digests(files, &path, &mut found, 3)? {
                        found.start(files, &path, space, layout, &start.to_string())?;
                    }
                }
            } else {
                found.foreign(files, &path, 1)?;
            }
        }
        self.ledger.slots.retain(|slot| alive.contains(&slot.0));
        self.ledger.stored = found.bytes;
        self.root.known = self.ledger.published;
        self.root.scanned = Some(folder.clock.now());
        super::lock(&folder.index).replace(found.records);
        Ok(())
    }

    /// The processes that use the folder. Owner files of others, which no lock protects, are removed.
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
                    let Some(handle) = missing(files.open(&path, Open::Shared))? else { continue };
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
