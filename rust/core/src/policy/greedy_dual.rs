//! `GreedyDual`: N. Young, "The k-server dual and loose competitiveness for paging", Algorithmica
//! 1994; with the value of P. Cao, S. Irani, "Cost-Aware WWW Proxy Caching Algorithms", USENIX 1997,
//! which is what it costs to compute a token anew, and with uses counted as L. Cherkasova does, HP
//! Labs 1998, by their logarithm.

use crate::policy::{Chooser, Order, Standing, Unit, View};

/// The position at which a token's attention costs as much as all the rest of its forward pass.
const ATTENTION: u64 = 1 << 17;
/// The cost of a token at position 0.
const TOKEN: u64 = 1 << 16;

/// A unit is worth the clock at its last use and the cost of a token of it, which grows with the
/// tokens before it and with its uses. The least worth goes, and the clock goes on to its worth.
#[derive(Debug, Default)]
pub(crate) struct GreedyDual {
    clock: u64,
}

impl GreedyDual {
    fn worth(&self, unit: Unit, uses: u64) -> u64 {
        let cost = TOKEN + TOKEN * u64::from(unit.start) / ATTENTION;
        // 1 + log2, straight between powers of two.
        let whole = u64::from(uses.ilog2());
        let uses = TOKEN * (1 + whole) + ((TOKEN * uses) >> whole) - TOKEN;
        self.clock + cost * uses / TOKEN
    }
}

impl Order for GreedyDual {
    fn added(&mut self, unit: Unit, _: u64) -> Standing {
        Standing { score: self.worth(unit, 1), ..Standing::default() }
    }

    fn hit(&mut self, unit: Unit, standing: &mut Standing) {
        standing.score = self.worth(unit, u64::from(standing.hits) + 2);
    }

    fn evicted(&mut self, _: Unit, standing: Standing, _: &dyn View) {
        self.clock = self.clock.max(standing.score);
    }

    fn chooser(&self) -> Box<dyn Chooser + '_> {
        Box::new(OneList)
    }
}

struct OneList;

impl Chooser for OneList {
    fn next(&self, _: &dyn View) -> usize {
        0
    }
}
