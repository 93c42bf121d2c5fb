//! Eviction policies: which unit to evict next.
//!
//! A *unit* is the smallest thing eviction removes: a node's segment in a tree of full-attention layers, a
//! checkpoint and the KV that only it makes usable in a tree with checkpoints. A unit is named by its
//! node. Leased units are not in the policy.
//!
//! To add a policy, implement [`EvictionPolicy`] in a file next to `lru.rs`, and add a variant to
//! [`Policy`] and to [`Order`]. Dispatch is a `match`, so it costs no indirect call.

mod lru;
pub(crate) mod policy;

use crate::ids::NodeId;
use crate::keys::hash::PathHash;
use crate::order::lru::{Lru, LruPicker};
use crate::order::policy::{EvictionPolicy, Removal, Use, VictimPicker};
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

    /// The name users know it by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
        }
    }

    /// Looks up a policy by name.
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

    fn remove(&mut self, arena: &mut Arena, unit: NodeId, removal: Removal) {
        match self {
            Self::Lru(lru) => lru.remove(arena, unit, removal),
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
