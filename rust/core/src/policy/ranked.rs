//! The lists of an order: which units can go now, and which of them goes next.

use std::collections::{BTreeSet, btree_set};
use std::iter::{Copied, Peekable};

use hashbrown::HashMap;

use crate::ids::NodeId;
use crate::policy::{Order, Standing, Unit, View};
use crate::radix::arena::Arena;
use crate::radix::edit::Trees;
use crate::radix::node::Node;
use crate::radix::walk::upward;

/// (score, when it was used, unit), so that the first goes first.
type Key = (u64, u64, NodeId);

/// One list of an order.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// Units that can go now: no lease holds them, and no child hangs on them.
    ready: BTreeSet<Key>,
    /// Tokens of all its units, ready or not.
    tokens: u64,
}

/// All lists of an order.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    lists: Vec<List>,
    /// Lookups so far.
    now: u64,
}

impl View for Lists {
    fn tokens(&self, list: usize) -> u64 {
        self.lists[list].tokens
    }

    fn now(&self) -> u64 {
        self.now
    }
}

impl Lists {
    fn first(&self, list: usize) -> Option<NodeId> {
        self.lists[list].ready.first().map(|key| key.2)
    }
}

/// A unit's place.
#[derive(Clone, Copy, Debug)]
struct Place {
    standing: Standing,
    hash: u64,
    tokens: u32,
    /// Counts uses, so that no two units were used at once.
    used: u64,
    ready: bool,
}

impl Place {
    fn key(&self, id: NodeId) -> Key {
        (self.standing.score, self.used, id)
    }
}

/// An order with its lists. Every operation is O(log units).
#[derive(Debug)]
pub(crate) struct Ranked {
    order: Box<dyn Order>,
    lists: Lists,
    /// By node.
    places: Vec<Option<Place>>,
    uses: u64,
}

impl Ranked {
    pub(crate) fn new(order: Box<dyn Order>) -> Self {
        let lists = (0..order.lists()).map(|_| List::default()).collect();
        Self { order, lists: Lists { lists, now: 0 }, places: Vec::new(), uses: 0 }
    }

    /// A lookup begins.
    pub(crate) fn request(&mut self) {
        self.lists.now += 1;
    }

    /// A unit comes in. It cannot go before [`Self::settle`] says so.
    pub(crate) fn added(&mut self, arena: &Arena, id: NodeId) {
        let node = &arena[id];
        let above = self.place(node.parent).copied();
        let hash = match above {
            _ if !self.order.hashes() => 0,
            Some(above) => hash(above.hash, &node.keys),
            // No unit stands above: its first ancestor is the root, or has no checkpoint.
            None => path_hash(arena, id),
        };
        let unit = unit(node, hash);
        let standing = self.order.added(unit, above.map(|above| above.standing), &self.lists);
        self.put(id, standing, hash, unit.tokens);
    }

    /// `upper` is now what `lower` began with; both stand where it stood.
    pub(crate) fn split(&mut self, arena: &Arena, upper: NodeId, lower: NodeId) {
        let Some(old) = self.take(lower) else { return };
        let above = self.place(arena[upper].parent).map_or(0, |above| above.hash);
        let hash = if self.order.hashes() { hash(above, &arena[upper].keys) } else { 0 };
        self.put(lower, old.standing, old.hash, arena[lower].len() as u32);
        self.put(upper, old.standing, hash, arena[upper].len() as u32);
    }

    /// A lookup found the unit.
    pub(crate) fn hit(&mut self, arena: &Arena, id: NodeId) {
        let Some(mut place) = self.take(id) else { return };
        let now = self.lists.now;
        self.order.hit(unit(&arena[id], place.hash), &mut place.standing);
        place.standing.hits = place.standing.hits.saturating_add(1);
        place.standing.used = now;
        self.give(id, place);
    }

    /// The unit is the most recently used one, and can go now, or not.
    pub(crate) fn refresh(&mut self, id: NodeId, ready: bool) {
        let Some(mut place) = self.take(id) else { return };
        self.uses += 1;
        place.used = self.uses;
        place.ready = ready;
        self.give(id, place);
    }

    /// The unit can go now, or not.
    pub(crate) fn settle(&mut self, id: NodeId, ready: bool) {
        if self.place(id).is_some_and(|place| place.ready != ready)
            && let Some(mut place) = self.take(id)
        {
            place.ready = ready;
            self.give(id, place);
        }
    }

    /// The unit is about to be evicted.
    pub(crate) fn evicted(&mut self, arena: &Arena, id: NodeId) {
        if let Some(place) = self.place(id).copied() {
            self.order.evicted(unit(&arena[id], place.hash), place.standing, &self.lists);
        }
    }

    /// The unit is no more.
    pub(crate) fn gone(&mut self, id: NodeId) {
        self.take(id);
        if self.lists.lists.iter().all(|list| list.tokens == 0) {
            self.places = Vec::new();
        }
    }

    /// The unit that goes next.
    pub(crate) fn next(&self) -> Option<NodeId> {
        let any = || (0..self.lists.lists.len()).find_map(|list| self.lists.first(list));
        self.lists.first(self.order.next(&self.lists)).or_else(any)
    }

