//! Stores in flight: their state between draft and commit.

use hashbrown::HashMap;

use crate::ids::{LayoutId, LeaseId, NodeId, PlanId, SegmentId, TreeId};
use crate::keys::query::{Cuts, Query};
use crate::ledger::Amount;
use crate::store::request::{CheckpointSpec, NewSegment, Plan};
use crate::tables::shrink;
use crate::trees::grow::SegmentShape;
use crate::work::visit;

/// A store that has been drafted, until its commit or abort.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(super) namespace: Box<str>,
    pub(super) layout: LayoutId,
    /// The key, as long as the KV.
    pub(crate) keys: Box<[u32]>,
    pub(crate) cuts: Cuts,
    pub(super) shape: SegmentShape,
    pub(super) checkpoint: Option<CheckpointSpec>,
    pub(super) prompt: Option<usize>,
    pub(super) lease: Option<LeaseId>,
    pub(super) tree: Option<TreeId>,
    pub(super) place: Place,
}

/// Where new tokens go in the tree, and how many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Position of the first new token.
    pub(super) from: usize,
    /// The node that they follow or split.
    pub(super) node: NodeId,
    pub(super) cut: Option<Cut>,
    /// Tokens that will be held.
    pub(super) length: usize,
}

/// A split to make: the node's segment, and the tokens of its first half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) segment: SegmentId,
    pub(super) at: usize,
}

impl Draft {
    pub(crate) fn layout(&self) -> LayoutId {
        self.layout
    }

    pub(super) fn query(&self) -> Query<'_> {
        Query::checked(&self.keys, &self.cuts)
    }
}

impl HeapBytes for Draft {
    fn heap_bytes(&self) -> usize {
        self.namespace.len() + size_of_val(&*self.keys) + self.cuts.heap_bytes()
    }
}

/// A plan that has not been committed or aborted.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) draft: Draft,
    pub(crate) reserved: Amount,
    pub(super) plan: Plan,
}

/// Bytes on the heap, not counting the value itself.
pub(crate) trait HeapBytes {
    fn heap_bytes(&self) -> usize;
}

impl HeapBytes for Pending {
    fn heap_bytes(&self) -> usize {
        self.draft.heap_bytes() + self.plan.segments.capacity() * size_of::<NewSegment>()
    }
}

/// Drafts or plans by id. Counts their bytes.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    by_id: HashMap<PlanId, T>,
    heap_bytes: usize,
}

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self { by_id: HashMap::new(), heap_bytes: 0 }
    }
}

impl<T: HeapBytes> InFlight<T> {
    pub(super) fn get(&self, id: PlanId) -> Option<&T> {
        self.by_id.get(&id)
    }

    pub(super) fn insert(&mut self, id: PlanId, entry: T) {
        self.heap_bytes += entry.heap_bytes();
        self.by_id.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: PlanId) -> Option<T> {
        let entry = self.by_id.remove(&id)?;
        self.heap_bytes -= entry.heap_bytes();
        shrink(&mut self.by_id);
        Some(entry)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.by_id.values().inspect(|_| visit())
    }

    /// Bytes on the heap. O(1).
    pub(crate) fn bytes(&self) -> usize {
        self.by_id.allocation_size() + self.heap_bytes
    }
}
