//! Lookups: what a prompt can reuse, and the leases under which a fetch copies it.

mod find;
pub(crate) mod found;

use crate::dropped::Dropped;
use crate::error::Error;
use crate::ids::{LeaseId, NodeId, SegmentId};
use crate::index::PrefixIndex;
use crate::keys::query::Query;
use crate::lease::Lease;
use crate::lookup::find::Place;
use crate::lookup::found::{Match, Piece, Scope, Taken};
use crate::radix::walk::upward;

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
        if let (Some(place), Some(stamp)) = (place, touch) {
            let stamp = self.tick(stamp);
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
        let Some(mut place) = place else { return Ok((found, Taken::default())) };
        let mut scope = self.scope(place, found.length);
        let mut dropped = Dropped::default();
        let whole = self.ends_at(place, found.length);
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
            // All but the match's last node have lost the child that was taken before.
            let lost = usize::from(kept < found.length);
            if !node.is_free(node.children.len() - lost) {
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

    /// Ends a lease. What it covered becomes the most recently used. Void and released leases are
    /// passed over. Returns the KV that nothing but the lease kept.
    pub fn release(&mut self, lease: LeaseId, stamp: u64) -> Dropped {
        let stamp = self.tick(stamp);
        self.leases.release(&mut self.trees, lease, stamp)
    }

    /// The caller has rewritten the arrays of a segment on a lease's path into this number of parts, at
    /// most as many as it had. Whether the segment is still there: otherwise the rewritten arrays are of no
    /// use. O(nodes on the path).
    pub fn compacted(&mut self, lease: LeaseId, segment: SegmentId, parts: u32) -> bool {
        let Some(lease) = self.leases.get(lease) else { return false };
        let arena = &self.trees.arena;
        let found = upward(arena, lease.node).find(|id| arena[*id].segment == segment);
        match found.filter(|id| (1..=arena[*id].parts).contains(&parts)) {
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
        // A checkpoint is at the match or below it, and its path covers the match.
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
