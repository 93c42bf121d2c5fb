//! What ending a plan must do, and how checkpoints are thinned out.

use kvcache_core::{Inserted, PlanId};

use super::store::{Expected, Open, place};
use super::{Checkpoint, Oracle, Path, Place, Removed, Segment};
use crate::common::index::Store;
use crate::common::prompt::{Prompt, Token};

impl Oracle {
    /// Commits a plan. Returns whether it was stale, and what was dropped; `None` for an unknown plan.
    pub(crate) fn commit(&mut self, id: PlanId, stamp: u64) -> Option<(bool, Removed)> {
        self.tick(stamp);
        let open = self.close(id)?;
        let mut removed = Removed::default();
        let stale = !self.place_unchanged(&open);
        if stale {
            self.end_lease(&open.holder, &mut removed);
        } else {
            self.attach(&open, &mut removed);
        }
        Some((stale, removed))
    }

    pub(crate) fn abort(&mut self, id: PlanId) -> Option<Removed> {
        let draft = self.drafts.iter().position(|open| open.id == Some(id));
        let open = match draft {
            Some(at) => self.drafts.remove(at),
            None => self.close(id)?,
        };
        let mut removed = Removed::default();
        self.end_lease(&open.holder, &mut removed);
        Some(removed)
    }

    fn close(&mut self, id: PlanId) -> Option<Open> {
        let at = self.plans.iter().position(|open| open.id == Some(id))?;
        Some(self.plans.remove(at))
    }

    fn place_unchanged(&self, open: &Open) -> bool {
        let key = &open.store.prompt.tokens()[..open.draft.length];
        let Some(tree) = self.tree(&place(&open.store)) else { return open.draft.from == 0 };
        let matched = tree.matched(key);
        let node = tree.holder(key, matched);
        let same = match open.split {
            Some(split) => node.is_some_and(|node| (node.id, matched - node.start) == split),
            None => node.is_none_or(|node| node.path.len() == matched),
        };
        let taken = key.len() == matched && tree.checkpoint(key).is_some();
        same && matched == open.draft.from && !taken
    }

    fn attach(&mut self, open: &Open, removed: &mut Removed) {
        let Open { store, draft, plan, .. } = open;
        let (place, plan) = (place(store), plan.as_ref());
        let key = store.prompt.tokens()[..draft.length].to_vec();
        let chunks = self.chunks(draft);
        let tree = self.tree_mut(&place);
        if let Some((cut, _)) = &draft.cut
            && let Some(at) = tree.segments.iter().position(|one| one.path == *cut)
        {
            let whole = tree.segments.remove(at);
            removed.segments.push(whole.id);
            let ids = plan.and_then(|plan| plan.split);
            let at = draft.from - whole.start;
            let upper = Segment {
                path: key[..draft.from].to_vec(),
                id: ids.map(|ids| ids.upper),
                labels: whole.labels[..at].to_vec(),
                parts: 1,
                ..whole.clone()
            };
            let (start, labels) = (draft.from, whole.labels[at..].to_vec());
            let lower = Segment { start, id: ids.map(|ids| ids.lower), labels, parts: 1, ..whole };
            tree.segments.extend([upper, lower]);
        }
        for (at, (start, end)) in chunks.into_iter().enumerate() {
            tree.segments.push(Segment {
                path: key[..end].to_vec(),
                start,
                id: plan.map(|plan| plan.segments[at].id),
                bytes_per_token: store.bytes_per_token,
                buffers: u64::from(store.buffers),
                parts: 1,
                labels: vec![store.label; end - start],
            });
        }
        if let (Some(spec), Some(id)) = (store.checkpoint, plan.and_then(|plan| plan.checkpoint)) {
            let (nbytes, buffers, trimmable) = (spec.nbytes, u64::from(spec.buffers), spec.trimmable);
            tree.checkpoints.push(Checkpoint {
                path: key.clone(),
                id,
                nbytes,
                buffers,
                trimmable,
                prompt: 0,
            });
        }
        self.note_end(&place, &key, store.label);
        self.end_lease(&open.holder, removed);
        if place.checkpointed {
            self.touch_checkpoint(&place, &key);
            self.mark_prompt(&place, &key, store.prompt_length);
            self.thin_out(&place, &key, removed);
        } else {
            self.touch_path(&place, &key);
        }
        self.join(&place, &key);
    }

