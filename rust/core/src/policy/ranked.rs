//! The lists of an order: which units can go now, and which of them goes next.

use std::collections::BTreeSet;

use crate::ids::NodeId;
use crate::policy::ahead::Ahead;
use crate::policy::{Chooser, First, Order, Standing, Unit, View};
use crate::radix::arena::Arena;
use crate::radix::edit::Trees;
use crate::radix::node::Node;
use crate::radix::walk::upward;

/// (score, when it was used, unit), so that the first goes first.
pub(super) type Key = (u64, u64, NodeId);

/// Keys at a unit's beginning that are part of its mark: what is shared by less is told apart.
const MARKED: usize = 8;

/// One list of an order.
#[derive(Debug, Default)]
struct List {
    /// Units that can go now: no lease holds them, and no child hangs on them.
    ready: BTreeSet<Key>,
    /// Tokens of all its units, ready or not.
    tokens: u64,
}

/// A unit's place.
#[derive(Clone, Copy, Debug)]
struct Place {
    standing: Standing,
    /// Counts uses, so that no two units were used at once.
    used: u64,
    /// Of all keys up to the unit's end, where the order looks at marks.
    hash: u64,
    mark: u64,
    tokens: u32,
    ready: bool,
    evicted: bool,
}

/// An order with its lists. Every operation is O(log units).
#[derive(Debug)]
pub(crate) struct Ranked {
    order: Box<dyn Order>,
    lists: Vec<List>,
    /// By node.
    places: Vec<Option<Place>>,
    uses: u64,
}

impl Ranked {
    pub(crate) fn new(order: Box<dyn Order>) -> Self {
        let lists = (0..order.lists()).map(|_| List::default()).collect();
        Self { order, lists, places: Vec::new(), uses: 0 }
    }

    /// A lookup of so many tokens begins.
    pub(crate) fn request(&mut self, tokens: usize) {
        let held = self.held();
        self.order.request(tokens as u64, held);
    }

    /// A unit comes in. It cannot go before [`Self::settle`] or [`Self::refresh`] says so.
    pub(crate) fn added(&mut self, arena: &Arena, id: NodeId) {
        let (hash, mark) = self.hashes(arena, id);
        let unit = unit_of(&arena[id], mark);
        let held = self.held();
        let standing = self.order.added(unit, held);
        self.put(id, standing, hash, unit);
    }

    /// `upper` is now what `lower` began with; both stand where it stood.
    pub(crate) fn split(&mut self, arena: &Arena, upper: NodeId, lower: NodeId) {
        let Some(old) = self.take(lower) else { return };
        let whole = Unit { tokens: old.tokens, start: arena[upper].start() as u32, mark: old.mark };
        let units = [upper, lower].map(|id| {
            let (hash, mark) = self.hashes(arena, id);
            let unit = unit_of(&arena[id], mark);
            self.put(id, old.standing, hash, unit);
            unit
        });
        self.order.split(whole, units);
    }

    /// A lookup found the unit.
    pub(crate) fn hit(&mut self, arena: &Arena, id: NodeId) {
        let Some(mut place) = self.take(id) else { return };
        let unit = unit_of(&arena[id], place.mark);
        self.order.hit(unit, &mut place.standing);
        place.standing.hits = place.standing.hits.saturating_add(1);
        self.give(id, place);
    }

    /// The unit is the most recently used one, and can go now, or not.
    pub(crate) fn refresh(&mut self, arena: &Arena, id: NodeId, ready: bool) {
        let Some(mut place) = self.take(id) else { return };
        self.uses += 1;
        place.used = self.uses;
        place.ready = ready;
        self.give(id, place);
        let (unit, held) = (unit_of(&arena[id], place.mark), self.held());
        self.order.refreshed(unit, held);
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
        let Some(Some(place)) = self.places.get_mut(id.0 as usize) else { return };
        place.evicted = true;
        let place = *place;
        let unit = unit_of(&arena[id], place.mark);
        self.order.evicted(unit, place.standing, &Lists(&self.lists, &self.places));
    }

    /// The unit is no more.
    pub(crate) fn gone(&mut self, arena: &Arena, id: NodeId) {
        let Some(place) = self.take(id) else { return };
        if !place.evicted {
            let unit = unit_of(&arena[id], place.mark);
            self.order.dropped(unit);
        }
        if self.held() == 0 {
            self.places = Vec::new();
        }
    }

    /// The unit that goes next. O(lists).
    pub(crate) fn next(&self) -> Option<NodeId> {
        let first = |list: &List| list.ready.first().map(|key| key.2);
        let chosen = self.chooser().next(&Lists(&self.lists, &self.places));
        first(&self.lists[chosen]).or_else(|| self.lists.iter().find_map(first))
    }

