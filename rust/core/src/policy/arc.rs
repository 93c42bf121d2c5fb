//! Adaptive replacement: N. Megiddo, D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement
//! Cache", FAST 2003; over the leaves of a tree and counted in tokens.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::policy::{Chooser, Order, Standing, Unit, View};

const ONCE: usize = 0;
const AGAIN: usize = 1;

/// Units found by no lookup yet, and units found by one. What was evicted is remembered by its
/// mark, as much as is held: when it comes back, the list that it was missed from gets more room.
#[derive(Debug, Default)]
pub(crate) struct Arc {
    /// Tokens that units used once may have.
    target: u64,
    ghosts: [Ghosts; 2],
}

#[derive(Debug, Default)]
struct Ghosts {
    /// (mark, number), oldest first; what came back since leaves its place behind.
    queue: VecDeque<(u64, u64)>,
    live: HashMap<u64, Ghost>,
    tokens: u64,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Ghost {
    tokens: u32,
    number: u64,
}

impl Ghosts {
    fn remember(&mut self, unit: Unit) {
        self.forget(unit.mark);
        self.number += 1;
        self.live.insert(unit.mark, Ghost { tokens: unit.tokens, number: self.number });
        self.queue.push_back((unit.mark, self.number));
        self.tokens += u64::from(unit.tokens);
    }

    fn forget(&mut self, mark: u64) -> bool {
        let Some(ghost) = self.live.remove(&mark) else { return false };
        self.tokens -= u64::from(ghost.tokens);
        true
    }

    fn is_live(live: &HashMap<u64, Ghost>, (mark, number): (u64, u64)) -> bool {
        live.get(&mark).is_some_and(|ghost| ghost.number == number)
    }

    /// Forgets the oldest until there are `most` tokens. Amortised O(1) for each ghost.
    fn trim(&mut self, most: u64) {
        while self.tokens > most
            && let Some(oldest) = self.queue.pop_front()
        {
            if Self::is_live(&self.live, oldest) {
                self.forget(oldest.0);
            }
        }
        if self.queue.len() > 2 * self.live.len() + 16 {
            let live = &self.live;
            self.queue.retain(|entry| Self::is_live(live, *entry));
        }
    }

    fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<(u64, u64)>() + self.live.allocation_size()
    }
}

impl Order for Arc {
    fn lists(&self) -> usize {
        2
    }

    fn marks(&self) -> bool {
        true
    }

    fn added(&mut self, unit: Unit, held: u64) -> Standing {
        let tokens = u64::from(unit.tokens);
        let [once, again] = [ONCE, AGAIN].map(|list| self.ghosts[list].tokens.max(1));
        let list = if self.ghosts[ONCE].forget(unit.mark) {
            self.target = (self.target + tokens * (again / once).max(1)).min(held);
            AGAIN
        } else if self.ghosts[AGAIN].forget(unit.mark) {
            self.target = self.target.saturating_sub(tokens * (once / again).max(1));
            AGAIN
        } else {
            ONCE
        };
        Standing { list: list as u8, ..Standing::default() }
    }

    fn hit(&mut self, _: Unit, standing: &mut Standing) {
        standing.list = AGAIN as u8;
    }

    fn evicted(&mut self, unit: Unit, standing: Standing, view: &dyn View) {
        let list = standing.list as usize;
        let held = view.tokens(ONCE) + view.tokens(AGAIN);
        let once = view.tokens(ONCE) - if list == ONCE { u64::from(unit.tokens) } else { 0 };
        self.ghosts[list].remember(unit);
        self.ghosts[ONCE].trim(held.saturating_sub(once));
        let ghosts = self.ghosts[ONCE].tokens;
        self.ghosts[AGAIN].trim(held.saturating_sub(ghosts));
    }

    fn chooser(&self) -> Box<dyn Chooser + '_> {
        Box::new(Balance { target: self.target })
    }

    fn bytes(&self) -> usize {
        self.ghosts.iter().map(Ghosts::bytes).sum()
    }
}

struct Balance {
    target: u64,
}

impl Chooser for Balance {
    fn next(&self, view: &dyn View) -> usize {
        if view.tokens(ONCE) > self.target || view.tokens(AGAIN) == 0 { ONCE } else { AGAIN }
    }
}
