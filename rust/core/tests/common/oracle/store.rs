//! What storing must do: plan, commit, abort, and thinning out checkpoints.

use kvcache_core::{Plan, SegmentId};

use super::{Checkpoint, Gone, Holder, Lease, Oracle, Path, Place, Size, plus};
use crate::common::index::Store;
use crate::common::prompt::Token;

/// What a plan must say; ids aside, which are the index's to choose.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Ready {
        length: usize,
        matched: usize,
        segments: Vec<(usize, usize)>,
        split: Option<(Option<SegmentId>, usize)>,
        checkpoint: bool,
    },
    Already,
    TooLarge,
    Nothing,
}

/// A plan that was not ended yet.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) store: Store,
    pub(super) holder: Holder,
    pub(super) draft: Draft,
    pub(super) split: Option<(Option<SegmentId>, usize)>,
    pub(super) plan: Option<Plan>,
    pub(super) cost: Size,
}

#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) from: usize,
    pub(super) length: usize,
    /// The segment that is to be cut after `from` tokens.
    pub(super) cut: Option<Path>,
}

pub(super) fn place(store: &Store) -> Place {
    let Store { namespace, layout, checkpoint, .. } = store;
    Place { namespace: namespace.clone(), layout: *layout, checkpointed: checkpoint.is_some() }
}

impl Oracle {
    pub(crate) fn plan(&mut self, store: &Store, stamp: u64) -> (Expected, Gone) {
        self.tick(stamp);
        let (tokens, place) = (store.prompt.tokens(), place(store));
        for token in &tokens {
            if let Token::Media(digest, length) = *token
                && !self.contents.contains(&(digest, length))
            {
                self.contents.push((digest, length));
            }
        }
        let mut gone = Gone::default();
        if tokens.is_empty() {
            return (Expected::Nothing, gone);
        }
        let matched = self.tree(&place).map_or(0, |tree| tree.matched(&tokens));
        if matched == tokens.len() && self.already(store, &place, &tokens) {
            return (Expected::Already, gone);
        }
        let node = self.tree(&place).and_then(|tree| tree.holder(&tokens, matched)).cloned();
        let cut = node.as_ref().filter(|node| node.path.len() > matched).map(|node| node.path.clone());
        let mut draft = Draft { from: matched, length: tokens.len(), cut };
        let holder = self.protect(&place, node.as_ref().map(|node| &node.path), &draft);
        let mut fitting = self.fitting(store, &draft, self.leased());
        if let Some(node) = node.filter(|_| fitting != Some(draft.length) && draft.cut.is_some()) {
            // Without the other side of the divergence, if only this store holds it.
            let covers = |lease: &&Lease| lease.place == place && lease.path.starts_with(&node.path);
            let mut kept = self.leased();
            kept[0] -= node.size()[0];
            kept[1] -= node.size()[1];
            let without = Draft { from: node.start, length: tokens.len(), cut: None };
            let longest = self.fitting(store, &without, kept);
            let gains = longest > fitting.or((store.checkpoint.is_none()).then_some(matched));
            if gains && self.leases.iter().filter(covers).count() == 1 {
                self.end_lease(&holder, &mut gone);
                let parent = &tokens[..node.start];
                self.protect_as(&holder, &place, Some(parent), &without);
                self.evict_from(&place, &node.path, &mut gone);
                (fitting, draft) = (longest, without);
            }
        }
        let Some(length) = fitting else {
            self.end_lease(&holder, &mut gone);
            return (Expected::TooLarge, gone);
        };
        draft.length = length;
        let cost = self.cost(store, &draft);
        gone.add(self.make_room(cost[0], cost[1]).unwrap_or_default());
        let split = draft.cut.as_ref().and_then(|path| {
            let node = self.tree(&place)?.segments.iter().find(|one| one.path == *path)?;
            Some((node.id, draft.from - node.start))
        });
        let expected = Expected::Ready {
            length,
            matched: draft.from,
            segments: self.chunks(&draft),
            split,
            checkpoint: store.checkpoint.is_some(),
        };
        self.plans.push(Open { store: store.clone(), holder, draft, split, plan: None, cost });
        (expected, gone)
    }

