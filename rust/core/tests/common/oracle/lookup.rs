//! What a lookup must return, and what leasing and taking a path mean.

use kvcache_core::{CheckpointId, LayoutId, LeaseId, Match, Reason, SegmentId};

use super::{Checkpoint, Holder, Lease, Oracle, Path, Place, Removed, Segment, Tree};
use crate::common::prompt::{Prompt, Token};

/// What serves a hit.
#[derive(Clone, Debug)]
pub(super) struct Serving {
    place: Place,
    length: usize,
    /// The path of the segment that holds the last usable token.
    node: Path,
    checkpoint: Option<Path>,
}

/// What an acquired hit must return.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) leased: bool,
    pub(crate) pieces: Vec<(Option<SegmentId>, usize)>,
    pub(crate) checkpoint: Option<(CheckpointId, usize)>,
}

pub(super) fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Tree {
    pub(super) fn matched(&self, tokens: &[Token]) -> usize {
        self.segments.iter().map(|one| common(&one.path, tokens)).max().unwrap_or(0)
    }

    /// The segment that holds the token before `position`.
    pub(super) fn holder(&self, tokens: &[Token], position: usize) -> Option<&Segment> {
        self.segments.iter().find(|one| {
            one.start < position && position <= one.path.len() && one.path[..position] == tokens[..position]
        })
    }

    pub(super) fn checkpoint(&self, path: &[Token]) -> Option<&Checkpoint> {
        self.checkpoints.iter().find(|one| one.path == path)
    }

    /// Whether all stored prompts that start with these tokens continue with the same media span.
    fn continues_with_media(&self, tokens: &[Token]) -> bool {
        let starts = |one: &&Segment| one.path.len() > tokens.len() && one.path.starts_with(tokens);
        let mut next = self.segments.iter().filter(starts).map(|one| one.path[tokens.len()]);
        let Some(first) = next.next() else { return false };
        matches!(first, Token::Media(..)) && next.all(|token| token == first)
    }
}

impl Oracle {
    fn find(&self, namespace: &str, prompt: &Prompt, limit: usize) -> (Match, Option<Serving>) {
        let reason = if limit == 0 { Reason::TooShort } else { Reason::NoEntry };
        let empty = Match {
            length: 0,
            matched: 0,
            reason,
            checkpoint_at: None,
            layout: None,
            visited: 0,
            compared: 0,
        };
        let trees = || self.trees.iter().filter(|tree| tree.place.namespace == namespace);
        let prefix = trees().map(|tree| self.find_in(tree, prompt, limit));
        // Ties go to the newest layout.
        let best = prefix.max_by_key(|(prefix, _)| (prefix.length, prefix.matched));
        let Some((mut best, serving)) = best else { return (empty, None) };
        best.matched = trees().map(|tree| tree.matched(&prompt.tokens())).max().unwrap_or_default();
        // Some tree with checkpoints may have matched past the prefix that serves.
        let further = trees()
            .filter(|tree| tree.place.checkpointed)
            .map(|tree| prompt.cut_back(tree.matched(&prompt.tokens()).min(limit)));
        best.checkpoint_at = further.filter(|at| *at > best.length).max();
        (best, serving)
    }

    fn find_in(&self, tree: &Tree, prompt: &Prompt, limit: usize) -> (Match, Option<Serving>) {
        let tokens = prompt.tokens();
        let matched = tree.matched(&tokens);
        let usable = prompt.cut_back(matched.min(limit));
        let serving = self.serving(tree, prompt, usable);
        let length = serving.as_ref().map_or(0, |serving| serving.length);
        let at_media = match tokens.get(matched) {
            None => false,
            Some(Token::Media(..)) => true,
            Some(Token::Text(_)) => tree.continues_with_media(&tokens[..matched]),
        };
        let reason = match () {
            () if length > 0 => Reason::Hit,
            () if limit == 0 => Reason::TooShort,
            () if usable > 0 => Reason::NoCheckpoint,
            () if matched > 0 || at_media => Reason::Media,
            () => Reason::NoEntry,
        };
        let prefix = Match {
            length,
            matched,
            reason,
            checkpoint_at: (tree.place.checkpointed && length < usable).then_some(usable),
            layout: (length > 0).then_some(LayoutId(tree.place.layout)),
            visited: 0,
            compared: 0,
        };
        (prefix, serving)
    }

    fn serving(&self, tree: &Tree, prompt: &Prompt, usable: usize) -> Option<Serving> {
        let tokens = prompt.tokens();
        let serving = |length: usize, node, checkpoint| {
            Some(Serving { place: tree.place.clone(), length, node, checkpoint })
        };
        if !tree.place.checkpointed {
            let node = tree.holder(&tokens, usable)?.path.clone();
            return serving(usable, node, None);
        }
        let cuttable = (1..=usable).rev().filter(|at| prompt.cut_back(*at) == *at);
        for length in cuttable {
            let prefix = &tokens[..length];
            let node = tree.holder(&tokens, length)?.path.clone();
            if tree.checkpoint(prefix).is_some() {
                return serving(length, node, Some(prefix.to_vec()));
            }
            if let Some(below) = self.trimmable(tree, prefix) {
                return serving(length, node, Some(below));
            }
        }
        None
    }

