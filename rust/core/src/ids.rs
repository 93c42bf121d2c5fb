//! Index newtypes instead of naked integers.

/// A node's place in the arena. Reused after the node is gone, so it never leaves this crate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u32);

impl NodeId {
    /// No node: the end of a list, the parent of a root.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// A tree's place in the forest. Reused after the tree is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct TreeId(pub(crate) u32);

macro_rules! public_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        pub struct $name(pub u64);
    };
}

public_id! {
    /// The KV arrays of one node's tokens. Given out once, reported as dropped once, never reused.
    SegmentId
}
public_id! {
    /// A copy of all window and state layers after a node's last token. Never reused.
    CheckpointId
}
public_id! {
    /// A path that eviction leaves alone. Never reused.
    LeaseId
}
public_id! {
    /// A store between its plan and its commit. Never reused.
    PlanId
}
public_id! {
    /// What a store brought (layer classes, shapes per token, dtypes, quantisation), numbered by
    /// the caller. One namespace has one tree per layout.
    LayoutId
}

/// One counter for all public ids: an id names one thing for the life of the index.
#[derive(Debug, Default)]
pub(crate) struct IdSource(u64);

impl IdSource {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    /// Whether `id` was given out by this source.
    pub(crate) fn issued(&self, id: u64) -> bool {
        0 < id && id <= self.0
    }
}
