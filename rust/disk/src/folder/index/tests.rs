//! Leaves, holds and links of the index.

use super::*;

fn name(start: u8, end: u8, kind: Kind) -> Name {
    let digest = |byte| Digest([byte; 32]);
    Name { space: digest(0), layout: digest(0), start: digest(start), length: 1, end: digest(end), kind }
}

fn entry(used: u64) -> Entry {
    Entry { bytes: 10, used: Duration::from_secs(used), parent: Parent::Unread }
}

#[test]
fn tails_are_evicted_before_heads_and_checkpoints_before_their_segment() {
    let mut index = Index::default();
    let (a, b) = (name(1, 2, Kind::Segment), name(2, 3, Kind::Segment));
    let c = name(2, 3, Kind::Checkpoint);
    index.insert(a, entry(1));
    index.insert(b, entry(2));
    index.insert(c, entry(3));
    let mut order = Vec::new();
    while let Some(victim) = index.victim(None, None) {
        index.check().unwrap();
        index.remove(&victim);
        order.push(*victim);
    }
    assert_eq!(order, [c, b, a]);
    assert_eq!((index.len(), index.bytes), (0, 0));
}

#[test]
fn the_header_gives_the_parent_of_a_child_of_a_split_node() {
    let mut index = Index::default();
    let (parent, child) = (name(1, 9, Kind::Segment), name(5, 6, Kind::Segment));
    index.replace(vec![(parent, entry(1)), (child, entry(2))]);
    assert_eq!(index.unlinked(Digest([0; 32]), Digest([0; 32])).len(), 2);
    index.update(&parent, |entry| entry.parent = Parent::Absent);
    index.update(&child, |entry| entry.parent = Parent::Ends(parent.end));
    assert_eq!(index.unlinked(Digest([0; 32]), Digest([0; 32])), []);
    assert_eq!(*index.victim(None, None).unwrap(), child);
    index.check().unwrap();
}

#[test]
fn held_records_parents_and_the_last_written_stay() {
    let mut index = Index::default();
    let (a, b) = (name(1, 2, Kind::Segment), name(3, 4, Kind::Segment));
    index.insert(a, entry(1));
    index.insert(b, entry(2));
    index.hold(&a);
    assert_eq!(*index.victim(None, None).unwrap(), b);
    assert_eq!(index.free_bytes(), 10);
    assert_eq!(index.victim(Some(b.end), None), None, "b is about to get a child");
    index.release(&a);
    assert_eq!(*index.victim(None, Some(&a)).unwrap(), b, "a was written last");
    index.remove(&b);
    assert_eq!(*index.victim(None, Some(&a)).unwrap(), a, "a is the only one left");
    index.check().unwrap();
}

#[test]
fn cyclic_links_do_not_keep_records_from_eviction() {
    let mut index = Index::default();
    index.insert(name(1, 2, Kind::Segment), entry(1));
    index.insert(name(2, 1, Kind::Segment), entry(1));
    index.insert(name(3, 3, Kind::Segment), entry(1));
    for _ in 0..3 {
        let victim = index.victim(None, None).unwrap();
        index.remove(&victim);
    }
    assert_eq!(index.len(), 0);
}
