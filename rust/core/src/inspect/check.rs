//! `validate()`: recomputes every counter and link from the nodes, and reports what differs.

use hashbrown::{HashMap, HashSet};

use crate::error::BrokenInvariant;
use crate::forest::Tree;
use crate::ids::{NodeId, TreeId};
use crate::index::PrefixIndex;
use crate::keys::media::MediaUses;
use crate::keys::token::MEDIA_BIT;
use crate::ledger::{Amount, LabelAmount, Sequences};
use crate::order::policy::EvictionPolicy;
use crate::radix::node::Node;

#[cfg(test)]
mod tests;

macro_rules! ensure {
    ($holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err(BrokenInvariant(format!($($what)*)));
        }
    };
}

/// Sums over the nodes, to compare with the maintained counters.
#[derive(Default)]
struct Sums {
    held: Amount,
    leased: Amount,
    labels: HashMap<u16, LabelAmount>,
    heap_bytes: usize,
    nodes: usize,
    ids: HashSet<u64>,
    units: HashSet<NodeId>,
}

impl PrefixIndex {
    /// Checks all invariants of DESIGN.md that the index can see. O(everything).
    ///
    /// # Errors
    /// The first invariant found broken.
    pub fn validate(&self) -> Result<(), BrokenInvariant> {
        let mut sums = Sums::default();
        let leases = self.count_leases();
        for (id, tree) in self.trees.forest.iter() {
            self.check_tree(id, tree, &leases, &mut sums)?;
        }
        self.check_media()?;
        self.check_totals(&sums)?;
        self.check_order(&sums.units)
    }

    fn count_leases(&self) -> (HashMap<NodeId, u32>, HashMap<NodeId, u32>) {
        let (mut nodes, mut checkpoints) = (HashMap::new(), HashMap::new());
        for lease in self.leases.iter() {
            for node in self.trees.path(lease.node) {
                *nodes.entry(node).or_default() += 1;
            }
            if let Some(node) = lease.checkpoint {
                *checkpoints.entry(node).or_default() += 1;
            }
        }
        (nodes, checkpoints)
    }

    fn check_media(&self) -> Result<(), BrokenInvariant> {
        let (known, mut uses) = (self.trees.contents.known(), MediaUses::default());
        for (at, node) in self.trees.arena.iter().filter(|(_, node)| node.media) {
            let unknown = node.keys.iter().find(|key| **key & MEDIA_BIT != 0 && !known.contains(*key));
            ensure!(unknown.is_none(), "node {at:?} has a media key without content");
            uses.hold(&node.keys);
        }
        let drafts = self.drafts.values().chain(self.plans.values().map(|plan| &plan.draft));
        drafts.filter(|draft| !draft.cuts.is_empty()).for_each(|draft| uses.hold(&draft.keys));
        ensure!(uses == self.trees.media, "the media use counts are wrong");
        Ok(())
    }

