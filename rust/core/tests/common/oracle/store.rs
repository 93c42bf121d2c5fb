//! What storing must do up to the copy: draft, settle, promise.

use kvcache_core::{Need, Plan, PlanId, SegmentId};

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

/// A draft or a plan that was not ended yet.
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
    /// Nothing before it is promised.
    pub(super) cost: Size,
}

#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) from: usize,
    pub(super) length: usize,
    /// The segment that is to be cut after `from` tokens, and where it starts.
    pub(super) cut: Option<(Path, usize)>,
}

pub(super) fn place(store: &Store) -> Place {
    let Store { namespace, layout, checkpoint, .. } = store;
    Place { namespace: namespace.clone(), layout: *layout, checkpointed: checkpoint.is_some() }
}

impl Oracle {
    /// All steps up to the promise.
    pub(crate) fn plan(&mut self, store: &Store, stamp: u64) -> (Expected, Gone) {
        let (length, recopy) = match self.draft(store, stamp) {
            Ok(lengths) => lengths,
            Err(other) => return (other, Gone::default()),
        };
        let last = self.drafts.len() - 1;
        if length.max(recopy) == 0 {
            let mut gone = Gone::default();
            let Open { holder, .. } = self.drafts.remove(last);
            self.end_lease(&holder, &mut gone);
            return (Expected::TooLarge, gone);
        }
        let settled = self.settle_at(last, length.max(recopy), recopy > length);
        let ([nbytes, buffers], mut gone) = settled.unwrap_or_default();
        gone.add(self.evict(&Need { nbytes, buffers, ..Need::default() }));
        (self.promise_at(last).unwrap_or(Expected::TooLarge), gone)
    }

    /// Tokens that fit, and that fit if the segment that the key diverges in is given up.
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

    /// The draft without the other side of the divergence, if only this store holds that and it
    /// gains anything.
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

    /// What is over the limits at that length, in bytes and buffers; `None` if it cannot be.
    pub(crate) fn settle(&mut self, id: PlanId, length: usize, recopy: bool) -> Option<([u64; 2], Gone)> {
        let at = self.drafts.iter().position(|open| open.id == Some(id))?;
        self.settle_at(at, length, recopy)
    }

    fn settle_at(&mut self, at: usize, length: usize, recopy: bool) -> Option<([u64; 2], Gone)> {
        let open = self.drafts.get(at).filter(|open| self.standing(open))?;
        let whole = Draft { length: open.store.prompt.len(), ..open.draft.clone() };
        let most = if recopy { self.recopy(at)? } else { whole };
        let may_be = match open.store.checkpoint {
            Some(_) => length == most.length,
            None => {
                most.from < length && length <= most.length && open.store.prompt.cut_back(length) == length
            }
        };
        let mut gone = Gone::default();
        let (place, holder) = (place(&open.store), open.holder.clone());
        let old = open.draft.cut.clone().filter(|_| may_be && recopy);
        if !may_be {
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
            self.end_lease(&holder, &mut gone);
            self.evict_from(&place, &path, &mut gone);
        }
        let cost = self.cost(&self.drafts[at].store, &self.drafts[at].draft);
        Some((self.over(cost), gone))
    }

    fn over(&self, cost: Size) -> [u64; 2] {
        let all = plus(plus(self.held(), self.reserved()), cost);
        [all[0].saturating_sub(self.limits.max_bytes), all[1].saturating_sub(self.limits.max_buffers)]
    }

    /// The plan, if it has room.
    pub(crate) fn promise(&mut self, id: PlanId) -> Option<Expected> {
        let at = self.drafts.iter().position(|open| open.id == Some(id))?;
        self.promise_at(at)
    }

    fn promise_at(&mut self, at: usize) -> Option<Expected> {
        let open = self.drafts.get(at).filter(|open| self.standing(open))?;
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

    /// Whether what the draft leases is still leased, and the tree there is what it was.
    fn standing(&self, open: &Open) -> bool {
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

    /// The id that the index gave the last draft.
    pub(crate) fn drafted(&mut self, id: PlanId) {
        if let Some(open) = self.drafts.last_mut() {
            open.id = Some(id);
        }
    }

    /// The ids that the index gave the last plan.
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

    /// Leases the tokens before the divergence, and the checkpoint that the store continues from.
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

    fn evict_from(&mut self, place: &Place, top: &[Token], gone: &mut Gone) {
        let before = (gone.segments.len(), gone.checkpoints.len());
        self.remove_segments(place, gone, |one| one.path.starts_with(top));
        let units = if place.checkpointed {
            gone.checkpoints.len() - before.1
        } else {
            gone.segments.len() - before.0
        };
        gone.units += units as u64;
        self.clean_up(gone);
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
