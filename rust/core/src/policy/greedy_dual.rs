//! `GreedyDual`: N. Young, "The k-server dual and loose competitiveness for paging", Algorithmica
//! 1994, with the size-aware value of P. Cao, S. Irani, "Cost-Aware WWW Proxy Caching Algorithms",
//! USENIX 1997: what it costs to compute a token anew.

use crate::policy::{Order, Standing, Unit, View};

/// The position at which a token's attention costs as much as all the rest of its forward pass.
const ATTENTION: u64 = 1 << 15;
/// The cost of a token at position 0.
const TOKEN: u64 = 1 << 10;

/// A unit is worth the clock at its last use and the cost of a token of it, which grows with the
/// tokens before it. The least worth goes, and the clock goes on to its worth.
#[derive(Debug, Default)]
pub(crate) struct GreedyDual {
    clock: u64,
}

impl GreedyDual {
    fn worth(&self, unit: Unit) -> u64 {
        let middle = u64::from(unit.start) + u64::from(unit.tokens) / 2;
        self.clock + TOKEN + TOKEN * middle / ATTENTION
    }
}

impl Order for GreedyDual {
    fn added(&mut self, unit: Unit, _: Option<Standing>, view: &dyn View) -> Standing {
        Standing { score: self.worth(unit), used: view.now(), ..Standing::default() }
    }

    fn hit(&mut self, unit: Unit, standing: &mut Standing) {
        standing.score = self.worth(unit);
    }

    fn next(&self, _: &dyn View) -> usize {
        0
    }

    fn evicted(&mut self, _: Unit, standing: Standing, _: &dyn View) {
        self.clock = self.clock.max(standing.score);
    }
}