    fn check_tree(
        &self,
        id: TreeId,
        tree: &Tree,
        leases: &(HashMap<NodeId, u32>, HashMap<NodeId, u32>),
        sums: &mut Sums,
    ) -> Result<(), BrokenInvariant> {
        let arena = &self.trees.arena;
        let root = arena.get(tree.root).ok_or_else(|| BrokenInvariant(format!("tree {id:?} has no root")))?;
        ensure!(root.is_root() && root.len() == 0 && root.end == 0, "tree {id:?} has a malformed root");
        ensure!(!root.children.is_empty(), "tree {id:?} is empty but was not removed");
        let mut own = Sums::default();
        let mut sequences = Sequences::default();
        for at in self.trees.postorder(tree.root) {
            let node = &arena[at];
            ensure!(node.tree == id, "node {at:?} is in tree {id:?} but records {:?}", node.tree);
            own.heap_bytes += node.heap_bytes();
            let mut first = None;
            for (key, child) in node.children.iter() {
                let child = child.id;
                let below = &arena[child];
                ensure!(below.keys[0] == key, "node {child:?} is listed under the wrong first key {key}");
                ensure!(below.parent == at, "node {child:?} does not point to its parent {at:?}");
                ensure!(below.start() == node.end as usize, "node {child:?} starts at the wrong token");
                if below.summary().trimmable && first.is_none_or(|(smallest, _)| key < smallest) {
                    first = Some((key, child));
                }
            }
            let first_trimmable = node.children.first_trimmable();
            ensure!(
                first_trimmable == first.map(|(_, child)| child),
                "node {at:?} does not lead to its trimmable checkpoint"
            );
            let children = || node.children.iter().map(|(_, child)| &arena[child.id]);
            let ended = children().filter(|child| child.summary().ended).count();
            let trimmable = node.children.summary().trimmable;
            ensure!(trimmable == first_trimmable.is_some(), "node {at:?} miscounts its trimmable children");
            ensure!(node.children.ended() == ended, "node {at:?} miscounts its children with an end");
            if node.is_root() {
                own.nodes += 1;
                continue;
            }
            self.check_node(at, node, tree, leases, &mut own)?;
            sequences.all += node.ends().len() as u64;
            // In a tree of full-attention layers only the last end is an entry, if there is none below.
            let nested =
                if tree.checkpointed { 0 } else { node.ends().len().saturating_sub(usize::from(ended == 0)) };
            let mut ends = node.ends().to_vec();
            ends.sort_by_key(|end| end.at);
            for end in ends.iter().skip(nested) {
                sequences.entries += 1;
                own.labels.entry(end.label).or_default().entries += 1;
            }
            sums.units.extend(own.units.drain());
        }
        ensure!(own.held == tree.held, "tree {id:?} holds {:?} but records {:?}", own.held, tree.held);
        ensure!(own.nodes as u64 - 1 == tree.nodes, "tree {id:?} miscounts its nodes");
        ensure!(
            sequences == tree.sequences,
            "tree {id:?} has {sequences:?} but records {:?}",
            tree.sequences
        );
        sums.held += own.held;
        sums.leased += own.leased;
        sums.heap_bytes += own.heap_bytes;
        sums.nodes += own.nodes;
        for id in own.ids {
            ensure!(sums.ids.insert(id), "id {id} is in two trees");
        }
        for (label, amount) in own.labels {
            let sum = sums.labels.entry(label).or_default();
            sum.nbytes += amount.nbytes;
            sum.ntokens += amount.ntokens;
            sum.sequences += amount.sequences;
            sum.entries += amount.entries;
        }
        Ok(())
    }

    fn check_node(
        &self,
        at: NodeId,
        node: &Node,
        tree: &Tree,
        (paths, checkpoints): &(HashMap<NodeId, u32>, HashMap<NodeId, u32>),
        sums: &mut Sums,
    ) -> Result<(), BrokenInvariant> {
        let length = node.len();
        ensure!(1 <= length && length <= self.segment_tokens, "node {at:?} has {length} tokens");
        let media = node.keys.iter().any(|key| key & MEDIA_BIT != 0);
        ensure!(node.media == media, "node {at:?} has the wrong media flag");
        let leases = paths.get(&at).copied().unwrap_or_default();
        ensure!(node.leases == leases, "node {at:?} has {leases} leases but records {}", node.leases);
        ensure!(self.ids.issued(node.segment.0), "segment {} was never issued", node.segment.0);
        ensure!(sums.ids.insert(node.segment.0), "segment {} occurs twice", node.segment.0);
        sums.nodes += 1;
        sums.held += node.amount();
        let block = |at: usize| at / self.segment_tokens;
        ensure!(block(node.start()) == block(node.end as usize - 1), "node {at:?} crosses a block boundary");
        ensure!(node.parts > 0, "node {at:?} has no parts");
        let labelled: u32 = node.labels().map(|run| run.tokens).sum();
        ensure!(labelled as usize == length, "node {at:?} has labels for {labelled} tokens of {length}");
        for run in node.labels() {
            let label = sums.labels.entry(run.label).or_default();
            label.ntokens += u64::from(run.tokens);
            label.nbytes += u64::from(run.tokens) * node.bytes_per_token;
        }
        if leases > 0 {
            sums.leased += node.amount();
        } else if !tree.checkpointed {
            sums.units.insert(at);
        }
        if let Some(checkpoint) = &node.checkpoint {
            ensure!(tree.checkpointed, "node {at:?} has a checkpoint in a tree of full-attention layers");
            ensure!(sums.ids.insert(checkpoint.id.0), "checkpoint {} occurs twice", checkpoint.id.0);
            ensure!(
                checkpoint.leases == checkpoints.get(&at).copied().unwrap_or_default(),
                "the checkpoint of node {at:?} miscounts its leases"
            );
            let amount = checkpoint.amount();
            sums.labels.entry(node.label).or_default().nbytes += amount.nbytes;
            sums.held += amount;
            if checkpoint.leases > 0 {
                sums.leased += amount;
            } else {
                sums.units.insert(at);
            }
        } else if tree.checkpointed {
            let needed = !node.children.is_empty() || leases > 0;
            ensure!(needed, "node {at:?} holds KV that no checkpoint makes usable");
        }
        let mut ends = HashSet::new();
        for end in node.ends() {
            let inside = 1 <= end.at && end.at as usize <= length;
            ensure!(inside && ends.insert(end.at), "node {at:?} has an invalid end at {}", end.at);
            sums.labels.entry(end.label).or_default().sequences += 1;
        }
        Ok(())
    }

