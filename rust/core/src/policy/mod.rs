//! Orders of eviction, behind one trait.
//!
//! LRU is a list through the nodes and has nothing here. Every other order is an [`Order`]: it sees
//! units come, be used and go, says in which of its few lists a unit stands, and which list gives
//! the next one. [`Ranked`] keeps the lists. What an order decides depends on the sequence of calls
//! and on tokens, never on bytes or time.

mod arc;
mod greedy_dual;
mod ranked;

use std::fmt::Debug;

pub(crate) use ranked::Ranked;

/// Which unit is evicted next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// The one that was not used for longest.
    #[default]
    Lru,
    /// Units used once and units used again in two lists, whose shares follow what is missed.
    Arc,
    /// The one that is cheapest to compute anew, ageing.
    GreedyDual,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Arc, Self::GreedyDual];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Arc => "arc",
            Self::GreedyDual => "greedy-dual",
        }
    }

    /// The policy of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }

    pub(crate) fn ranked(self) -> Option<Ranked> {
        let order: Box<dyn Order> = match self {
            Self::Lru => return None,
            Self::Arc => Box::new(arc::Arc::default()),
            Self::GreedyDual => Box::new(greedy_dual::GreedyDual::default()),
        };
        Some(Ranked::new(order))
    }
}

/// What an order may know of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Tokens of its node.
    pub(crate) tokens: u32,
    /// Tokens before them.
    pub(crate) start: u32,
    /// Of all tokens up to its end; 0 where the order does not ask for it.
    pub(crate) hash: u64,
}

/// What an order keeps of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The list that it stands in.
    pub(crate) list: u8,
    /// Lookups that found it.
    pub(crate) hits: u8,
    /// Within its list the unit with the lowest goes first, then the one used longest ago.
    pub(crate) score: u64,
    /// The lookup at which it was last used.
    pub(crate) used: u64,
}

/// What an order may know of its lists.
pub(crate) trait View {
    /// Tokens of all units of a list.
    fn tokens(&self, list: usize) -> u64;

    /// Lookups so far.
    fn now(&self) -> u64;
}

/// An order of eviction.
pub(crate) trait Order: Debug + Send + Sync {
    /// How many lists it has.
    fn lists(&self) -> usize {
        1
    }

    /// Whether it looks at hashes: it remembers what it evicted.
    fn hashes(&self) -> bool {
        false
    }

    /// A unit comes in below `above`. Returns where it stands.
    fn added(&mut self, unit: Unit, above: Option<Standing>, view: &dyn View) -> Standing;

    /// A lookup found the unit.
    fn hit(&mut self, unit: Unit, standing: &mut Standing);

    /// The list that gives the next unit; another one is asked where it has none that can go.
    fn next(&self, view: &dyn View) -> usize;

    /// The unit is about to be evicted.
    fn evicted(&mut self, unit: Unit, standing: Standing, view: &dyn View);

    /// Bytes on the heap.
    fn bytes(&self) -> usize {
        0
    }
}
