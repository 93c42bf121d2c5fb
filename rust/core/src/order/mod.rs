//! Eviction policies: which unit is evicted next.
//!
//! A *unit* is what eviction takes at once: in a tree of full-attention layers a node's segment, in a
//! tree with checkpoints a checkpoint with the KV that it alone makes usable. Units are named by their
//! node. A unit that a lease holds is not in the policy.
//!
//! To add a policy: a file next to `lru.rs` with an [`EvictionPolicy`], a variant in [`Policy`] and in
//! [`Order`]. Dispatch is a `match`, so a policy costs no more than its own work.

mod lru;
pub(crate) mod policy;

use crate::ids::NodeId;
use crate::keys::hash::PathHash;
use crate::order::lru::{Lru, LruPicker};
use crate::order::policy::{EvictionPolicy, Leaving, Use, VictimPicker};
use crate::radix::arena::Arena;

/// The eviction policies, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Least recently used first.
    #[default]
    Lru,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 1] = [Self::Lru];

    /// What a user calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
        }
    }

    /// The policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The policy of an index.
#[derive(Debug)]
pub(crate) enum Order {
    Lru(Lru),
}

impl Default for Order {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}

impl Order {
    pub(crate) fn new(policy: Policy) -> Self {
        match policy {
            Policy::Lru => Self::Lru(Lru::default()),
        }
    }

    /// All units in the order in which they would be evicted now.
    pub(crate) fn iter<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = NodeId> + 'a {
        let mut picker = self.picker();
        std::iter::from_fn(move || picker.pick(arena))
    }
}

/// The picker of an index's policy.
pub(crate) enum Picker {
    Lru(LruPicker),
}

impl VictimPicker for Picker {
    fn pick(&mut self, arena: &Arena) -> Option<NodeId> {
        match self {
            Self::Lru(picker) => picker.pick(arena),
        }
    }
}

impl EvictionPolicy for Order {
    type Picker = Picker;

    fn insert(&mut self, arena: &mut Arena, unit: NodeId, used: Use, fingerprint: Option<PathHash>) {
        match self {
            Self::Lru(lru) => lru.insert(arena, unit, used, fingerprint),
        }
    }

    fn touch(&mut self, arena: &mut Arena, unit: NodeId, used: Use) {
        match self {
            Self::Lru(lru) => lru.touch(arena, unit, used),
        }
    }

    fn remove(&mut self, arena: &mut Arena, unit: NodeId, leaving: Leaving) {
        match self {
            Self::Lru(lru) => lru.remove(arena, unit, leaving),
        }
    }

    fn fork(&mut self, arena: &mut Arena, upper: NodeId, lower: NodeId) {
        match self {
            Self::Lru(lru) => lru.fork(arena, upper, lower),
        }
    }

    fn tick(&mut self, stamp: u64) {
        match self {
            Self::Lru(lru) => lru.tick(stamp),
        }
    }

    fn wants_fingerprints(&self) -> bool {
        match self {
            Self::Lru(lru) => lru.wants_fingerprints(),
        }
    }

    fn picker(&self) -> Picker {
        match self {
            Self::Lru(lru) => Picker::Lru(lru.picker()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Lru(lru) => lru.len(),
        }
    }
}
