//! The records known to this process, in order of last use. Memory only: no I/O, no clock.
//!
//! The parent of a segment is the segment that holds the token before it; the parent of a checkpoint is the
//! segment that it ends. Only leaves that are not held can be evicted, so tails are evicted before heads.
//! Names give most links: a record starts with the hash that its parent ends with. If a node was split, the
//! parent ends later, and only the child's header has its hash. O(log n) per operation.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    digest::Digest,
    name::{Kind, Name},
};

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) bytes: u64,
    /// Last use: the modification time of the file.
    pub(crate) used: Duration,
    pub(crate) parent: Parent,
}

/// The parent of a segment, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// The header has not been read. Until then, assume the parent that the name gives.
    Unread,
    /// It is the first of its path, or its name gives the parent.
    Absent,
    /// The parent is the segment that ends with this hash.
    Ends(Digest),
}

impl Parent {
    pub(crate) fn of(parent: Option<&Name>) -> Self {
        parent.map_or(Self::Absent, |parent| Self::Ends(parent.end))
    }
}

#[derive(Default)]
pub(crate) struct Index {
    entries: HashMap<Arc<Name>, Entry>,
    /// Hold counts by name, with or without an entry.
    holds: HashMap<Name, usize>,
    /// Segments by the hash that they end with.
    ends: HashMap<Digest, Vec<Arc<Name>>>,
    /// Number of children by the hash that their parent ends with.
    below: HashMap<Digest, usize>,
    /// Evictable records, oldest first.
    leaves: BTreeSet<(Duration, Arc<Name>)>,
    /// Layouts in which a scan found records with unread headers.
    unread: HashSet<(Digest, Digest)>,
    bytes: u64,
}

