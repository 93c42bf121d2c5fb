//! What a store must do before the copy: draft, settle, promise.

use kvcache_core::{Need, Plan, PlanId, SegmentId};

use super::{Checkpoint, Holder, Lease, Oracle, Path, Place, Removed, Size, plus};
use crate::common::index::Store;
use crate::common::prompt::Token;

/// The expected plan, without ids, which the index chooses.
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

/// A draft or a plan that has not ended.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: Option<PlanId>,
    pub(super) store: Store,
    pub(super) holder: Holder,
    /// Whether there was anything to lease.
    leased: bool,
    pub(super) draft: Draft,
    pub(super) split: Option<(Option<SegmentId>, usize)>,
    pub(super) plan: Option<Plan>,
    /// Zero until the promise.
    pub(super) cost: Size,
}

#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) from: usize,
    pub(super) length: usize,
    /// The segment to split after `from` tokens, and where it starts.
    pub(super) cut: Option<(Path, usize)>,
}

pub(super) fn place(store: &Store) -> Place {
    let Store { namespace, layout, checkpoint, .. } = store;
    Place { namespace: namespace.clone(), layout: *layout, checkpointed: checkpoint.is_some() }
}

impl Oracle {
    /// Runs all steps up to the promise.
    pub(crate) fn plan(&mut self, store: &Store, stamp: u64) -> (Expected, Removed) {
        let (length, recopy) = match self.draft(store, stamp) {
            Ok(lengths) => lengths,
            Err(other) => return (other, Removed::default()),
        };
        let last = self.drafts.len() - 1;
        if length.max(recopy) == 0 {
            let mut removed = Removed::default();
            let Open { holder, .. } = self.drafts.remove(last);
            self.end_lease(&holder, &mut removed);
            return (Expected::TooLarge, removed);
        }
        let settled = self.settle_at(last, length.max(recopy), recopy > length);
        let ([nbytes, buffers], mut removed) = settled.unwrap_or_default();
        removed.add(self.evict(&Need { nbytes, buffers, ..Need::default() }));
        (self.promise_at(last).unwrap_or(Expected::TooLarge), removed)
    }

    /// Drafts a store. Returns the tokens that fit, and those that fit if the segment in which the key
    /// diverges is dropped.
    pub(crate) fn draft(&mut self, store: &Store, stamp: u64) -> Result<(usize, usize), Expected> {
        self.tick(stamp);
        let (tokens, place) = (store.prompt.tokens(), place(store));
        for token in &tokens {
            if let Token::Media(digest, length) = *token
                && !self.contents.contains(&(digest, length))
            {
                self.contents.push((digest, length));
            }
        }
        if tokens.is_empty() {
            return Err(Expected::Nothing);
        }
        let matched = self.tree(&place).map_or(0, |tree| tree.matched(&tokens));
        if matched == tokens.len() && self.already(store, &place, &tokens) {
            return Err(Expected::Already);
        }
        let node = self.tree(&place).and_then(|tree| tree.holder(&tokens, matched)).cloned();
        let cut = node.as_ref().filter(|node| node.path.len() > matched);
        let cut = cut.map(|node| (node.path.clone(), node.start));
        let draft = Draft { from: matched, length: tokens.len(), cut };
        self.stores += 1;
        let holder = Holder::Store(self.stores);
        self.protect(&holder, &place, node.as_ref().map_or(&[], |node| &node.path), &draft);
        let length = self.fitting(store, &draft, self.leased()).unwrap_or(0);
        let (store, leased) = (store.clone(), node.is_some());
        self.drafts.push(Open {
            id: None,
            store,
            holder,
            leased,
            draft,
            split: None,
            plan: None,
            cost: [0; 5],
        });
        let recopy = self.recopy(self.drafts.len() - 1).map_or(0, |draft| draft.length);
        Ok((length, recopy))
    }

    /// The draft without the other side of the divergence, if only this store leases that side and dropping
    /// it gains anything.
    fn recopy(&self, at: usize) -> Option<Draft> {
        let Open { store, draft, .. } = &self.drafts[at];
        let (place, (path, start)) = (place(store), draft.cut.as_ref()?);
        let node = self.tree(&place)?.segments.iter().find(|one| one.path == *path)?;
        let covers = |lease: &&Lease| lease.place == place && lease.path.starts_with(path);
        if self.leases.iter().filter(covers).count() > 1 {
            return None;
        }
        let mut kept = self.leased();
        kept[0] -= node.size()[0];
        kept[1] -= node.size()[1];
        let without = Draft { from: *start, length: store.prompt.len(), cut: None };
        let longest = self.fitting(store, &without, kept)?;
        let gains = store.checkpoint.is_some() || longest > draft.from;
        gains.then_some(Draft { length: longest, ..without })
    }

    /// Settles a length. Returns the bytes and buffers over the limits; `None` if it cannot be stored.
    pub(crate) fn settle(&mut self, id: PlanId, length: usize, recopy: bool) -> Option<([u64; 2], Removed)> {
        let at = self.drafts.iter().position(|open| open.id == Some(id))?;
        self.settle_at(at, length, recopy)
    }