    /// Marks the deepest checkpoint up to the prompt's end as the latest such end.
    pub(super) fn mark_prompt(&mut self, place: &Place, key: &[Token], prompt: Option<usize>) {
        let Some(prompt) = prompt else { return };
        self.prompts += 1;
        let latest = self.prompts;
        let checkpoints = self.tree_mut(place).checkpoints.iter_mut();
        let before = checkpoints.filter(|one| one.path.len() <= prompt && key.starts_with(&one.path));
        if let Some(deepest) = before.max_by_key(|one| one.path.len()) {
            deepest.prompt = latest;
        }
    }

    /// Thins out the checkpoints of the unbranched path through `new`, the newest.
    fn thin_out(&mut self, place: &Place, new: &[Token], removed: &mut Removed) {
        loop {
            let Some(tree) = self.tree(place) else { return };
            let branches = |path: &[Token], at: usize| {
                let here = |one: &&Segment| one.start == at && one.path[..at] == path[..at];
                tree.segments.iter().filter(here).count() > 1
            };
            let start = (1..new.len()).rev().find(|at| branches(new, *at)).unwrap_or(0);
            let on_path = |path: &Path| {
                path.len() > start && new.starts_with(path)
                    || path.starts_with(new) && !(new.len()..path.len()).any(|at| branches(path, at))
            };
            let mut path: Vec<Path> =
                tree.checkpoints.iter().map(|one| one.path.clone()).filter(on_path).collect();
            path.sort_by_key(Vec::len);
            if path.len() <= self.limits.max_checkpoints {
                return;
            }
            let gap = |at: usize| match path.get(at + 1) {
                Some(after) => after.len() - if at == 0 { start } else { path[at - 1].len() },
                None => usize::MAX,
            };
            let marked = |path: &Path| tree.checkpoint(path).map_or(0, |one| one.prompt);
            let prompt = match path.iter().max_by_key(|path| marked(path)).filter(|path| marked(path) > 0) {
                Some(latest) => Some(latest),
                None => path.iter().rfind(|path| path.len() < new.len()),
            };
            let prompt = prompt.filter(|_| self.limits.max_checkpoints > 1);
            let removable = |at: &usize| {
                let path = &path[*at];
                *path != new && Some(path) != prompt && !self.checkpoint_leased(place, path)
            };
            let Some(victim) = (0..path.len()).filter(removable).min_by_key(|at| gap(*at)) else { return };
            let victim = path[victim].clone();
            self.remove_checkpoint(place, &victim, removed);
            self.clean_up(removed);
        }
    }

    /// Plans and commits in one step, without ids.
    pub(crate) fn insert(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        bytes_per_token: u64,
        stamp: u64,
    ) -> (Inserted, Removed) {
        let store = Store {
            namespace: namespace.to_owned(),
            layout: 0,
            prompt: prompt.clone(),
            bytes_per_token,
            buffers: 1,
            checkpoint: None,
            label: 0,
            prompt_length: None,
        };
        let (expected, removed) = self.plan(&store, stamp);
        let held =
            prompt.cut_back(self.tree(&place(&store)).map_or(0, |tree| tree.matched(&prompt.tokens())));
        let (length, new_tokens) = match expected {
            Expected::Ready { length, matched, .. } => {
                if let Some(open) = self.plans.pop() {
                    self.attach(&open, &mut Removed::default());
                }
                (length, length - matched)
            }
            Expected::Already | Expected::TooLarge | Expected::Nothing => (held, 0),
        };
        (Inserted { length, new_tokens, ..Inserted::default() }, removed)
    }
}