    /// The trimmable checkpoint below that serves: the first on each way down, and of those the one with the
    /// smallest keys, where media are ordered by when they were first stored.
    fn trimmable(&self, tree: &Tree, tokens: &[Token]) -> Option<Path> {
        let below: Vec<&Path> = tree
            .checkpoints
            .iter()
            .filter(|one| one.trimmable && one.path.len() > tokens.len() && one.path.starts_with(tokens))
            .map(|one| &one.path)
            .collect();
        let first = below
            .iter()
            .filter(|path| !below.iter().any(|other| other.len() < path.len() && path.starts_with(other)));
        let key = |token: &Token| match *token {
            Token::Text(id) => (0, id as usize),
            Token::Media(digest, length) => {
                (1, self.contents.iter().position(|one| *one == (digest, length)).unwrap_or(usize::MAX))
            }
        };
        first.min_by_key(|path| path.iter().map(key).collect::<Vec<_>>()).map(|path| (*path).clone())
    }

    pub(crate) fn lookup(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        limit: usize,
        touch: Option<u64>,
    ) -> Match {
        let (prefix, serving) = self.find(namespace, prompt, limit);
        if let (Some(serving), Some(stamp)) = (serving, touch) {
            self.tick(stamp);
            match &serving.checkpoint {
                Some(path) => self.touch_checkpoint(&serving.place, path),
                None => self.touch_path(&serving.place, &serving.node),
            }
        }
        prefix
    }

    fn parts(&self, serving: &Serving) -> Parts {
        let Some(tree) = self.tree(&serving.place) else { return Parts::default() };
        let mut on: Vec<&Segment> =
            tree.segments.iter().filter(|one| serving.node.starts_with(&one.path)).collect();
        on.sort_by_key(|one| one.start);
        let pieces = on.iter().map(|one| (one.id, one.path.len().min(serving.length) - one.start)).collect();
        let checkpoint = serving.checkpoint.as_ref().and_then(|path| tree.checkpoint(path));
        Parts { leased: true, pieces, checkpoint: checkpoint.map(|one| (one.id, one.path.len())) }
    }

    pub(super) fn lease(&mut self, lease: Lease) {
        for tree in self.trees.iter().filter(|tree| tree.place == lease.place) {
            let covered =
                tree.segments.iter().map(|one| &one.path).filter(|path| lease.path.starts_with(path));
            let units: Vec<&Path> =
                if tree.place.checkpointed { lease.checkpoint.iter().collect() } else { covered.collect() };
            self.recency.retain(|unit| unit.place != lease.place || !units.contains(&&unit.path));
        }
        self.leases.push(lease);
    }

    pub(crate) fn acquire(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        limit: usize,
        id: Option<LeaseId>,
    ) -> (Match, Parts) {
        let (prefix, serving) = self.find(namespace, prompt, limit);
        let Some(serving) = serving else { return (prefix, Parts::default()) };
        let parts = self.parts(&serving);
        self.lease_serving(serving, id);
        (prefix, parts)
    }

    fn lease_serving(&mut self, serving: Serving, id: Option<LeaseId>) {
        let Serving { place, node, checkpoint, .. } = serving;
        let deeper = checkpoint.clone().filter(|path| path.len() > node.len());
        let holder = Holder::Caller(id.unwrap_or(LeaseId(0)));
        self.lease(Lease { holder, place, path: deeper.unwrap_or(node), checkpoint });
    }

    pub(crate) fn take(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        limit: usize,
        id: Option<LeaseId>,
    ) -> (Match, Parts, Removed) {
        let mut removed = Removed::default();
        let (prefix, serving) = self.find(namespace, prompt, limit);
        let Some(mut serving) = serving else { return (prefix, Parts::default(), removed) };
        let mut parts = self.parts(&serving);
        let whole = serving.node.len() == serving.length
            && serving.checkpoint.as_ref().is_none_or(|path| *path == serving.node);
        while whole && let Some(start) = self.exclusive(&serving.place, &serving.node) {
            let place = serving.place.clone();
            self.remove_segments(&place, &mut removed, |one| one.path == serving.node);
            serving.node.truncate(start);
            serving.checkpoint = None;
        }
        parts.leased = !serving.node.is_empty();
        if parts.leased {
            self.lease_serving(serving, id);
        }
        self.clean_up(&mut removed);
        (prefix, parts, removed)
    }

    /// The start of the segment that ends with `path`, if nothing continues or leases it.
    fn exclusive(&self, place: &Place, path: &[Token]) -> Option<usize> {
        let segments = &self.tree(place)?.segments;
        let continued = segments.iter().any(|one| one.path.len() > path.len() && one.path.starts_with(path));
        let free = !continued && !self.covered(place, path);
        segments.iter().find(|one| one.path == path).filter(|_| free).map(|one| one.start)
    }

    pub(crate) fn release(&mut self, id: LeaseId, stamp: u64) -> Removed {
        self.tick(stamp);
        let mut removed = Removed::default();
        self.end_lease(&Holder::Caller(id), &mut removed);
        removed
    }

    pub(super) fn end_lease(&mut self, holder: &Holder, removed: &mut Removed) {
        let Some(at) = self.leases.iter().position(|lease| lease.holder == *holder) else { return };
        let Lease { place, path, checkpoint, .. } = self.leases.remove(at);
        if !place.checkpointed {
            // Touching skips what other leases cover; the rest of this path was not in the list.
            self.touch_path(&place, &path);
        } else if let Some(path) = checkpoint {
            self.touch_checkpoint(&place, &path);
        }
        self.clean_up(removed);
    }
}