/// The hash that a record's parent ends with.
fn parent_end(name: &Name, entry: &Entry) -> Option<Digest> {
    let above = match name.kind {
        Kind::Checkpoint => name.end,
        Kind::Segment => match entry.parent {
            Parent::Ends(end) => end,
            Parent::Unread | Parent::Absent => name.start,
        },
    };
    // A forged name must not make a record its own parent, which would never be evicted.
    (name.kind == Kind::Checkpoint || above != name.end).then_some(above)
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, name: &Name) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<Name>> {
        self.entries.keys()
    }

    /// Adds a record, or replaces its entry.
    pub(crate) fn insert(&mut self, name: Name, entry: Entry) {
        self.remove(&name);
        let name = Arc::new(name);
        self.bytes += entry.bytes;
        if let Some(above) = parent_end(&name, &entry) {
            *self.below.entry(above).or_default() += 1;
            self.refresh_ending(above);
        }
        if name.kind == Kind::Segment {
            self.ends.entry(name.end).or_default().push(Arc::clone(&name));
        }
        self.entries.insert(Arc::clone(&name), entry);
        self.refresh(&name);
    }

    pub(crate) fn remove(&mut self, name: &Name) -> Option<Entry> {
        let (name, entry) = self.entries.remove_entry(name)?;
        self.bytes -= entry.bytes;
        self.leaves.remove(&(entry.used, Arc::clone(&name)));
        if name.kind == Kind::Segment
            && let Some(ending) = self.ends.get_mut(&name.end)
        {
            ending.retain(|other| *other != name);
            if ending.is_empty() {
                self.ends.remove(&name.end);
            }
        }
        if let Some(above) = parent_end(&name, &entry)
            && let Some(count) = self.below.get_mut(&above)
        {
            *count -= 1;
            if *count == 0 {
                self.below.remove(&above);
                self.refresh_ending(above);
            }
        }
        Some(entry)
    }

    /// Changes an entry, if there is one.
    pub(crate) fn update(&mut self, name: &Name, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.get(name).copied() {
            change(&mut entry);
            self.insert(*name, entry);
        }
    }

    /// Protects a record from eviction until a matching `release`.
    pub(crate) fn hold(&mut self, name: &Name) {
        *self.holds.entry(*name).or_default() += 1;
        self.refresh_name(name);
    }

    pub(crate) fn release(&mut self, name: &Name) {
        if let Some(count) = self.holds.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.holds.remove(name);
            }
            self.refresh_name(name);
        }
    }

    /// Bytes of all records that are not held.
    pub(crate) fn free_bytes(&self) -> u64 {
        let held = self.holds.keys().filter_map(|name| self.entries.get(name));
        self.bytes - held.map(|entry| entry.bytes).sum::<u64>()
    }

    /// The record to evict next: the oldest leaf, but never one that ends with `parent`, which is about to get
    /// a child, and `last` only if there is no other.
    pub(crate) fn victim(&self, parent: Option<Digest>, last: Option<&Name>) -> Option<Arc<Name>> {
        let ancestor = |name: &Name| name.kind == Kind::Segment && Some(name.end) == parent;
        let mut candidates = self.leaves.iter().map(|(_, name)| name).filter(|name| !ancestor(name));
        let oldest = candidates.next();
        let victim = oldest.filter(|name| Some(&***name) != last).or_else(|| candidates.next()).or(oldest);
        // Without leaves, either held records keep all others from being leaves, or the links form a cycle,
        // which takes forged headers.
        let cyclic =
            || self.leaves.is_empty() && !self.holds.keys().any(|name| self.entries.contains_key(name));
        let any = || self.entries.keys().find(|name| !ancestor(name));
        victim.or_else(|| if cyclic() { any() } else { None }).cloned()
    }

    /// The records of a layout whose headers must be read to know their parents. Empty until the next scan
    /// once it has been called.
    pub(crate) fn unlinked(&mut self, space: Digest, layout: Digest) -> Vec<Name> {
        if !self.unread.remove(&(space, layout)) {
            return Vec::new();
        }
        let mut unlinked = Vec::new();
        for (name, entry) in &mut self.entries {
            if (name.space, name.layout) == (space, layout) && entry.parent == Parent::Unread {
                if name.kind == Kind::Segment && !self.ends.contains_key(&name.start) {
                    unlinked.push(**name);
                } else {
                    // The name gives the link, so there is no need to read the header.
                    entry.parent = Parent::Absent;
                }
            }
        }
        unlinked
    }

    /// Replaces all entries by the result of a scan. Parents that are already known are kept.
    pub(crate) fn replace(&mut self, records: Vec<(Name, Entry)>) {
        let mut fresh = Self { holds: std::mem::take(&mut self.holds), ..Self::default() };
        for (name, mut entry) in records {
            match self.entries.get(&name) {
                Some(known) => entry.parent = known.parent,
                None => drop(fresh.unread.insert((name.space, name.layout))),
            }
            fresh.insert(name, entry);
        }
        fresh.unread.extend(&self.unread);
        *self = fresh;
    }

    fn refresh_name(&mut self, name: &Name) {
        if let Some((name, _)) = self.entries.get_key_value(name) {
            self.refresh(&Arc::clone(name));
        }
    }

    fn refresh_ending(&mut self, end: Digest) {
        for name in self.ends.get(&end).cloned().unwrap_or_default() {
            self.refresh(&name);
        }
    }

    fn is_leaf(&self, name: &Name) -> bool {
        let free = name.kind == Kind::Checkpoint || !self.below.contains_key(&name.end);
        free && !self.holds.contains_key(name)
    }

    fn refresh(&mut self, name: &Arc<Name>) {
        if let Some(entry) = self.entries.get(name) {
            let place = (entry.used, Arc::clone(name));
            if self.is_leaf(name) {
                self.leaves.insert(place);
            } else {
                self.leaves.remove(&place);
            }
        }
    }

    /// Recomputes everything derived from the entries, and compares.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut fresh = Self { holds: self.holds.clone(), ..Self::default() };
        for (name, entry) in &self.entries {
            fresh.insert(**name, *entry);
        }
        let ends = |index: &Self| {
            let mut all: Vec<_> = index.ends.values().flatten().cloned().collect();
            all.sort();
            all
        };
        if (fresh.bytes, &fresh.leaves, &fresh.below) != (self.bytes, &self.leaves, &self.below)
            || ends(&fresh) != ends(self)
        {
            return Err("the index of records is inconsistent with its entries".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