    fn check_totals(&self, sums: &Sums) -> Result<(), BrokenInvariant> {
        let ledger = &self.trees.ledger;
        let (held, leased, reserved) = (ledger.held(), ledger.leased(), ledger.reserved());
        ensure!(held == sums.held, "the ledger holds {held:?}, the nodes {:?}", sums.held);
        ensure!(leased == sums.leased, "the ledger has leased {leased:?}, the nodes {:?}", sums.leased);
        let mut promised = self.transient;
        self.plans.values().for_each(|plan| promised += plan.reserved);
        ensure!(reserved == promised, "the ledger has reserved {reserved:?}, the plans {promised:?}");
        ensure!(
            held.nbytes + reserved.nbytes <= self.limits.max_bytes
                && held.buffers + reserved.buffers <= self.limits.max_buffers,
            "held {held:?} and reserved {reserved:?} exceed the limits {:?}",
            self.limits
        );
        for (at, label) in ledger.labels().iter().enumerate() {
            let sum = sums.labels.get(&(at as u16)).copied().unwrap_or_default();
            ensure!(*label == sum, "label {at} records {label:?}, the nodes have {sum:?}");
        }
        let labels = ledger.labels().iter();
        let sequences = labels.fold(Sequences::default(), |sum, label| Sequences {
            all: sum.all + label.sequences,
            entries: sum.entries + label.entries,
        });
        ensure!(
            ledger.sequences() == sequences,
            "the ledger counts {:?}, its labels {sequences:?}",
            ledger.sequences()
        );
        let arena = &self.trees.arena;
        ensure!(arena.len() == sums.nodes, "{} nodes are live, {} reachable", arena.len(), sums.nodes);
        let heap = arena.heap_bytes();
        ensure!(heap == sums.heap_bytes, "the arena counts {heap} heap bytes, the nodes {}", sums.heap_bytes);
        Ok(())
    }

    fn check_order(&self, units: &HashSet<NodeId>) -> Result<(), BrokenInvariant> {
        let arena = &self.trees.arena;
        let order: Vec<NodeId> = self.trees.order.iter(arena).take(arena.len() + 1).collect();
        ensure!(order.len() == self.trees.order.len(), "the eviction policy miscounts its units");
        let places: HashMap<NodeId, usize> = order.iter().copied().zip(0..).collect();
        ensure!(places.len() == order.len(), "the eviction order has a cycle");
        let (mut before, mut stamp) = (NodeId::NONE, 0);
        for id in &order {
            let placement = arena[*id].placement;
            ensure!(
                placement.listed && placement.older == before,
                "node {id:?} has a broken link in the eviction order"
            );
            ensure!(units.contains(id), "node {id:?} is in the eviction order but leased or not a unit");
            ensure!(stamp <= placement.stamp, "node {id:?} has an earlier stamp than the unit before it");
            (before, stamp) = (*id, placement.stamp);
            let above = places.get(&arena[*id].parent);
            if !self.trees.checkpointed(*id)
                && let Some(above) = above
            {
                ensure!(places[id] < *above, "node {id:?} is more recent than its parent");
            }
        }
        ensure!(
            order.len() == units.len(),
            "{} units are missing from the eviction order",
            units.len() - order.len()
        );
        Ok(())
    }
}
