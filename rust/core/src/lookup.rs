//! Lookup: the longest usable prefix, and what a fetch needs to copy it.

use crate::error::Error;
use crate::evict::Dropped;
use crate::ids::{CheckpointId, LayoutId, LeaseId, NodeId, SegmentId, TreeId};
use crate::index::PrefixIndex;
use crate::keys::{MEDIA_BIT, Query, check_tokens};
use crate::lease::Lease;
use crate::radix::walk::{Walk, upward, walk};

/// Why a lookup reuses what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// At least one token is reused.
    Hit,
    /// No stored prompt starts like this one.
    NoEntry,
    /// Tokens matched, but no checkpoint stands at or before the match.
    NoCheckpoint,
    /// The match ended at other media, or inside a media span, before any usable token.
    Media,
    /// The caller can use none: the engine needs one token to run, and there are no two.
    TooShort,
}

/// What a lookup found. Lengths are in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Reusable tokens.
    pub length: usize,
    /// Tokens matched in the tree, at least `length`.
    pub matched: usize,
    /// Why.
    pub reason: Reason,
    /// Where a checkpoint would have helped: the tokens matched further than the nearest one.
    pub checkpoint_at: Option<usize>,
    /// The layout of the tree that serves it.
    pub layout: Option<LayoutId>,
    /// Nodes compared with the query.
    pub visited: usize,
    /// Keys compared with the query, at most.
    pub compared: usize,
}

/// One segment's part in a hit, in order from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The segment.
    pub segment: SegmentId,
    /// How many of its leading tokens are used.
    pub tokens: usize,
}

/// A hit's arrays, held by a lease until it is released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Holds the path; `None` on a miss.
    pub lease: Option<LeaseId>,
    /// Segments that make up the hit.
    pub pieces: Vec<Piece>,
    /// The checkpoint to continue from and its position, which is beyond the hit's length where
    /// its windows had not rotated and are to be trimmed.
    pub checkpoint: Option<(CheckpointId, usize)>,
}

/// A hit of which the exclusively held part has left the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The whole hit. The lease covers the part that stays.
    pub scope: Scope,
    /// What is the caller's now.
    pub dropped: Dropped,
}

/// Where in a tree a match ends.
#[derive(Clone, Copy, Debug)]
struct Place {
    tree: TreeId,
    /// The node that holds the last usable token.
    node: NodeId,
    /// The node whose checkpoint serves the match.
    checkpoint: Option<NodeId>,
}

impl PrefixIndex {
    /// Finds the longest prefix of at most `limit` tokens that a namespace can serve. With
    /// `touch`, what serves it becomes the most recently used; otherwise nothing changes.
    /// O(len(query) + nodes on the path) a layout; the number of stored prompts plays no part.
    ///
    /// # Errors
    /// An invalid token anywhere in the query.
    pub fn match_prefix(
        &mut self,
        namespace: &str,
        query: &Query<'_>,
        limit: usize,
        touch: Option<u64>,
    ) -> Result<Match, Error> {
        let (found, place) = self.find(namespace, query, limit)?;
        if touch.is_some() {
            self.asked(query);
        }
        if let (Some(place), Some(stamp)) = (place, touch) {
            let stamp = self.tick(stamp);
            self.served(place);
            match place.checkpoint {
                Some(node) => self.trees.touch_checkpoint(node, stamp),
                None => self.trees.touch_path(place.node, stamp),
            }
        }
        Ok(found)
    }

    /// As [`Self::match_prefix`], and leases what a fetch copies until [`Self::release`].
    ///
    /// # Errors
    /// An invalid token anywhere in the query.
    pub fn acquire(
        &mut self,
        namespace: &str,
        query: &Query<'_>,
        limit: usize,
    ) -> Result<(Match, Scope), Error> {
        let (found, place) = self.find(namespace, query, limit)?;
        self.asked(query);
        let scope = place.map_or_else(Scope::default, |place| self.lease(place, found.length));
        Ok((found, scope))
    }

    /// As [`Self::acquire`], and takes the part of the path that nothing else continues, branches
    /// from or leases out of the index. Checkpoints on that part go with it.
    ///
    /// # Errors
    /// An invalid token anywhere in the query.
    pub fn take(
        &mut self,
        namespace: &str,
        query: &Query<'_>,
        limit: usize,
    ) -> Result<(Match, Taken), Error> {
        let (found, place) = self.find(namespace, query, limit)?;
        self.asked(query);
        let Some(mut place) = place else { return Ok((found, Taken::default())) };
        let mut scope = self.scope(place, found.length);
        let mut dropped = Dropped::default();
        let whole = self.ends_at(place, found.length);
        while whole && self.exclusive(place.node) {
            let parent = self.trees.arena[place.node].parent;
            self.trees.remove_leaf(place.node, &mut dropped);
            place = Place { node: parent, checkpoint: None, ..place };
        }
        if self.trees.arena[place.node].is_root() {
            self.trees.remove_if_empty(place.tree);
        } else {
            scope.lease = Some(self.lease_path(place));
        }
        Ok((found, Taken { scope, dropped }))
    }

    /// How many tokens [`Self::take`] would move out of the index now. Changes nothing.
    ///
    /// # Errors
    /// An invalid token anywhere in the query.
    pub fn takeable(&self, namespace: &str, query: &Query<'_>, limit: usize) -> Result<usize, Error> {
        let (found, place) = self.find(namespace, query, limit)?;
        let Some(place) = place else { return Ok(0) };
        let arena = &self.trees.arena;
        if !self.ends_at(place, found.length) {
            return Ok(0);
        }
        let mut kept = found.length;
        for id in upward(arena, place.node) {
            let node = &arena[id];
            let alone = match node.children.len() {
                0 => true,
                1 => kept < found.length,
                _ => false,
            };
            if !alone || node.leases > 0 {
                break;
            }
            kept = node.start();
        }
        Ok(found.length - kept)
    }

