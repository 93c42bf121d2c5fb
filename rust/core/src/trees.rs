//! All trees, and the counts kept over them.
//!
//! Only the files in `trees/` change a tree's shape; they keep the ledger and the eviction policy in step
//! with it:
//!
//! | file | what it does |
//! |---|---|
//! | `grow` | adds leaves and checkpoints, splits nodes |
//! | `remove` | removes leaves, subtrees, checkpoints, and KV that is no longer needed |
//! | `join` | merges several nodes into one |
//! | `ends` | where stores ended, and which sequences are entries |

pub(crate) mod ends;
pub(crate) mod grow;
pub(crate) mod join;
pub(crate) mod remove;

use crate::forest::Forest;
use crate::ids::{NodeId, TreeId};
use crate::keys::hash::{HashKey, PathHash, PathHasher};
use crate::keys::media::{MediaTable, MediaUses};
use crate::ledger::{Amount, Ledger};
use crate::order::Order;
use crate::order::policy::{EvictionPolicy, Removal, Use};
use crate::radix::arena::Arena;
use crate::radix::walk::upward;

/// All trees, and the counts kept over them.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    pub(crate) arena: Arena,
    pub(crate) forest: Forest,
    pub(crate) order: Order,
    pub(crate) ledger: Ledger,
    /// Use counts of media contents.
    pub(crate) media: MediaUses,
    /// The contents themselves.
    pub(crate) contents: MediaTable,
}

impl Trees {
    pub(crate) fn checkpointed(&self, node: NodeId) -> bool {
        self.forest.get(self.arena[node].tree).checkpointed
    }

    fn charge(&mut self, tree: TreeId, label: u16, amount: Amount) {
        self.ledger.add(&mut self.forest.get_mut(tree).held, amount);
        self.ledger.label(label).nbytes += amount.nbytes;
    }

    fn uncharge(&mut self, tree: TreeId, label: u16, amount: Amount) {
        self.ledger.subtract(&mut self.forest.get_mut(tree).held, amount);
        self.ledger.label(label).nbytes -= amount.nbytes;
    }

    /// Adds a node's segment to the ledger, as leased if it is.
    fn charge_segment(&mut self, id: NodeId) {
        let Self { arena, forest, ledger, .. } = self;
        let node = &arena[id];
        ledger.add(&mut forest.get_mut(node.tree).held, node.amount());
        if node.leases > 0 {
            ledger.lease(node.amount());
        }
        for run in node.labels() {
            let label = ledger.label(run.label);
            label.ntokens += u64::from(run.tokens);
            label.nbytes += u64::from(run.tokens) * node.bytes_per_token;
        }
    }

    /// Removes a node's segment from the ledger.
    fn uncharge_segment(&mut self, id: NodeId) -> Amount {
        let Self { arena, forest, ledger, .. } = self;
        let node = &arena[id];
        let amount = node.amount();
        ledger.subtract(&mut forest.get_mut(node.tree).held, amount);
        if node.leases > 0 {
            ledger.unlease(amount);
        }
        for run in node.labels() {
            let label = ledger.label(run.label);
            label.ntokens -= u64::from(run.tokens);
            label.nbytes -= u64::from(run.tokens) * node.bytes_per_token;
        }
        amount
    }

    /// Records a use of a unit, and adds it to the eviction policy if it is not there.
    pub(crate) fn list(&mut self, id: NodeId, stamp: u64) {
        let used = Use { stamp };
        if self.arena[id].placement.listed {
            self.order.touch(&mut self.arena, id, used);
        } else {
            let fingerprint = self.order.wants_fingerprints().then(|| self.path_hash(id));
            self.order.insert(&mut self.arena, id, used, fingerprint);
        }
    }

    /// Removes a unit from the eviction policy, if it is there.
    pub(crate) fn unlist(&mut self, id: NodeId, removal: Removal) {
        if self.arena[id].placement.listed {
            self.order.remove(&mut self.arena, id, removal);
        }
    }

    /// Touches all units of a path, leaf first, so that an ancestor is never older than its descendant.
    /// O(nodes on the path).
    pub(crate) fn touch_path(&mut self, id: NodeId, stamp: u64) {
        let mut at = id;
        while !self.arena[at].is_root() {
            if self.arena[at].leases == 0 {
                self.list(at, stamp);
            }
            at = self.arena[at].parent;
        }
    }

    /// Touches one checkpoint's unit, unless it is leased.
    pub(crate) fn touch_checkpoint(&mut self, id: NodeId, stamp: u64) {
        if self.arena[id].checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.leases == 0) {
            self.list(id, stamp);
        }
    }

    /// The nodes of a subtree, children before parents.
    pub(crate) fn postorder(&self, top: NodeId) -> Vec<NodeId> {
        let mut order = vec![top];
        let mut next = 0;
        while let Some(&id) = order.get(next) {
            order.extend(self.arena[id].children.iter().map(|(_, child)| child.id));
            next += 1;
        }
        order.reverse();
        order
    }

    /// The nodes from `node` up to, and excluding, the root.
    pub(crate) fn path(&self, node: NodeId) -> Vec<NodeId> {
        upward(&self.arena, node).collect()
    }

    /// The state of the path hash before the first token of a tree.
    pub(crate) fn path_hasher(&self, tree: TreeId) -> PathHasher {
        let tree = self.forest.get(tree);
        PathHasher::new(&HashKey::default(), &tree.namespace, &tree.layout.0.to_le_bytes())
    }

    /// Extends the hash by a node's keys. O(len).
    pub(crate) fn extend_hash(&self, hasher: &mut PathHasher, id: NodeId) {
        hasher.extend(&self.arena[id].keys, |key| self.contents.content(key));
    }

    /// The hash of the path to a node's last token. O(tokens of the path).
    pub(crate) fn path_hash(&self, id: NodeId) -> PathHash {
        let mut hasher = self.path_hasher(self.arena[id].tree);
        self.path(id).into_iter().rev().for_each(|id| self.extend_hash(&mut hasher, id));
        hasher.hash()
    }
}

#[cfg(test)]
mod tests;
