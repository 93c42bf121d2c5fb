//! A node: a run of token keys, the segment with their KV, and optionally a checkpoint.

use crate::ids::{CheckpointId, NodeId, SegmentId, TreeId};
use crate::ledger::Amount;
use crate::radix::children::{Children, Summary};

/// A copy of the sliding-window and recurrent layers after a node's last token.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) id: CheckpointId,
    pub(crate) nbytes: u64,
    pub(crate) buffers: u32,
    /// No window has rotated, so it also serves every shorter length, by trimming.
    pub(crate) trimmable: bool,
    pub(crate) leases: u32,
    /// The sequence number of the last store whose prompt ends here; 0 if there is none.
    pub(crate) prompt: u64,
}

impl Checkpoint {
    pub(crate) fn amount(&self) -> Amount {
        Amount { nbytes: self.nbytes, buffers: u64::from(self.buffers), checkpoints: 1, ..Amount::default() }
    }
}

/// Where a store ended inside a node, and under which label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Tokens from the start of the node to the end, 1..=len.
    pub(crate) at: u32,
    pub(crate) label: u16,
}

/// Consecutive tokens of a node that were stored under one label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) tokens: u32,
    pub(crate) label: u16,
}

impl Run {
    /// Appends a run, or extends the last one if it has the same label.
    pub(crate) fn append(runs: &mut Vec<Self>, run: Self) {
        match runs.last_mut().filter(|last| last.label == run.label) {
            Some(last) => last.tokens += run.tokens,
            None => runs.push(run),
        }
    }
}

/// A unit's place in the eviction policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// Neighbours in the policy's list.
    pub(crate) older: NodeId,
    pub(crate) newer: NodeId,
    /// The unit is in the policy, so it can be evicted.
    pub(crate) listed: bool,
    /// The caller's stamp at the last use.
    pub(crate) stamp: u64,
}

impl Default for Placement {
    fn default() -> Self {
        Self { older: NodeId::NONE, newer: NodeId::NONE, listed: false, stamp: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) keys: Box<[u32]>,
    pub(crate) children: Children,
    pub(crate) segment: SegmentId,
    pub(crate) bytes_per_token: u64,
    pub(crate) checkpoint: Option<Box<Checkpoint>>,
    // Boxed, because a Vec would cost 24 bytes in every node and most nodes have no ends.
    #[allow(clippy::box_collection)]
    pub(crate) ends: Option<Box<Vec<End>>>,
    pub(crate) placement: Placement,
    pub(crate) parent: NodeId,
    pub(crate) tree: TreeId,
    /// Tokens from the root to this node's last key.
    pub(crate) end: u32,
    pub(crate) buffers: u32,
    /// Leases whose path runs through or ends at this node.
    pub(crate) leases: u32,
    /// The label of the store that added the last token of this node.
    pub(crate) label: u16,
    // Boxed like `ends`: few nodes join stores under several labels.
    #[allow(clippy::box_collection)]
    runs: Option<Box<Vec<Run>>>,
    /// Parts of the segment, of `buffers` arrays each. 1 unless nodes were joined.
    pub(crate) parts: u32,
    /// At least one key carries the media bit.
    pub(crate) media: bool,
}

impl Node {
    pub(crate) fn new(tree: TreeId, parent: NodeId, start: u32, keys: Box<[u32]>) -> Self {
        Self {
            end: start + keys.len() as u32,
            keys,
            children: Children::None,
            segment: SegmentId(0),
            bytes_per_token: 0,
            checkpoint: None,
            ends: None,
            placement: Placement::default(),
            parent,
            tree,
            buffers: 0,
            leases: 0,
            label: 0,
            runs: None,
            parts: 1,
            media: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn start(&self) -> usize {
        self.end as usize - self.keys.len()
    }

    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }

    /// The summary of this node's subtree. O(1).
    pub(crate) fn summary(&self) -> Summary {
        let below = self.children.summary();
        let own = self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.trimmable);
        Summary { trimmable: own || below.trimmable, ended: self.ends.is_some() || below.ended }
    }

    /// Whether only a checkpoint of its own could need the node's KV, given its number of children.
    pub(crate) fn is_free(&self, children: usize) -> bool {
        !self.is_root() && children == 0 && self.leases == 0
    }

    /// The size of the segment.
    pub(crate) fn amount(&self) -> Amount {
        Amount {
            nbytes: self.nbytes(),
            buffers: u64::from(self.buffers) * u64::from(self.parts),
            tokens: self.len() as u64,
            segments: 1,
            checkpoints: 0,
        }
    }

    pub(crate) fn nbytes(&self) -> u64 {
        self.bytes_per_token * self.keys.len() as u64
    }

    pub(crate) fn ends(&self) -> &[End] {
        self.ends.as_deref().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn set_ends(&mut self, ends: Vec<End>) {
        self.ends = (!ends.is_empty()).then(|| Box::new(ends));
    }

    /// The labels of the node's tokens, in order.
    pub(crate) fn labels(&self) -> impl Iterator<Item = Run> + '_ {
        let runs = self.runs.as_deref().map_or(&[][..], Vec::as_slice);
        let single = runs.is_empty().then_some(Run { tokens: self.keys.len() as u32, label: self.label });
        single.into_iter().chain(runs.iter().copied())
    }

    pub(crate) fn set_labels(&mut self, runs: Vec<Run>) {
        self.label = runs.last().map_or(0, |last| last.label);
        self.runs = (runs.len() > 1).then(|| Box::new(runs));
    }

    /// Bytes on the heap, not counting the node's own slot. O(1).
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.keys)
            + self.children.heap_bytes()
            + self.checkpoint.as_ref().map_or(0, |_| size_of::<Checkpoint>())
            + boxed_bytes(self.ends.as_deref())
            + boxed_bytes(self.runs.as_deref())
    }
}

fn boxed_bytes<T>(boxed: Option<&Vec<T>>) -> usize {
    boxed.map_or(0, |entries| size_of::<Vec<T>>() + entries.capacity() * size_of::<T>())
}
