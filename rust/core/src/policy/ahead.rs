//! An eviction that is only thought of.

use std::collections::{BTreeSet, btree_set};
use std::iter::{Copied, Peekable};

use hashbrown::HashMap;

use crate::ids::NodeId;
use crate::policy::ranked::{Key, Ranked};
use crate::policy::{Chooser, First, View};
use crate::radix::edit::Trees;

/// The units in the order in which they would go if nothing else happened. O(log units) each.
pub(super) struct Ahead<'a> {
    trees: &'a Trees,
    chooser: Box<dyn Chooser + 'a>,
    lists: Lists<'a>,
    ranked: &'a Ranked,
    /// Children that nodes have lost.
    lost: HashMap<NodeId, usize>,
}

struct Lists<'a>(Vec<List<'a>>);

struct List<'a> {
    ready: Peekable<Copied<btree_set::Iter<'a, Key>>>,
    /// Units that can go once others have gone.
    freed: BTreeSet<Key>,
    tokens: u64,
    /// What comes first, and its figures.
    first: Option<(Key, First)>,
}

impl View for Lists<'_> {
    fn tokens(&self, list: usize) -> u64 {
        self.0[list].tokens
    }

    fn first(&self, list: usize) -> Option<First> {
        self.0[list].first.map(|(_, first)| first)
    }
}

impl List<'_> {
    fn look(&mut self, ranked: &Ranked) {
        let (ready, freed) = (self.ready.peek(), self.freed.first());
        let key = [ready, freed].into_iter().flatten().min().copied();
        self.first = key.and_then(|key| Some((key, ranked.figures(key.2)?)));
    }

    fn pop(&mut self, ranked: &Ranked) -> Option<NodeId> {
        let (key, _) = self.first?;
        if !self.freed.remove(&key) {
            self.ready.next();
        }
        self.look(ranked);
        Some(key.2)
    }
}

impl<'a> Ahead<'a> {
    pub(super) fn new(ranked: &'a Ranked, trees: &'a Trees) -> Self {
        let list = |(ready, tokens): (&'a BTreeSet<Key>, u64)| {
            let ready = ready.iter().copied().peekable();
            let mut list = List { ready, freed: BTreeSet::new(), tokens, first: None };
            list.look(ranked);
            list
        };
        let lists = Lists(ranked.lists().map(list).collect());
        Self { trees, chooser: ranked.chooser(), lists, ranked, lost: HashMap::new() }
    }

    fn free_above(&mut self, id: NodeId) {
        let arena = &self.trees.arena;
        let above = arena[id].parent;
        if self.trees.checkpointed(id) || arena[above].is_root() {
            return;
        }
        let lost = self.lost.entry(above).or_default();
        *lost += 1;
        if *lost == arena[above].children.len()
            && arena[above].links.listed
            && let Some((list, key)) = self.ranked.key(above)
        {
            self.lists.0[list].freed.insert(key);
            self.lists.0[list].look(self.ranked);
        }
    }
}

impl Iterator for Ahead<'_> {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        let chosen = self.chooser.next(&self.lists);
        let others = (0..self.lists.0.len()).filter(|list| *list != chosen);
        let list = std::iter::once(chosen).chain(others).find(|list| self.lists.0[*list].first.is_some())?;
        let id = self.lists.0[list].pop(self.ranked)?;
        let unit = self.ranked.unit(&self.trees.arena, id)?;
        self.lists.0[list].tokens -= u64::from(self.ranked.figures(id)?.tokens);
        self.chooser.left(unit);
        self.free_above(id);
        Some(id)
    }
}
