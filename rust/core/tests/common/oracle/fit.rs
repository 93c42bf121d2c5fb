//! What a store costs, how much of it fits, and stores that are already held.

use super::store::{Draft, place};
use super::{Oracle, Place, Size, plus};
use crate::common::index::Store;
use crate::common::prompt::Token;

impl Oracle {
    /// Whether the whole store is held; if so, refreshes it and records its end.
    pub(super) fn already(&mut self, store: &Store, place: &Place, tokens: &[Token]) -> bool {
        if store.checkpoint.is_none() {
            let node = self.tree(place).and_then(|tree| tree.holder(tokens, tokens.len()));
            let Some(path) = node.map(|node| node.path.clone()) else { return false };
            self.touch_path(place, &path);
            self.note_end(place, tokens, store.label);
            self.join(place, &path);
            return true;
        } else if self.tree(place).is_some_and(|tree| tree.checkpoint(tokens).is_some()) {
            self.touch_checkpoint(place, tokens);
            self.mark_prompt(place, tokens, store.prompt_length);
        } else {
            return false;
        }
        self.note_end(place, tokens, store.label);
        self.join(place, tokens);
        true
    }

    pub(super) fn note_end(&mut self, place: &Place, tokens: &[Token], label: u16) {
        let ends = &mut self.tree_mut(place).ends;
        ends.retain(|(path, _)| path != tokens);
        ends.push((tokens.to_vec(), label));
    }

    pub(super) fn cost(&self, store: &Store, draft: &Draft) -> Size {
        let buffers = u64::from(store.buffers);
        let mut cost = Size::default();
        for (start, end) in self.chunks(draft) {
            let tokens = (end - start) as u64;
            cost = plus(cost, [tokens * store.bytes_per_token, buffers, tokens, 1, 0]);
        }
        let tree = self.tree(&place(store));
        let cut = tree
            .into_iter()
            .flat_map(|tree| &tree.segments)
            .find(|one| Some(&one.path) == draft.cut.as_ref().map(|cut| &cut.0));
        if let Some(node) = cut {
            // Both halves are copied while the whole is still held.
            cost = plus(cost, [node.size()[0], 2 * node.buffers, 0, 2, 0]);
        }
        if let Some(spec) = store.checkpoint {
            cost = plus(cost, [spec.nbytes, u64::from(spec.buffers), 0, 0, 1]);
        }
        cost
    }

    /// The most tokens that fit in addition to `kept`, if they add anything.
    pub(super) fn fitting(&self, store: &Store, draft: &Draft, kept: Size) -> Option<usize> {
        let shortest = if store.checkpoint.is_some() { draft.length } else { draft.from + 1 };
        (shortest..=draft.length).rev().find(|&length| {
            let cost = self.cost(store, &Draft { length, ..draft.clone() });
            store.prompt.cut_back(length) == length && self.fits(cost[0], cost[1], kept)
        })
    }
}
