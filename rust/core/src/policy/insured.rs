//! ARC with an account against LRU.
//!
//! [`Shadow`] is what LRU would hold in the same room. The account is what was found and LRU would
//! not have found, less what LRU would have found and was not, plus a small allowance for what is
//! asked for. ARC chooses the victim as long as half of what LRU would hold and the index does not
//! is covered by the account; otherwise LRU chooses. So the account never falls below what one
//! cacheful can lose, and while it is below 0, LRU chooses until the allowance has made up for it:
//! at every moment of any traffic, LRU would have found at most the allowance and one cacheful
//! beyond what was found. Units are followed by their marks, so this holds as far as segments are
//! cut alike.

use crate::policy::arc::Arc;
use crate::policy::shadow::Shadow;
use crate::policy::{Chooser, Order, Standing, Unit, View};

/// One token in so many that are asked for may be lost to LRU.
const ALLOWANCE: u64 = 250;

#[derive(Debug, Default)]
pub(crate) struct InsuredArc {
    arc: Arc,
    shadow: Shadow,
    /// In tokens; below 0 where LRU would have found more.
    account: i64,
    /// Tokens asked for that did not make up a token of allowance yet.
    asked: u64,
}

impl Order for InsuredArc {
    fn lists(&self) -> usize {
        self.arc.lists()
    }

    fn marks(&self) -> bool {
        true
    }

    fn request(&mut self, tokens: u64, held: u64) {
        self.asked += tokens;
        let allowance = (self.asked / ALLOWANCE).cast_signed();
        self.account = (self.account + allowance).min(held.cast_signed());
        self.asked %= ALLOWANCE;
    }

    fn added(&mut self, unit: Unit, held: u64) -> Standing {
        if let Some(entry) = self.shadow.get(unit.mark) {
            self.account -= i64::from(entry.tokens.min(unit.tokens));
            self.shadow.hold(unit);
        }
        self.arc.added(unit, held)
    }

    fn hit(&mut self, unit: Unit, standing: &mut Standing) {
        if self.shadow.get(unit.mark).is_none() {
            self.account += i64::from(unit.tokens);
        }
        self.arc.hit(unit, standing);
    }

    fn refreshed(&mut self, unit: Unit, held: u64) {
        self.shadow.touch(unit);
        self.shadow.trim(held);
    }

    fn evicted(&mut self, unit: Unit, standing: Standing, view: &dyn View) {
        self.arc.evicted(unit, standing, view);
        // What LRU would let go for it is not known before it is: what comes may be no news to LRU.
        self.shadow.lose(unit.mark);
    }

    fn dropped(&mut self, unit: Unit) {
        self.shadow.remove(unit.mark);
    }

    fn split(&mut self, whole: Unit, halves: [Unit; 2]) {
        self.shadow.split(whole, halves);
    }

    fn chooser(&self) -> Box<dyn Chooser + '_> {
        let covered = 2 * u64::try_from(self.account).unwrap_or_default();
        let missing = self.shadow.missing();
        Box::new(Insured { arc: self.arc.chooser(), shadow: &self.shadow, covered, missing })
    }

    fn bytes(&self) -> usize {
        self.arc.bytes() + self.shadow.bytes()
    }
}

/// ARC's choice as far as it is covered, else that of LRU.
struct Insured<'a> {
    arc: Box<dyn Chooser + 'a>,
    shadow: &'a Shadow,
    /// Tokens that ARC may have missing.
    covered: u64,
    /// Tokens that LRU would hold and the index does not.
    missing: u64,
}

impl Chooser for Insured<'_> {
    fn next(&self, view: &dyn View) -> usize {
        let list = self.arc.next(view);
        let firsts = [0, 1].map(|list| view.first(list));
        let tokens = firsts[list].or(firsts[1 - list]).map_or(0, |first| u64::from(first.tokens));
        if self.missing + tokens <= self.covered {
            return list;
        }
        match firsts {
            [Some(once), Some(again)] if again.used < once.used => 1,
            [None, Some(_)] => 1,
            _ => 0,
        }
    }

    fn left(&mut self, unit: Unit) {
        self.arc.left(unit);
        if let Some(entry) = self.shadow.get(unit.mark)
            && entry.held
        {
            self.missing += u64::from(entry.tokens);
        }
    }
}
