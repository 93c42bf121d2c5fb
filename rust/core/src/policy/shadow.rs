//! What LRU would hold in the same room.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::policy::Unit;

/// A unit that LRU would hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) tokens: u32,
    /// The index holds it, too.
    pub(super) held: bool,
    used: u64,
}

/// Units by their marks, in LRU order, as many tokens as the index holds. O(log units) each call.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    entries: HashMap<u64, Entry>,
    /// (use, mark), the oldest first.
    order: BTreeSet<(u64, u64)>,
    uses: u64,
    tokens: u64,
    /// Tokens of entries that the index does not hold.
    missing: u64,
}

impl Shadow {
    pub(super) fn get(&self, mark: u64) -> Option<Entry> {
        self.entries.get(&mark).copied()
    }

    pub(super) fn missing(&self) -> u64 {
        self.missing
    }

    /// The unit is used now, and the index holds it.
    pub(super) fn touch(&mut self, unit: Unit) {
        self.remove(unit.mark);
        self.uses += 1;
        self.put(unit.mark, Entry { tokens: unit.tokens, held: true, used: self.uses });
    }

    /// The index holds the unit now.
    pub(super) fn hold(&mut self, unit: Unit) {
        if let Some(entry) = self.remove(unit.mark) {
            self.put(unit.mark, Entry { tokens: unit.tokens, held: true, ..entry });
        }
    }

    /// The index holds the unit no more.
    pub(super) fn lose(&mut self, mark: u64) {
        if let Some(entry) = self.remove(mark) {
            self.put(mark, Entry { held: false, ..entry });
        }
    }

    /// The unit is in two halves now.
    pub(super) fn split(&mut self, whole: Unit, halves: [Unit; 2]) {
        let entry = self.remove(whole.mark);
        for half in halves {
            let entry = entry.or(self.get(half.mark));
            self.remove(half.mark);
            if let Some(entry) = entry {
                self.put(half.mark, Entry { tokens: half.tokens, held: true, ..entry });
            }
        }
    }

    /// Lets the oldest go until there are at most so many tokens.
    pub(super) fn trim(&mut self, most: u64) {
        while self.tokens > most
            && let Some((_, mark)) = self.order.first().copied()
        {
            self.remove(mark);
        }
    }

    pub(super) fn remove(&mut self, mark: u64) -> Option<Entry> {
        let entry = self.entries.remove(&mark)?;
        self.order.remove(&(entry.used, mark));
        self.tokens -= u64::from(entry.tokens);
        self.missing -= if entry.held { 0 } else { u64::from(entry.tokens) };
        Some(entry)
    }

    fn put(&mut self, mark: u64, entry: Entry) {
        self.entries.insert(mark, entry);
        self.order.insert((entry.used, mark));
        self.tokens += u64::from(entry.tokens);
        self.missing += if entry.held { 0 } else { u64::from(entry.tokens) };
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.allocation_size() + self.order.len() * size_of::<(u64, u64)>() * 3 / 2
    }
}