    /// The match ends with the place's node, and is served by that node's own checkpoint if by any.
    fn ends_at(&self, place: Place, length: usize) -> bool {
        self.trees.arena[place.node].end as usize == length
            && place.checkpoint.is_none_or(|node| node == place.node)
    }

    /// Nothing hangs on the node, and nobody holds it.
    fn exclusive(&self, id: NodeId) -> bool {
        let node = &self.trees.arena[id];
        !node.is_root() && node.children.is_empty() && node.leases == 0
    }

    /// Ends a lease. What it covered becomes the most recently used. Void and released leases are
    /// passed over. What comes back is KV that nothing but the lease kept.
    pub fn release(&mut self, lease: LeaseId, stamp: u64) -> Dropped {
        let stamp = self.tick(stamp);
        self.leases.release(&mut self.trees, lease, stamp)
    }

    fn lease(&mut self, place: Place, length: usize) -> Scope {
        let mut scope = self.scope(place, length);
        scope.lease = Some(self.lease_path(place));
        scope
    }

    fn lease_path(&mut self, place: Place) -> LeaseId {
        self.served(place);
        let id = LeaseId(self.ids.next());
        // A checkpoint is at the match or below it, and its path covers the match.
        let node = place.checkpoint.unwrap_or(place.node);
        let lease = Lease { tree: place.tree, node, checkpoint: place.checkpoint };
        self.leases.acquire(&mut self.trees, id, lease);
        id
    }

    /// A request looks something up.
    fn asked(&mut self, query: &Query<'_>) {
        if let Some(ranked) = &mut self.trees.ranked {
            ranked.request(query.len());
        }
    }

    /// It is served from here.
    fn served(&mut self, place: Place) {
        self.trees.hit(place.checkpoint.unwrap_or(place.node));
    }

    fn scope(&self, place: Place, length: usize) -> Scope {
        let arena = &self.trees.arena;
        let mut pieces: Vec<Piece> = upward(arena, place.node)
            .map(|id| Piece {
                segment: arena[id].segment,
                tokens: arena[id].len().min(length - arena[id].start()),
            })
            .collect();
        pieces.reverse();
        let checkpoint = place.checkpoint.and_then(|id| {
            let checkpoint = arena[id].checkpoint.as_ref()?;
            Some((checkpoint.id, arena[id].end as usize))
        });
        Scope { lease: None, pieces, checkpoint }
    }

    /// The best over all layouts of the namespace; the newest layout where several are equal.
    fn find(
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
        let nothing = Match {
            length: 0,
            matched: 0,
            reason: if limit == 0 { Reason::TooShort } else { Reason::NoEntry },
            checkpoint_at: None,
            layout: None,
            visited: 0,
            compared: 0,
        };
        let mut best = (nothing, None);
        for &tree in trees {
            let (mut found, place) = self.find_in(tree, query, limit)?;
            found.visited += best.0.visited;
            found.compared += best.0.compared;
            if (found.length, found.matched) >= (best.0.length, best.0.matched) {
                best = (found, place);
            }
            best.0.visited = found.visited;
            best.0.compared = found.compared;
        }
        Ok(best)
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
            self.usable_checkpoint(tree, query, walked.node, usable)
        } else {
            let node = self.holder(walked.node, usable);
            (usable, Some(Place { tree, node, checkpoint: None }))
        };
        let reason = if length > 0 { Reason::Hit } else { miss(query, &walked, usable, limit) };
        let found = Match {
            length,
            matched: walked.matched,
            reason,
            checkpoint_at: (checkpointed && length < usable).then_some(usable),
            layout: (length > 0).then_some(trees.forest.get(tree).layout),
            visited: walked.visited,
            compared: walked.compared,
        };
        Ok((found, place.filter(|_| length > 0)))
    }

    /// The node at or above `node` that holds the token before `position`.
    fn holder(&self, mut node: NodeId, position: usize) -> NodeId {
        let arena = &self.trees.arena;
        while !arena[node].is_root() && arena[node].start() >= position {
            node = arena[node].parent;
        }
        node
    }

    /// The longest prefix up to `usable` that a checkpoint serves: one that stands at its end, or one
    /// below it that can be trimmed.
    fn usable_checkpoint(
        &self,
        tree: TreeId,
        query: &Query<'_>,
        deepest: NodeId,
        usable: usize,
    ) -> (usize, Option<Place>) {
        let arena = &self.trees.arena;
        for node in upward(arena, self.holder(deepest, usable)) {
            let end = arena[node].end as usize;
            let length = query.cuts.back(usable.min(end));
            if length <= arena[node].start() {
                continue;
            }
            let checkpoint = if length == end && arena[node].checkpoint.is_some() {
                node
            } else if arena[node].trimmable > 0 {
                self.trimmable(node)
            } else {
                continue;
            };
            return (length, Some(Place { tree, node, checkpoint: Some(checkpoint) }));
        }
        (0, None)
    }

    /// The highest trimmable checkpoint at or below `node`, of which there is one.
    fn trimmable(&self, mut node: NodeId) -> NodeId {
        let arena = &self.trees.arena;
        while !arena[node].checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.trimmable) {
            // By the smallest key, so that ranks with equal trees choose alike.
            let below = arena[node].children.iter().filter(|(_, id)| arena[*id].trimmable > 0);
            match below.min_by_key(|(key, _)| *key) {
                Some((_, child)) => node = child,
                None => unreachable!("node {} counts a trimmable checkpoint it lacks", node.0),
            }
        }
        node
    }
}

fn miss(query: &Query<'_>, walked: &Walk, usable: usize, limit: usize) -> Reason {
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
