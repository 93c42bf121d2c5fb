//! Leases: paths protected from eviction.
//!
//! A lease covers all nodes from the root to one node, and optionally one checkpoint. The units it
//! covers are not in the eviction policy, and the ledger counts them as leased. A release inserts them
//! again, leaf first, so a lease also counts as a use.

use hashbrown::HashMap;

use crate::dropped::Dropped;
use crate::ids::{LeaseId, NodeId, TreeId};
use crate::order::policy::Removal;
use crate::tables::shrink;
use crate::trees::Trees;
use crate::work::visit;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) tree: TreeId,
    /// The end of the leased path; the root if the path is empty.
    pub(crate) node: NodeId,
    /// The node on the path whose checkpoint is leased.
    pub(crate) checkpoint: Option<NodeId>,
}

/// Leases by id. Those of one tree form a list whose head is in the tree. A lease whose tree was
/// dropped is void and no longer in the map.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    live: HashMap<LeaseId, Entry>,
}

#[derive(Debug)]
struct Entry {
    lease: Lease,
    older: Option<LeaseId>,
    newer: Option<LeaseId>,
}

impl Leases {
    /// Leases a path. O(nodes on the path).
    pub(crate) fn acquire(&mut self, trees: &mut Trees, id: LeaseId, lease: Lease) {
        for node in trees.path(lease.node) {
            if trees.arena[node].leases == 0 {
                trees.ledger.lease(trees.arena[node].amount());
                if !trees.checkpointed(node) {
                    trees.unlist(node, Removal::Leased);
                }
            }
            trees.arena[node].leases += 1;
        }
        if let Some(node) = lease.checkpoint
            && let Some(checkpoint) = trees.arena[node].checkpoint.as_mut()
        {
            checkpoint.leases += 1;
            if checkpoint.leases == 1 {
                let amount = checkpoint.amount();
                trees.ledger.lease(amount);
                trees.unlist(node, Removal::Leased);
            }
        }
        let older = trees.forest.get_mut(lease.tree).lease.replace(id);
        if let Some(entry) = older.and_then(|older| self.live.get_mut(&older)) {
            entry.newer = Some(id);
        }
        self.live.insert(id, Entry { lease, older, newer: None });
    }

    /// Ends a lease and returns the KV that only this lease kept. Does nothing if the lease is released
    /// or void. O(nodes on the path).
    pub(crate) fn release(&mut self, trees: &mut Trees, id: LeaseId, stamp: u64) -> Dropped {
        let mut dropped = Dropped::default();
        let Some(lease) = self.remove(trees, id) else { return dropped };
        let checkpointed = trees.forest.get(lease.tree).checkpointed;
        let (nodes, checkpoint) = count_down(trees, &lease);
        if checkpointed {
            if let Some(node) = checkpoint {
                trees.list(node, stamp);
            }
            trees.prune(lease.node, &mut dropped);
            trees.remove_if_empty(lease.tree);
        } else {
            for node in nodes {
                trees.list(node, stamp);
            }
        }
        dropped
    }

    fn remove(&mut self, trees: &mut Trees, id: LeaseId) -> Option<Lease> {
        visit();
        let Entry { lease, older, newer } = self.live.remove(&id)?;
        if let Some(entry) = older.and_then(|older| self.live.get_mut(&older)) {
            entry.newer = newer;
        }
        match newer.and_then(|newer| self.live.get_mut(&newer)) {
            Some(entry) => entry.older = older,
            None => trees.forest.get_mut(lease.tree).lease = older,
        }
        shrink(&mut self.live);
        Some(lease)
    }

    /// Forgets all leases in a tree that is about to lose all its nodes, leased or not.
    /// O(leases in that tree).
    pub(crate) fn void(&mut self, trees: &mut Trees, tree: TreeId) {
        let mut at = trees.forest.get_mut(tree).lease.take();
        while let Some(entry) = at.and_then(|id| self.live.remove(&id)) {
            visit();
            at = entry.older;
        }
        shrink(&mut self.live);
    }

    /// Whether the lease is neither released nor void.
    pub(crate) fn is_live(&self, id: LeaseId) -> bool {
        self.live.contains_key(&id)
    }

    /// The lease, unless it is released or void.
    pub(crate) fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.live.get(&id).map(|entry| &entry.lease)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.live.values().map(|entry| {
            visit();
            &entry.lease
        })
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.live.allocation_size()
    }
}

/// Takes one lease off its path. Returns what is no longer leased: nodes, leaf first, and the node of
/// the checkpoint.
fn count_down(trees: &mut Trees, lease: &Lease) -> (Vec<NodeId>, Option<NodeId>) {
    let mut free = Vec::new();
    for id in trees.path(lease.node) {
        let node = &mut trees.arena[id];
        node.leases -= 1;
        if node.leases == 0 {
            let amount = node.amount();
            trees.ledger.unlease(amount);
            free.push(id);
        }
    }
    let checkpoint = lease.checkpoint.filter(|id| {
        let Some(checkpoint) = trees.arena[*id].checkpoint.as_mut() else { return false };
        checkpoint.leases -= 1;
        if checkpoint.leases == 0 {
            let amount = checkpoint.amount();
            trees.ledger.unlease(amount);
        }
        checkpoint.leases == 0
    });
    (free, checkpoint)
}
