//! Adaptive replacement: N. Megiddo, D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement
//! Cache", FAST 2003; over the leaves of a tree and counted in tokens.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::policy::{Order, Standing, Unit, View};

const ONCE: usize = 0;
const AGAIN: usize = 1;

/// Units found by no lookup yet, and units found by one. What was evicted is remembered by its
/// hash, as much as is held: when it comes back, the list that it was missed from gets more room.
#[derive(Debug, Default)]
pub(crate) struct Arc {
    /// Tokens that units used once may have.
    target: u64,
    ghosts: [Ghosts; 2],
}

#[derive(Debug, Default)]
struct Ghosts {
    /// (hash, number), oldest first; what came back since leaves its place behind.
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
        self.forget(unit.hash);
        self.number += 1;
        self.live.insert(unit.hash, Ghost { tokens: unit.tokens, number: self.number });
        self.queue.push_back((unit.hash, self.number));
        self.tokens += u64::from(unit.tokens);
    }

    fn forget(&mut self, hash: u64) -> bool {
        let Some(ghost) = self.live.remove(&hash) else { return false };
        self.tokens -= u64::from(ghost.tokens);
        true
    }

    fn is_live(live: &HashMap<u64, Ghost>, (hash, number): (u64, u64)) -> bool {
        live.get(&hash).is_some_and(|ghost| ghost.number == number)
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

    fn hashes(&self) -> bool {
        true
    }

    fn added(&mut self, unit: Unit, _: Option<Standing>, view: &dyn View) -> Standing {
        let held = view.tokens(ONCE) + view.tokens(AGAIN);
        let sizes = [ONCE, AGAIN].map(|list| self.ghosts[list].tokens.max(1));
        let step = |other: u64, own: u64| (u64::from(unit.tokens) * other / own).max(u64::from(unit.tokens));
        let list = if self.ghosts[ONCE].forget(unit.hash) {
            self.target = (self.target + step(sizes[AGAIN], sizes[ONCE])).min(held);
            AGAIN
        } else if self.ghosts[AGAIN].forget(unit.hash) {
            self.target = self.target.saturating_sub(step(sizes[ONCE], sizes[AGAIN]));
            AGAIN
        } else {
            ONCE
        };
        Standing { list: list as u8, used: view.now(), ..Standing::default() }
    }

    fn hit(&mut self, _: Unit, standing: &mut Standing) {
        standing.list = AGAIN as u8;
    }

    fn next(&self, view: &dyn View) -> usize {
        if view.tokens(ONCE) > self.target || view.tokens(AGAIN) == 0 { ONCE } else { AGAIN }
    }

    fn evicted(&mut self, unit: Unit, standing: Standing, view: &dyn View) {
        self.ghosts[standing.list as usize].remember(unit);
        let held = view.tokens(ONCE) + view.tokens(AGAIN);
        // As ARC: what was used once is remembered up to what is held less its own list.
        self.ghosts[ONCE].trim(held.saturating_sub(view.tokens(ONCE)));
        self.ghosts[AGAIN].trim(held);
    }

    fn bytes(&self) -> usize {
        self.ghosts.iter().map(Ghosts::bytes).sum()
    }
}
