//! Orders of eviction, behind one trait.
//!
//! LRU is a list through the nodes and has nothing here. Every other order is an [`Order`]: it sees
//! units come, be used and go, says in which of its few lists a unit stands, and which list gives
//! the next one. [`Ranked`] keeps the lists. What an order decides depends on the sequence of calls
//! and on tokens, never on bytes or time, so that ranks of one model decide alike.

mod ahead;
mod arc;
mod greedy_dual;
mod insured;
mod ranked;
mod shadow;

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
    /// As `Arc`, within an account that keeps it from losing to `Lru`.
    InsuredArc,
    /// The one that is cheapest to compute anew, ageing.
    GreedyDual,
}

impl Policy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Arc, Self::InsuredArc, Self::GreedyDual];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Arc => "arc",
            Self::InsuredArc => "insured-arc",
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
            Self::InsuredArc => Box::new(insured::InsuredArc::default()),
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
    /// Tells it from others, also when it comes back after it was evicted, with more tokens or
    /// fewer: a hash of all tokens before it and of its first ones. 0 where nobody asks for it.
    pub(crate) mark: u64,
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
}

/// The unit of a list that would go first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct First {
    /// Counts uses: the lower, the longer ago.
    pub(crate) used: u64,
    pub(crate) tokens: u32,
}

/// What an order may know of its lists.
pub(crate) trait View {
    /// Tokens of all units of a list.
    fn tokens(&self, list: usize) -> u64;

    /// The unit that the list would give.
    fn first(&self, list: usize) -> Option<First>;
}

/// Says which list gives the next unit while units go one by one, and nothing else happens.
pub(crate) trait Chooser {
    /// The list that gives the next unit; another one is asked where it has none that can go.
    fn next(&self, view: &dyn View) -> usize;

    /// A unit goes.
    fn left(&mut self, _unit: Unit) {}
}

/// An order of eviction.
pub(crate) trait Order: Debug + Send + Sync {
    /// How many lists it has.
    fn lists(&self) -> usize {
        1
    }

    /// Whether it looks at marks: it remembers what it evicted.
    fn marks(&self) -> bool {
        false
    }

    /// A lookup of so many tokens; `held` are in all lists.
    fn request(&mut self, _tokens: u64, _held: u64) {}

    /// A unit comes in; `held` tokens were in all lists before. Returns where it stands.
    fn added(&mut self, unit: Unit, held: u64) -> Standing;

    /// A lookup found the unit.
    fn hit(&mut self, unit: Unit, standing: &mut Standing);

    /// The unit is the most recently used one.
    fn refreshed(&mut self, _unit: Unit, _held: u64) {}

    /// The unit is evicted.
    fn evicted(&mut self, unit: Unit, standing: Standing, view: &dyn View);

    /// The unit goes for another reason.
    fn dropped(&mut self, _unit: Unit) {}

    /// A unit was cut in two.
    fn split(&mut self, _whole: Unit, _halves: [Unit; 2]) {}

    /// Chooses victims, without a change to the order.
    fn chooser(&self) -> Box<dyn Chooser + '_>;

    /// Bytes on the heap.
    fn bytes(&self) -> usize {
        0
    }
}
