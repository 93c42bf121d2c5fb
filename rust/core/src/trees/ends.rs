//! Where stores ended, and which of the stored sequences are *entries*: those that no other one covers.
//!
//! In a tree of full-attention layers a longer sequence serves all that a shorter one on its path does, so
//! an entry is a sequence that no other stored one extends. In a tree with checkpoints every sequence is
//! served by a checkpoint of its own, and is an entry. This is what mlx-lm's prompt cache counts and limits.
//!
//! So a node has one entry at most: its last end, unless a child leads to an end. Each node knows of each
//! child whether it does; `announce` keeps that, in amortised O(1) a call: what it clears once, a store on
//! that path has set once.

use crate::ids::NodeId;
use crate::radix::children::Leads;
use crate::radix::node::{End, Node};
use crate::trees::Trees;

/// The entry that a node has, if a number of its children lead to an end: its label.
pub(crate) fn entry(node: &Node, checkpointed: bool, ended: usize) -> Option<u16> {
    let last = node.ends().iter().max_by_key(|end| end.at)?;
    (checkpointed || ended == 0).then_some(last.label)
}

impl Trees {
    /// Notes that a store ended after `at` keys of the node. A later label replaces an earlier.
    pub(crate) fn add_end(&mut self, id: NodeId, at: usize, label: u16) {
        let at = at as u32;
        self.change_ends(id, |ends| {
            let old = ends.iter().position(|end| end.at == at).map(|place| ends.swap_remove(place).label);
            ends.push(End { at, label });
            (old.into_iter().collect(), Some(label))
        });
        self.announce(id, self.arena[id].leads());
    }

    /// Forgets ends of a node; the nodes above are not told.
    pub(super) fn remove_ends(&mut self, id: NodeId, gone: impl Fn(&End) -> bool) {
        if self.arena[id].ends.is_some() {
            self.change_ends(id, |ends| {
                let removed = ends.extract_if(.., |end| gone(end)).map(|end| end.label).collect();
                (removed, None)
            });
        }
    }

    /// Changes a node's ends; `change` returns the labels of those that it removed and added.
    fn change_ends(&mut self, id: NodeId, change: impl FnOnce(&mut Vec<End>) -> (Vec<u16>, Option<u16>)) {
        let before = self.entry(id);
        let (removed, added) = self.arena.alter(id, |node| {
            let ends = node.ends.get_or_insert_default();
            let changed = change(ends);
            if ends.is_empty() {
                node.ends = None;
            }
            changed
        });
        let account = &mut self.forest.get_mut(self.arena[id].tree).sequences;
        for label in removed {
            self.ledger.remove_end(account, label);
        }
        if let Some(label) = added {
            self.ledger.add_end(account, label);
        }
        self.recount_entry(id, before);
    }

    fn entry(&self, id: NodeId) -> Option<u16> {
        let node = &self.arena[id];
        node.ends.as_ref()?;
        entry(node, self.checkpointed(id), node.children.ended())
    }

    fn recount_entry(&mut self, id: NodeId, before: Option<u16>) {
        let after = self.entry(id);
        if before != after {
            let account = &mut self.forest.get_mut(self.arena[id].tree).sequences;
            if let Some(label) = before {
                self.ledger.remove_entry(account, label);
            }
            if let Some(label) = after {
                self.ledger.add_entry(account, label);
            }
        }
    }

    /// Lets the nodes above know what is at or below this one. Where one learns nothing new, those above
    /// it do not either.
    pub(super) fn announce(&mut self, mut id: NodeId, mut leads: Leads) {
        while !self.arena[id].is_root() {
            let (key, parent) = (self.arena[id].keys[0], self.arena[id].parent);
            let (before, entry) = (self.arena[parent].leads(), self.entry(parent));
            self.arena.alter(parent, |parent| parent.children.set_leads(key, leads));
            self.recount_entry(parent, entry);
            (id, leads) = (parent, self.arena[parent].leads());
            if leads == before {
                return;
            }
        }
    }
}
