//! Inserting: a store without arrays, in one step.

use crate::dropped::Dropped;
use crate::error::Error;
use crate::evict::Need;
use crate::ids::{LayoutId, NodeId, SegmentId};
use crate::index::PrefixIndex;
use crate::keys::query::Query;
use crate::keys::token::check_tokens;
use crate::radix::walk::walk;
use crate::store::fit::blocks;
use crate::store::in_flight::Place;
use crate::store::request::{Planned, StoreRequest};

/// What [`PrefixIndex::insert`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Tokens now held for the key; fewer than given if not all of them fit.
    pub length: usize,
    /// Tokens not held before.
    pub new_tokens: usize,
    /// What was evicted to make room.
    pub evicted: Dropped,
}

impl PrefixIndex {
    /// Plans, evicts and commits in one step. Bookkeeping only, for trees of full-attention layers. Keeps
    /// the longest prefix that fits the limits. O(len(query)).
    ///
    /// # Errors
    /// An invalid token.
    pub fn insert(
        &mut self,
        namespace: &str,
        query: &Query<'_>,
        bytes_per_token: u64,
        stamp: u64,
    ) -> Result<Inserted, Error> {
        let request = StoreRequest {
            namespace,
            layout: LayoutId(0),
            query: *query,
            bytes_per_token,
            segment_buffers: 1,
            checkpoint: None,
            label: 0,
            prompt: None,
        };
        if let Some(inserted) = self.append(&request, stamp)? {
            return Ok(inserted);
        }
        let (planned, evicted) = self.plan(&request, stamp)?;
        let plan = match planned {
            Planned::Ready(plan) => plan,
            Planned::Already(_) | Planned::TooLarge | Planned::InsideMedia => {
                let length = self.match_prefix(namespace, query, query.len(), None)?.length;
                return Ok(Inserted { length, new_tokens: 0, evicted });
            }
        };
        // Nothing happens between plan and commit, so the commit cannot be stale. What it drops is a
        // split segment, replaced by its halves: that is not an eviction.
        self.commit(plan.id, stamp)?;
        Ok(Inserted { length: plan.length, new_tokens: plan.length - plan.matched, evicted })
    }

    /// Handles the usual cases without copying the key into a plan: all of it is held, or all of it fits
    /// without a split. Returns `None` in any other case, and changes nothing.
    fn append(&mut self, request: &StoreRequest<'_>, stamp: u64) -> Result<Option<Inserted>, Error> {
        let query = &request.query;
        query.check_length()?;
        query.check_contents()?;
        let length = query.cuts.back(query.len());
        if length == 0 {
            return Ok(None);
        }
        let tree = self.trees.forest.find(request.namespace, request.layout, false);
        let mut place = Place { from: 0, node: NodeId::NONE, cut: None, length };
        if let Some(tree) = tree {
            let walked = walk(&self.trees.arena, self.trees.forest.get(tree).root, query)?;
            if walked.matched >= length {
                let stamp = self.tick(stamp);
                self.held(request, &walked, length, stamp);
                return Ok(Some(Inserted { length, ..Inserted::default() }));
            }
            place = self.place_after(&walked, length);
            if place.cut.is_some() {
                return Ok(None);
            }
        } else if !query.checked {
            check_tokens(query.keys, 0)?;
        }
        let shape = request.shape();
        let cost = self.cost(shape, None, &place);
        let over = self.over(cost.nbytes, cost.buffers);
        let mut evicted = Dropped::default();
        if over != Need::default() {
            let lease = self.protect(tree, &place);
            let fits = self.room().holds(cost.nbytes, cost.buffers);
            if fits {
                evicted = self.evict(over);
            }
            self.unprotect(lease, &mut evicted);
            if !fits {
                return Ok(None);
            }
        }
        let stamp = self.tick(stamp);
        let trees = &mut self.trees;
        let tree = trees.forest.find_or_add(&mut trees.arena, request.namespace, request.layout, false);
        let mut last = if place.from == 0 { trees.forest.get(tree).root } else { place.node };
        let media = !query.cuts.is_empty();
        for (start, end) in blocks(place.from, length, self.segment_tokens) {
            let keys = query.keys[start..end].into();
            last = trees.add_leaf(last, keys, SegmentId(self.ids.next()), shape, media);
        }
        trees.add_end(last, trees.arena[last].len(), shape.label);
        trees.touch_path(last, stamp);
        trees.join_path(last, self.segment_tokens, &mut self.ids);
        Ok(Some(Inserted { length, new_tokens: length - place.from, evicted }))
    }
}