    fn settle_at(&mut self, at: usize, length: usize, recopy: bool) -> Option<([u64; 2], Removed)> {
        let open = self.drafts.get(at).filter(|open| self.is_valid(open))?;
        let whole = Draft { length: open.store.prompt.len(), ..open.draft.clone() };
        let most = if recopy { self.recopy(at)? } else { whole };
        let storable = match open.store.checkpoint {
            Some(_) => length == most.length,
            None => {
                most.from < length && length <= most.length && open.store.prompt.cut_back(length) == length
            }
        };
        let mut removed = Removed::default();
        let (place, holder) = (place(&open.store), open.holder.clone());
        let old = open.draft.cut.clone().filter(|_| storable && recopy);
        if !storable {
            return None;
        }
        self.drafts[at].draft = Draft { length, ..most };
        if let Some((path, start)) = old {
            self.stores += 1;
            let again = Holder::Store(self.stores);
            let draft = self.drafts[at].draft.clone();
            self.drafts[at].leased = start > 0;
            self.drafts[at].holder = again.clone();
            self.protect(&again, &place, &path[..start], &draft);
            self.end_lease(&holder, &mut removed);
            self.evict_from(&place, &path, &mut removed);
        }
        let cost = self.cost(&self.drafts[at].store, &self.drafts[at].draft);
        Some((self.over(cost), removed))
    }

    fn over(&self, cost: Size) -> [u64; 2] {
        let all = plus(plus(self.held(), self.reserved()), cost);
        [all[0].saturating_sub(self.limits.max_bytes), all[1].saturating_sub(self.limits.max_buffers)]
    }

    /// Promises a draft, if there is room.
    pub(crate) fn promise(&mut self, id: PlanId) -> Option<Expected> {
        let at = self.drafts.iter().position(|open| open.id == Some(id))?;
        self.promise_at(at)
    }

    fn promise_at(&mut self, at: usize) -> Option<Expected> {
        let open = self.drafts.get(at).filter(|open| self.is_valid(open))?;
        let cost = self.cost(&open.store, &open.draft);
        if self.over(cost) != [0, 0] {
            return None;
        }
        let mut open = self.drafts.remove(at);
        open.cost = cost;
        open.split = open.draft.cut.as_ref().and_then(|(path, start)| {
            let node = self.tree(&place(&open.store))?.segments.iter().find(|one| one.path == *path)?;
            Some((node.id, open.draft.from - start))
        });
        let expected = Expected::Ready {
            length: open.draft.length,
            matched: open.draft.from,
            segments: self.chunks(&open.draft),
            split: open.split,
            checkpoint: open.store.checkpoint.is_some(),
        };
        self.plans.push(open);
        Some(expected)
    }

    /// Whether the draft's lease is still live, and the tree around its place unchanged.
    fn is_valid(&self, open: &Open) -> bool {
        let tokens = open.store.prompt.tokens();
        if open.leased && !self.leases.iter().any(|lease| lease.holder == open.holder) {
            return false;
        }
        let Some(tree) = self.tree(&place(&open.store)) else { return open.draft.from == 0 };
        let matched = tree.matched(&tokens);
        let node = tree.holder(&tokens, matched).map(|node| (node.path.clone(), node.start));
        let same = match &open.draft.cut {
            Some(cut) => node.as_ref() == Some(cut),
            None => node.is_none_or(|node| node.0.len() == matched),
        };
        same && matched == open.draft.from
    }

    /// Records the id of the last draft.
    pub(crate) fn drafted(&mut self, id: PlanId) {
        if let Some(open) = self.drafts.last_mut() {
            open.id = Some(id);
        }
    }

    /// Records the ids of the last plan.
    pub(crate) fn opened(&mut self, plan: &Plan) {
        if let Some(open) = self.plans.last_mut() {
            open.id = Some(plan.id);
            open.plan = Some(plan.clone());
        }
    }

    pub(super) fn chunks(&self, draft: &Draft) -> Vec<(usize, usize)> {
        let inside = (draft.from + 1..draft.length).filter(|at| at % self.limits.segment_tokens == 0);
        let ends: Vec<usize> = inside.chain((draft.from < draft.length).then_some(draft.length)).collect();
        [draft.from].into_iter().chain(ends.clone()).zip(ends).collect()
    }

    /// Leases the tokens before the divergence, and the checkpoint the store continues from.
    fn protect(&mut self, holder: &Holder, place: &Place, node: &[Token], draft: &Draft) {
        let Some(tree) = self.tree(place).filter(|_| !node.is_empty()) else { return };
        let before = |one: &&Checkpoint| {
            node.starts_with(&one.path) && draft.cut.as_ref().map(|cut| &cut.0) != Some(&one.path)
        };
        let checkpoint = tree.checkpoints.iter().filter(before).max_by_key(|one| one.path.len());
        self.lease(Lease {
            holder: holder.clone(),
            place: place.clone(),
            path: node.to_vec(),
            checkpoint: checkpoint.map(|one| one.path.clone()),
        });
    }

    fn evict_from(&mut self, place: &Place, top: &[Token], removed: &mut Removed) {
        let before = (removed.segments.len(), removed.checkpoints.len());
        self.remove_segments(place, removed, |one| one.path.starts_with(top));
        let units = if place.checkpointed {
            removed.checkpoints.len() - before.1
        } else {
            removed.segments.len() - before.0
        };
        removed.units += units as u64;
        self.clean_up(removed);
    }
}

impl Removed {
    fn add(&mut self, other: Self) {
        self.segments.extend(other.segments);
        self.checkpoints.extend(other.checkpoints);
        self.size = plus(self.size, other.size);
        self.units += other.units;
    }
}
