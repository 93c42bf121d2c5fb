//! Where stores ended, and which stored sequences are *entries*: those that no other sequence covers.
//!
//! In a tree of full-attention layers a longer sequence serves every lookup that a shorter one on its path
//! does, so an entry is a sequence that no other one extends. In a tree with checkpoints every sequence
//! needs a checkpoint of its own, so each is an entry. mlx-lm's prompt cache counts and limits the same
//! thing.
//!
//! Hence in a tree of full-attention layers a node has at most one entry: its last end, unless there is an
//! end at or below one of its children. Each node knows for which children that is so; `propagate` maintains
//! this in amortised O(1) per call, since it clears a flag at most once per store that set it.

use crate::ids::NodeId;
use crate::radix::children::Summary;
use crate::radix::node::{End, Node};
use crate::trees::Trees;

/// The label of a node's entry, if it has one; `ended` of its children have an end at or below them.
pub(crate) fn entry(node: &Node, checkpointed: bool, ended: usize) -> Option<u16> {
    let last = node.ends().iter().max_by_key(|end| end.at)?;
    (checkpointed || ended == 0).then_some(last.label)
}

impl Trees {
    /// Records that a store ended after `at` keys of the node. A later label replaces an earlier one.
    pub(crate) fn add_end(&mut self, id: NodeId, at: usize, label: u16) {
        let at = at as u32;
        self.change_ends(id, |ends| {
            let old = ends.iter().position(|end| end.at == at).map(|place| ends.swap_remove(place).label);
            ends.push(End { at, label });
            (old.into_iter().collect(), Some(label))
        });
        self.propagate(id, self.arena[id].summary());
    }

    /// Removes ends of a node without updating the nodes above.
    pub(super) fn remove_ends(&mut self, id: NodeId, remove: impl Fn(&End) -> bool) {
        if self.arena[id].ends.is_some() {
            self.change_ends(id, |ends| {
                let removed = ends.extract_if(.., |end| remove(end)).map(|end| end.label).collect();
                (removed, None)
            });
        }
    }

    /// Changes a node's ends; `change` returns the labels it removed and the one it added.
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

    /// Updates the nodes above with what is at or below this one. Stops at the first node whose own summary
    /// does not change.
    pub(super) fn propagate(&mut self, mut id: NodeId, mut summary: Summary) {
        while !self.arena[id].is_root() {
            let (key, parent) = (self.arena[id].keys[0], self.arena[id].parent);
            let (before, entry) = (self.arena[parent].summary(), self.entry(parent));
            self.arena.alter(parent, |parent| parent.children.set_summary(key, summary));
            self.recount_entry(parent, entry);
            (id, summary) = (parent, self.arena[parent].summary());
            if summary == before {
                return;
            }
        }
    }
}
