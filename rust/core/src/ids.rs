//! Index newtypes instead of naked integers.

/// A node's slot in the arena. Reused once the node is removed, so it never leaves this crate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u32);

impl NodeId {
    /// No node: the end of a list, the parent of a root.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// A tree's slot in the forest. Reused once the tree is removed.
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
    /// The KV arrays of one node's tokens. Issued once, reported as dropped once, never reused.
    SegmentId
}
public_id! {
    /// A copy of all sliding-window and recurrent layers after a node's last token. Never reused.
    CheckpointId
}
public_id! {
    /// A path protected from eviction. Never reused.
    LeaseId
}
public_id! {
    /// A store that is drafted or planned but not yet committed. Never reused.
    PlanId
}
public_id! {
    /// A combination of layer classes, shapes per token, dtypes and quantisation, numbered by the
    /// caller. A namespace has one tree per layout.
    LayoutId
}

/// One counter for all public ids, so that an id names one thing for the life of the index.
#[derive(Debug, Default)]
pub(crate) struct IdSource(u64);

impl IdSource {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    /// Whether this source issued `id`.
    pub(crate) fn issued(&self, id: u64) -> bool {
        0 < id && id <= self.0
    }
}