    /// The units in the order in which they would go if nothing else happened.
    pub(crate) fn ahead<'a>(&'a self, trees: &'a Trees) -> impl Iterator<Item = NodeId> + 'a {
        Ahead::new(self, trees)
    }

    /// Units that can go now.
    pub(crate) fn ready(&self) -> impl Iterator<Item = NodeId> {
        self.lists.iter().flat_map(|list| list.ready.iter().map(|key| key.2))
    }

    /// Bytes on the heap; the sets' share is an estimate, two thirds full.
    pub(crate) fn bytes(&self) -> usize {
        let ready: usize = self.lists.iter().map(|list| list.ready.len()).sum();
        self.places.capacity() * size_of::<Option<Place>>()
            + ready * size_of::<Key>() * 3 / 2
            + self.lists.capacity() * size_of::<List>()
            + self.order.bytes()
    }

    pub(super) fn chooser(&self) -> Box<dyn Chooser + '_> {
        self.order.chooser()
    }

    /// What can go now, and the tokens, of each list.
    pub(super) fn lists(&self) -> impl Iterator<Item = (&BTreeSet<Key>, u64)> {
        self.lists.iter().map(|list| (&list.ready, list.tokens))
    }

    /// A unit's list, and its key in it.
    pub(super) fn key(&self, id: NodeId) -> Option<(usize, Key)> {
        self.place(id).map(|place| (place.standing.list as usize, key(place, id)))
    }

    pub(super) fn figures(&self, id: NodeId) -> Option<First> {
        self.place(id).map(|place| First { used: place.used, tokens: place.tokens })
    }

    pub(super) fn unit(&self, arena: &Arena, id: NodeId) -> Option<Unit> {
        self.place(id).map(|place| unit_of(&arena[id], place.mark))
    }

    fn held(&self) -> u64 {
        self.lists.iter().map(|list| list.tokens).sum()
    }

    /// The hash of all keys up to the node's end, and the unit's mark.
    fn hashes(&self, arena: &Arena, id: NodeId) -> (u64, u64) {
        if !self.order.marks() {
            return (0, 0);
        }
        let node = &arena[id];
        let before = self.place(node.parent).map_or_else(
            // No unit stands above: the parent is the root, or has no checkpoint.
            || {
                let path: Vec<NodeId> = upward(arena, node.parent).collect();
                path.iter().rev().fold(0, |before, id| hash(before, &arena[*id].keys))
            },
            |above| above.hash,
        );
        // Where it begins is part of the mark: the same keys may stand in two nodes or in one.
        let mark = hash(hash(before, &[node.start() as u32]), &node.keys[..node.len().min(MARKED)]);
        (hash(before, &node.keys), mark)
    }

    fn place(&self, id: NodeId) -> Option<&Place> {
        self.places.get(id.0 as usize)?.as_ref()
    }

    fn put(&mut self, id: NodeId, standing: Standing, hash: u64, unit: Unit) {
        let Unit { mark, tokens, .. } = unit;
        let place = Place { standing, used: self.uses, hash, mark, tokens, ready: false, evicted: false };
        self.give(id, place);
    }

    fn give(&mut self, id: NodeId, place: Place) {
        let at = id.0 as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        let list = &mut self.lists[place.standing.list as usize];
        list.tokens += u64::from(place.tokens);
        if place.ready {
            list.ready.insert(key(&place, id));
        }
        self.places[at] = Some(place);
    }

    fn take(&mut self, id: NodeId) -> Option<Place> {
        let place = self.places.get_mut(id.0 as usize)?.take()?;
        let list = &mut self.lists[place.standing.list as usize];
        list.tokens -= u64::from(place.tokens);
        if place.ready {
            list.ready.remove(&key(&place, id));
        }
        Some(place)
    }
}

struct Lists<'a>(&'a [List], &'a [Option<Place>]);

impl View for Lists<'_> {
    fn tokens(&self, list: usize) -> u64 {
        self.0[list].tokens
    }

    fn first(&self, list: usize) -> Option<First> {
        let (_, used, id) = self.0[list].ready.first()?;
        let place = self.1[id.0 as usize].as_ref()?;
        Some(First { used: *used, tokens: place.tokens })
    }
}

fn unit_of(node: &Node, mark: u64) -> Unit {
    Unit { tokens: node.len() as u32, start: node.start() as u32, mark }
}

fn key(place: &Place, id: NodeId) -> Key {
    (place.standing.score, place.used, id)
}

/// FNV-1a by word, going on from what is before.
fn hash(before: u64, keys: &[u32]) -> u64 {
    keys.iter()
        .fold(before, |hash, key| (hash ^ u64::from(*key)).wrapping_mul(0x0100_0000_01b3).rotate_left(23))
}
