//! Lookups: what a prompt can reuse, and the leases that protect it while a fetch copies it.

mod find;
pub(crate) mod result;

use crate::dropped::Dropped;
use crate::error::Error;
use crate::ids::{LeaseId, NodeId, SegmentId};
use crate::index::PrefixIndex;
use crate::keys::query::Query;
use crate::lease::Lease;
use crate::lookup::find::Place;
use crate::lookup::result::{Match, Piece, Scope, Taken};
use crate::radix::walk::upward;

impl PrefixIndex {
    /// Finds the longest prefix of at most `limit` tokens that a namespace can serve. With `touch`, the
    /// units that serve it become the most recently used; otherwise nothing changes. O(len(query) + nodes
    /// on the path) per layout, independent of the number of stored prompts.
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
        let (prefix, place) = self.find(namespace, query, limit)?;
        if let (Some(place), Some(stamp)) = (place, touch) {
            let stamp = self.tick(stamp);
            match place.checkpoint {
                Some(node) => self.trees.touch_checkpoint(node, stamp),
                None => self.trees.touch_path(place.node, stamp),
            }
        }
        Ok(prefix)
    }

    /// Like [`Self::match_prefix`], and leases the hit until [`Self::release`] so that a fetch can copy it.
    ///
    /// # Errors
    /// An invalid token anywhere in the query.
    pub fn acquire(
        &mut self,
        namespace: &str,
        query: &Query<'_>,
        limit: usize,
    ) -> Result<(Match, Scope), Error> {
        let (prefix, place) = self.find(namespace, query, limit)?;
        let scope = place.map_or_else(Scope::default, |place| self.lease(place, prefix.length));
        Ok((prefix, scope))
    }

    /// Like [`Self::acquire`], and moves the end of the path out of the index, as far up as nothing else
    /// continues it, branches from it or leases it. Checkpoints on that part move with it.
    ///
    /// # Errors
    /// An invalid token anywhere in the query.
    pub fn take(
        &mut self,
        namespace: &str,
        query: &Query<'_>,
        limit: usize,
    ) -> Result<(Match, Taken), Error> {
        let (prefix, place) = self.find(namespace, query, limit)?;
        let Some(mut place) = place else { return Ok((prefix, Taken::default())) };
        let mut scope = self.scope(place, prefix.length);
        let mut dropped = Dropped::default();
        let whole = self.ends_at(place, prefix.length);
        let free = |index: &Self, node: NodeId| {
            let node = &index.trees.arena[node];
            node.is_free(node.children.len())
        };
        while whole && free(self, place.node) {
            let parent = self.trees.arena[place.node].parent;
            self.trees.remove_leaf(place.node, &mut dropped);
            place = Place { node: parent, checkpoint: None, ..place };
        }
        if self.trees.arena[place.node].is_root() {
            self.trees.remove_if_empty(place.tree);
        } else {
            scope.lease = Some(self.lease_path(place));
        }
        Ok((prefix, Taken { scope, dropped }))
    }

    /// How many tokens [`Self::take`] would move out of the index. Changes nothing.
    ///
    /// # Errors
    /// An invalid token anywhere in the query.
    pub fn takeable(&self, namespace: &str, query: &Query<'_>, limit: usize) -> Result<usize, Error> {
        let (prefix, place) = self.find(namespace, query, limit)?;
        let Some(place) = place else { return Ok(0) };
        let arena = &self.trees.arena;
        if !self.ends_at(place, prefix.length) {
            return Ok(0);
        }
        let mut kept = prefix.length;
        for id in upward(arena, place.node) {
            let node = &arena[id];
            // Above the match's last node, each node has lost the child taken just before.
            let taken = usize::from(kept < prefix.length);
            if !node.is_free(node.children.len() - taken) {
                break;
            }
            kept = node.start();
        }
        Ok(prefix.length - kept)
    }

    /// Whether the match ends with the place's node, and uses no checkpoint but that node's own.
    fn ends_at(&self, place: Place, length: usize) -> bool {
        self.trees.arena[place.node].end as usize == length
            && place.checkpoint.is_none_or(|node| node == place.node)
    }

    /// Ends a lease. The units it covered become the most recently used. Returns the KV that only the
    /// lease kept. Does nothing if the lease is released or void.
    pub fn release(&mut self, lease: LeaseId, stamp: u64) -> Dropped {
        let stamp = self.tick(stamp);
        self.leases.release(&mut self.trees, lease, stamp)
    }

    /// Records that the caller has rewritten a segment on a lease's path into `parts` parts, at most the
    /// number it had. Returns false if the segment is gone and the rewritten arrays are useless. O(nodes on
    /// the path).
    pub fn compacted(&mut self, lease: LeaseId, segment: SegmentId, parts: u32) -> bool {
        let Some(lease) = self.leases.get(lease) else { return false };
        let arena = &self.trees.arena;
        let node = upward(arena, lease.node).find(|id| arena[*id].segment == segment);
        match node.filter(|id| (1..=arena[*id].parts).contains(&parts)) {
            Some(id) => self.trees.set_parts(id, parts),
            None => return false,
        }
        true
    }

    fn lease(&mut self, place: Place, length: usize) -> Scope {
        let mut scope = self.scope(place, length);
        scope.lease = Some(self.lease_path(place));
        scope
    }

    fn lease_path(&mut self, place: Place) -> LeaseId {
        let id = LeaseId(self.ids.next());
        // The checkpoint is at the end of the match or below it, so its path covers the match.
        let node = place.checkpoint.unwrap_or(place.node);
        let lease = Lease { tree: place.tree, node, checkpoint: place.checkpoint };
        self.leases.acquire(&mut self.trees, id, lease);
        id
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
}
