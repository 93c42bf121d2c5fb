//! Drafting: finds a store's place, leases it, and works out how much fits.

use crate::dropped::Dropped;
use crate::error::Error;
use crate::ids::{NodeId, PlanId};
use crate::index::PrefixIndex;
use crate::keys::token::check_tokens;
use crate::radix::walk::{Walk, walk};
use crate::store::in_flight::{Draft, Place};
use crate::store::request::{Drafted, Outcome, Planned, StoreRequest};
use crate::trees::join::Joined;

impl PrefixIndex {
    /// Plans a store and makes room for it. Also returns what was evicted. O(len(query)).
    ///
    /// # Errors
    /// An invalid token in the key, or media keys that were built for a lookup.
    pub fn plan(&mut self, request: &StoreRequest<'_>, stamp: u64) -> Result<(Planned, Dropped), Error> {
        let mut dropped = Dropped::default();
        let drafted = match self.draft(request, stamp)? {
            Outcome::Open(drafted) => drafted,
            Outcome::Already(joined) => return Ok((Planned::Already(joined), dropped)),
            Outcome::InsideMedia => return Ok((Planned::InsideMedia, dropped)),
        };
        let Drafted { id, length, length_recopied, .. } = drafted;
        if length.max(length_recopied) == 0 {
            return Ok((Planned::TooLarge, self.abort(id)?));
        }
        let recopy = length_recopied > length;
        let mut draft = self.drafts.remove(id).ok_or(Error::UnknownPlan)?;
        let place = if recopy { self.fitting_recopied(&draft) } else { None }.unwrap_or(draft.place);
        dropped.extend(self.move_to(&mut draft, Place { length: length.max(length_recopied), ..place }));
        let cost = self.cost(draft.shape, draft.checkpoint, &draft.place);
        dropped.extend(self.evict(self.over(cost.nbytes, cost.buffers)));
        Ok((Planned::Ready(self.reserve(id, draft)), dropped))
    }

    /// Finds a store's place and leases it. O(len(query)).
    ///
    /// # Errors
    /// An invalid token in the key, or media keys that were built for a lookup.
    pub fn draft(&mut self, request: &StoreRequest<'_>, stamp: u64) -> Result<Outcome, Error> {
        request.query.check_length()?;
        request.query.check_contents()?;
        let n = request.query.len();
        let length = request.query.cuts.back(n);
        let checkpointed = request.checkpoint.is_some();
        if length == 0 || checkpointed && length < n {
            self.tick(stamp);
            return Ok(Outcome::InsideMedia);
        }
        let tree = self.trees.forest.find(request.namespace, request.layout, checkpointed);
        let place = if let Some(tree) = tree {
            let root = self.trees.forest.get(tree).root;
            let walked = walk(&self.trees.arena, root, &request.query)?;
            let stamp = self.tick(stamp);
            if walked.matched >= length
                && let Some(joined) = self.held(request, &walked, length, stamp)
            {
                return Ok(Outcome::Already(joined));
            }
            self.place_after(&walked, length)
        } else {
            if !request.query.checked {
                check_tokens(request.query.keys, 0)?;
            }
            self.tick(stamp);
            Place { from: 0, node: NodeId::NONE, cut: None, length }
        };
        let mut draft = Draft {
            namespace: request.namespace.into(),
            layout: request.layout,
            keys: request.query.keys[..length].into(),
            cuts: request.query.cuts.clone(),
            shape: request.shape(),
            checkpoint: request.checkpoint,
            prompt: request.prompt,
            lease: None,
            tree,
            place,
        };
        draft.lease = self.protect(tree, &place);
        let id = PlanId(self.ids.next());
        let drafted = Drafted {
            id,
            matched: place.from,
            length: self.fitting(&draft, &place, self.room()).unwrap_or_default(),
            length_recopied: self.fitting_recopied(&draft).map_or(0, |place| place.length),
        };
        if !draft.cuts.is_empty() {
            self.trees.media.hold(&draft.keys);
        }
        self.drafts.insert(id, draft);
        Ok(Outcome::Open(drafted))
    }

    /// If the whole key is held, refreshes it, records its end, and joins what can be joined.
    pub(super) fn held(
        &mut self,
        request: &StoreRequest<'_>,
        walked: &Walk,
        length: usize,
        stamp: u64,
    ) -> Option<Vec<Joined>> {
        let mut node = walked.node;
        while self.trees.arena[node].start() >= length {
            node = self.trees.arena[node].parent;
        }
        if request.checkpoint.is_some() {
            let at = &self.trees.arena[node];
            if at.end as usize != length || at.checkpoint.is_none() {
                return None;
            }
        }
        let at = length - self.trees.arena[node].start();
        self.trees.add_end(node, at, request.label);
        self.touch_end(node, request.checkpoint.is_some(), request.prompt, stamp);
        Some(self.trees.join_path(node, self.segment_tokens, &mut self.ids))
    }

    /// Touches the unit or path that a store ends with, and marks the end of its prompt.
    pub(super) fn touch_end(&mut self, node: NodeId, checkpointed: bool, prompt: Option<usize>, stamp: u64) {
        if checkpointed {
            self.trees.touch_checkpoint(node, stamp);
            self.mark_prompt(node, prompt);
        } else {
            self.trees.touch_path(node, stamp);
        }
    }
}