    /// The units in the order in which they would go if nothing else happened. O(log units) each.
    pub(crate) fn ahead<'a>(&'a self, trees: &'a Trees) -> impl Iterator<Item = NodeId> + 'a {
        Ahead {
            ranked: self,
            trees,
            ready: self.lists.lists.iter().map(|list| list.ready.iter().copied().peekable()).collect(),
            freed: vec![BTreeSet::new(); self.lists.lists.len()],
            tokens: self.lists.lists.iter().map(|list| list.tokens).collect(),
            lost: HashMap::new(),
        }
    }

    /// Units that can go now, for `validate`.
    pub(crate) fn ready(&self) -> impl Iterator<Item = NodeId> {
        self.lists.lists.iter().flat_map(|list| list.ready.iter().map(|key| key.2))
    }

    /// Bytes on the heap; the trees' share is an estimate, two thirds full.
    pub(crate) fn bytes(&self) -> usize {
        let ready: usize = self.lists.lists.iter().map(|list| list.ready.len()).sum();
        self.places.capacity() * size_of::<Option<Place>>()
            + ready * size_of::<Key>() * 3 / 2
            + self.lists.lists.capacity() * size_of::<List>()
            + self.order.bytes()
    }

    fn place(&self, id: NodeId) -> Option<&Place> {
        self.places.get(id.0 as usize)?.as_ref()
    }

    fn put(&mut self, id: NodeId, standing: Standing, hash: u64, tokens: u32) {
        let place = Place { standing, hash, tokens, used: self.uses, ready: false };
        self.give(id, place);
    }

    fn give(&mut self, id: NodeId, place: Place) {
        let at = id.0 as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        let list = &mut self.lists.lists[place.standing.list as usize];
        list.tokens += u64::from(place.tokens);
        if place.ready {
            list.ready.insert(place.key(id));
        }
        self.places[at] = Some(place);
    }

    fn take(&mut self, id: NodeId) -> Option<Place> {
        let place = self.places.get_mut(id.0 as usize)?.take()?;
        let list = &mut self.lists.lists[place.standing.list as usize];
        list.tokens -= u64::from(place.tokens);
        if place.ready {
            list.ready.remove(&place.key(id));
        }
        Some(place)
    }
}

/// An eviction that is only thought of.
struct Ahead<'a> {
    ranked: &'a Ranked,
    trees: &'a Trees,
    ready: Vec<Peekable<Copied<btree_set::Iter<'a, Key>>>>,
    /// Units that can go once others have gone.
    freed: Vec<BTreeSet<Key>>,
    tokens: Vec<u64>,
    /// Children that nodes have lost.
    lost: HashMap<NodeId, usize>,
}

impl View for Ahead<'_> {
    fn tokens(&self, list: usize) -> u64 {
        self.tokens[list]
    }

    fn now(&self) -> u64 {
        self.ranked.lists.now
    }
}

impl Ahead<'_> {
    fn pop(&mut self, list: usize) -> Option<NodeId> {
        let (ready, freed) = (self.ready[list].peek(), self.freed[list].first());
        match (ready, freed) {
            (Some(ready), Some(freed)) if freed < ready => self.freed[list].pop_first(),
            (Some(_), _) => self.ready[list].next(),
            (None, _) => self.freed[list].pop_first(),
        }
        .map(|key| key.2)
    }

    fn free_above(&mut self, id: NodeId) {
        let arena = &self.trees.arena;
        let above = arena[id].parent;
        if self.trees.checkpointed(id) || arena[above].is_root() {
            return;
        }
        let lost = self.lost.entry(above).or_default();
        *lost += 1;
        if *lost == arena[above].children.len()
            && arena[above].links.listed
            && let Some(place) = self.ranked.place(above)
        {
            self.freed[place.standing.list as usize].insert(place.key(above));
        }
    }
}

impl Iterator for Ahead<'_> {
    type Item = NodeId;

    fn next(&mut self) -> Option<NodeId> {
        let chosen = self.ranked.order.next(self);
        let id = self.pop(chosen).or_else(|| (0..self.tokens.len()).find_map(|list| self.pop(list)))?;
        let place = self.ranked.place(id)?;
        self.tokens[place.standing.list as usize] -= u64::from(place.tokens);
        self.free_above(id);
        Some(id)
    }
}

fn unit(node: &Node, hash: u64) -> Unit {
    Unit { tokens: node.len() as u32, start: node.start() as u32, hash }
}

/// Of all keys from the root to the node's end.
fn path_hash(arena: &Arena, id: NodeId) -> u64 {
    let path: Vec<NodeId> = upward(arena, id).collect();
    path.iter().rev().fold(0, |before, id| hash(before, &arena[*id].keys))
}

/// FNV-1a by word, going on from what is before.
fn hash(before: u64, keys: &[u32]) -> u64 {
    keys.iter()
        .fold(before, |hash, key| (hash ^ u64::from(*key)).wrapping_mul(0x0100_0000_01b3).rotate_left(23))
}