    /// The ids that the index gave the last plan.
    pub(crate) fn opened(&mut self, plan: &Plan) {
        if let Some(open) = self.plans.last_mut() {
            open.plan = Some(plan.clone());
        }
    }

    pub(super) fn chunks(&self, draft: &Draft) -> Vec<(usize, usize)> {
        let starts = (draft.from..draft.length).step_by(self.limits.segment_tokens);
        starts.map(|start| (start, draft.length.min(start + self.limits.segment_tokens))).collect()
    }

    /// Whether all of the store is held; if so it is refreshed, and its end noted.
    fn already(&mut self, store: &Store, place: &Place, tokens: &[Token]) -> bool {
        if store.checkpoint.is_none() {
            let node = self.tree(place).and_then(|tree| tree.holder(tokens, tokens.len()));
            let Some(path) = node.map(|node| node.path.clone()) else { return false };
            self.touch_path(place, &path);
        } else if self.tree(place).is_some_and(|tree| tree.checkpoint(tokens).is_some()) {
            self.touch_checkpoint(place, tokens);
        } else {
            return false;
        }
        self.note_end(place, tokens, store.label);
        true
    }

    pub(super) fn note_end(&mut self, place: &Place, tokens: &[Token], label: u16) {
        let ends = &mut self.tree_mut(place).ends;
        ends.retain(|(path, _)| path != tokens);
        ends.push((tokens.to_vec(), label));
    }

    fn protect(&mut self, place: &Place, node: Option<&Path>, draft: &Draft) -> Holder {
        self.stores += 1;
        let holder = Holder::Store(self.stores);
        self.protect_as(&holder, place, node.map(Vec::as_slice), draft);
        holder
    }

    /// Leases the tokens before the divergence, and the checkpoint that the store continues from.
    fn protect_as(&mut self, holder: &Holder, place: &Place, node: Option<&[Token]>, draft: &Draft) {
        let Some(node) = node.filter(|node| !node.is_empty()) else { return };
        let Some(tree) = self.tree(place) else { return };
        let before = |one: &&Checkpoint| node.starts_with(&one.path) && draft.cut.as_ref() != Some(&one.path);
        let checkpoint = tree.checkpoints.iter().filter(before).max_by_key(|one| one.path.len());
        self.lease(Lease {
            holder: holder.clone(),
            place: place.clone(),
            path: node.to_vec(),
            checkpoint: checkpoint.map(|one| one.path.clone()),
        });
    }

    fn evict_from(&mut self, place: &Place, top: &[Token], gone: &mut Gone) {
        let before = (gone.segments.len(), gone.checkpoints.len());
        self.remove_segments(place, gone, |one| one.path.starts_with(top));
        let units = if place.checkpointed {
            gone.checkpoints.len() - before.1
        } else {
            gone.segments.len() - before.0
        };
        gone.units += units as u64;
        self.settle(gone);
    }

    fn cost(&self, store: &Store, draft: &Draft) -> Size {
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
            .find(|one| Some(&one.path) == draft.cut.as_ref());
        if let Some(node) = cut {
            // Both halves are copied while the whole is still there.
            cost = plus(cost, [node.size()[0], 2 * node.buffers, 0, 2, 0]);
        }
        if let Some(spec) = store.checkpoint {
            cost = plus(cost, [spec.nbytes, u64::from(spec.buffers), 0, 0, 1]);
        }
        cost
    }

    /// The most tokens for which there is room beside `kept`, if that gains anything.
    fn fitting(&self, store: &Store, draft: &Draft, kept: Size) -> Option<usize> {
        let shortest = if store.checkpoint.is_some() { draft.length } else { draft.from + 1 };
        (shortest..=draft.length).rev().find(|&length| {
            let cost = self.cost(store, &Draft { length, ..draft.clone() });
            store.prompt.cut_back(length) == length && self.fits(cost[0], cost[1], kept)
        })
    }
}

impl Gone {
    fn add(&mut self, other: Self) {
        self.segments.extend(other.segments);
        self.checkpoints.extend(other.checkpoints);
        self.size = plus(self.size, other.size);
        self.units += other.units;
    }
}
