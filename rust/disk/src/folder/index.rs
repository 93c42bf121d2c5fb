//! The records that this process knows of, in order of last use. Memory only: no I/O, no clock.
//!
//! A record hangs below the segment that holds the token before it, a checkpoint below the segment at whose
//! end it is. Only what has nothing below it and is not held may be evicted, so tails go before heads.
//! Names alone give most links: a record starts with the hash that its parent ends with. Where a node was
//! split, the parent ends later; its hash is in the header. O(log n) each.

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
    /// Last use, which is the file's modification time.
    pub(crate) used: Duration,
    pub(crate) parent: Parent,
}

/// Where a segment hangs, besides below the hash that it starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// Its header was not read.
    Unread,
    /// It is the first of its path.
    Absent,
    /// Below the segment that ends with this hash.
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
    /// Names that readers hold, whether there is an entry or not.
    holds: HashMap<Name, usize>,
    /// Segments by the hash that they end with.
    ends: HashMap<Digest, Vec<Arc<Name>>>,
    /// How many records hang below a hash.
    below: HashMap<Digest, usize>,
    /// What may be evicted, oldest first.
    leaves: BTreeSet<(Duration, Arc<Name>)>,
    /// Layouts in which a scan found records whose headers were not read.
    unread: HashSet<(Digest, Digest)>,
    bytes: u64,
}

/// The hash that a record hangs below.
fn link(name: &Name, entry: &Entry) -> Option<Digest> {
    let above = match name.kind {
        Kind::Checkpoint => name.end,
        Kind::Segment => match entry.parent {
            Parent::Ends(end) => end,
            Parent::Unread | Parent::Absent => name.start,
        },
    };
    // A forged name must not keep itself alive.
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

    /// Adds a record, or replaces what was known of it.
    pub(crate) fn insert(&mut self, name: Name, entry: Entry) {
        self.remove(&name);
        let name = Arc::new(name);
        self.bytes += entry.bytes;
        if let Some(above) = link(&name, &entry) {
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
        if let Some(above) = link(&name, &entry)
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

    /// A held record is not evicted until as many releases.
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

    /// Bytes of the records that are not held.
    pub(crate) fn free_bytes(&self) -> u64 {
        let held = self.holds.keys().filter_map(|name| self.entries.get(name));
        self.bytes - held.map(|entry| entry.bytes).sum::<u64>()
    }

    /// The record to evict: the oldest leaf, but for those that end with `parent` (what is about to be
    /// written hangs below them); `last` only where there is no other.
    pub(crate) fn victim(&self, parent: Option<Digest>, last: Option<&Name>) -> Option<Arc<Name>> {
        let ancestor = |name: &Name| name.kind == Kind::Segment && Some(name.end) == parent;
        let mut fit = self.leaves.iter().map(|(_, name)| name).filter(|name| !ancestor(name));
        let first = fit.next();
        let chosen = first.filter(|name| Some(&***name) != last).or_else(|| fit.next()).or(first);
        // Links that go round, which only forged headers make, leave no leaf; holds below a head do, too.
        let round =
            || self.leaves.is_empty() && !self.holds.keys().any(|name| self.entries.contains_key(name));
        let any = || self.entries.keys().find(|name| !ancestor(name));
        chosen.or_else(|| if round() { any() } else { None }).cloned()
    }

    /// Records of a layout whose parent neither name nor header has told yet; once after each scan.
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
                    // The same link as before, and certain.
                    entry.parent = Parent::Absent;
                }
            }
        }
        unlinked
    }

    /// Takes over what a scan found; what it did not find is gone. Headers that were read stay known.
    pub(crate) fn replace(&mut self, found: Vec<(Name, Entry)>) {
        let mut fresh = Self { holds: std::mem::take(&mut self.holds), ..Self::default() };
        for (name, mut entry) in found {
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

    /// Recomputes everything that is kept beside the entries.
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
            return Err("the index of records contradicts its entries".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(start: u8, end: u8, kind: Kind) -> Name {
        let digest = |byte| Digest([byte; 32]);
        Name { space: digest(0), layout: digest(0), start: digest(start), length: 1, end: digest(end), kind }
    }

    fn entry(used: u64) -> Entry {
        Entry { bytes: 10, used: Duration::from_secs(used), parent: Parent::Unread }
    }

    #[test]
    fn tails_go_before_heads_and_checkpoints_before_their_segment() {
        let mut index = Index::default();
        let (a, b) = (name(1, 2, Kind::Segment), name(2, 3, Kind::Segment));
        let c = name(2, 3, Kind::Checkpoint);
        index.insert(a, entry(1));
        index.insert(b, entry(2));
        index.insert(c, entry(3));
        let mut order = Vec::new();
        while let Some(victim) = index.victim(None, None) {
            index.check().unwrap();
            index.remove(&victim);
            order.push(*victim);
        }
        assert_eq!(order, [c, b, a]);
        assert_eq!((index.len(), index.bytes), (0, 0));
    }

    #[test]
    fn a_split_child_hangs_where_its_header_says() {
        let mut index = Index::default();
        let (parent, child) = (name(1, 9, Kind::Segment), name(5, 6, Kind::Segment));
        index.replace(vec![(parent, entry(1)), (child, entry(2))]);
        assert_eq!(index.unlinked(Digest([0; 32]), Digest([0; 32])).len(), 2);
        index.update(&parent, |entry| entry.parent = Parent::Absent);
        index.update(&child, |entry| entry.parent = Parent::Ends(parent.end));
        assert_eq!(index.unlinked(Digest([0; 32]), Digest([0; 32])), []);
        assert_eq!(*index.victim(None, None).unwrap(), child);
        index.check().unwrap();
    }

    #[test]
    fn held_parents_and_the_newest_stay() {
        let mut index = Index::default();
        let (a, b) = (name(1, 2, Kind::Segment), name(3, 4, Kind::Segment));
        index.insert(a, entry(1));
        index.insert(b, entry(2));
        index.hold(&a);
        assert_eq!(*index.victim(None, None).unwrap(), b);
        assert_eq!(index.free_bytes(), 10);
        assert_eq!(index.victim(Some(b.end), None), None, "b is the parent of what comes");
        index.release(&a);
        assert_eq!(*index.victim(None, Some(&a)).unwrap(), b, "a was written last");
        index.remove(&b);
        assert_eq!(*index.victim(None, Some(&a)).unwrap(), a, "a is alone");
        index.check().unwrap();
    }

    #[test]
    fn links_that_go_round_do_not_keep_records_for_ever() {
        let mut index = Index::default();
        index.insert(name(1, 2, Kind::Segment), entry(1));
        index.insert(name(2, 1, Kind::Segment), entry(1));
        index.insert(name(3, 3, Kind::Segment), entry(1));
        for _ in 0..3 {
            let victim = index.victim(None, None).unwrap();
            index.remove(&victim);
        }
        assert_eq!(index.len(), 0);
    }
}
