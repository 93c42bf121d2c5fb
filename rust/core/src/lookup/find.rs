//! Finds the longest usable prefix over all layouts of a namespace. Read-only.

use crate::error::Error;
use crate::ids::{NodeId, TreeId};
use crate::index::PrefixIndex;
use crate::keys::query::Query;
use crate::keys::token::{MEDIA_BIT, check_tokens};
use crate::lookup::result::{Match, Reason};
use crate::radix::walk::{Walk, upward, walk};

/// Where in a tree a match ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) tree: TreeId,
    /// The node that holds the last usable token.
    pub(super) node: NodeId,
    /// The node whose checkpoint serves the match.
    pub(super) checkpoint: Option<NodeId>,
}

impl PrefixIndex {
    /// Combines all layouts of the namespace: the longest usable prefix, ties broken by the longest match
    /// and then by the newest layout; the most tokens matched; and the deepest position past the prefix
    /// where a checkpoint would help.
    pub(super) fn find(
        &self,
        namespace: &str,
        query: &Query<'_>,
        limit: usize,
    ) -> Result<(Match, Option<Place>), Error> {
        query.check_length()?;
        let trees = self.trees.forest.of(namespace);
        if trees.is_empty() && !query.checked {
            check_tokens(query.keys, 0)?;
        }
        let empty = Match {
            length: 0,
            matched: 0,
            reason: if limit == 0 { Reason::TooShort } else { Reason::NoEntry },
            checkpoint_at: None,
            layout: None,
            visited: 0,
            compared: 0,
        };
        let (mut best, mut serving) = (empty, None);
        let mut all = empty;
        for &tree in trees {
            let (prefix, place) = self.find_in(tree, query, limit)?;
            all.matched = all.matched.max(prefix.matched);
            all.checkpoint_at = all.checkpoint_at.max(prefix.checkpoint_at);
            all.visited += prefix.visited;
            all.compared += prefix.compared;
            if (prefix.length, prefix.matched) >= (best.length, best.matched) {
                (best, serving) = (prefix, place);
            }
        }
        all.checkpoint_at = all.checkpoint_at.filter(|at| *at > best.length);
        Ok((Match { length: best.length, reason: best.reason, layout: best.layout, ..all }, serving))
    }

    fn find_in(
        &self,
        tree: TreeId,
        query: &Query<'_>,
        limit: usize,
    ) -> Result<(Match, Option<Place>), Error> {
        let Self { trees, .. } = self;
        let (root, checkpointed) = (trees.forest.get(tree).root, trees.forest.get(tree).checkpointed);
        let walked = walk(&trees.arena, root, query)?;
        let usable = query.cuts.back(walked.matched.min(limit));
        let (length, place) = if checkpointed {
            self.checkpointed_prefix(tree, query, walked.node, usable)
        } else {
            let node = self.node_before(walked.node, usable);
            (usable, Some(Place { tree, node, checkpoint: None }))
        };
        let reason = if length > 0 { Reason::Hit } else { miss_reason(query, &walked, usable, limit) };
        let prefix = Match {
            length,
            matched: walked.matched,
            reason,
            checkpoint_at: (checkpointed && length < usable).then_some(usable),
            layout: (length > 0).then_some(trees.forest.get(tree).layout),
            visited: walked.visited,
            compared: walked.compared,
        };
        Ok((prefix, place.filter(|_| length > 0)))
    }

    /// The node at or above `node` that holds the token before `position`.
    fn node_before(&self, mut node: NodeId, position: usize) -> NodeId {
        let arena = &self.trees.arena;
        while !arena[node].is_root() && arena[node].start() >= position {
            node = arena[node].parent;
        }
        node
    }

    /// The longest prefix of at most `usable` tokens that a checkpoint serves: one at its end, or a
    /// trimmable one below it.
    fn checkpointed_prefix(
        &self,
        tree: TreeId,
        query: &Query<'_>,
        deepest: NodeId,
        usable: usize,
    ) -> (usize, Option<Place>) {
        let arena = &self.trees.arena;
        for node in upward(arena, self.node_before(deepest, usable)) {
            let end = arena[node].end as usize;
            let length = query.cuts.back(usable.min(end));
            if length <= arena[node].start() {
                continue;
            }
            let checkpoint = if length == end && arena[node].checkpoint.is_some() {
                node
            } else if arena[node].summary().trimmable {
                self.trimmable(node)
            } else {
                continue;
            };
            return (length, Some(Place { tree, node, checkpoint: Some(checkpoint) }));
        }
        (0, None)
    }

    /// The highest trimmable checkpoint at or below `node`, which must have one.
    fn trimmable(&self, mut node: NodeId) -> NodeId {
        let arena = &self.trees.arena;
        while !arena[node].checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.trimmable) {
            match arena[node].children.first_trimmable() {
                Some(child) => node = child,
                None => unreachable!("node {} has no trimmable checkpoint at or below it", node.0),
            }
        }
        node
    }
}

fn miss_reason(query: &Query<'_>, walked: &Walk, usable: usize, limit: usize) -> Reason {
    let at_media = walked.media || query.keys.get(walked.matched).is_some_and(|key| key & MEDIA_BIT != 0);
    if limit == 0 {
        Reason::TooShort
    } else if usable == 0 && (walked.matched > 0 || at_media) {
        Reason::Media
    } else if usable == 0 {
        Reason::NoEntry
    } else {
        Reason::NoCheckpoint
    }
}
