//! Named cases: images, adapters, tenants.

mod common;

use kvcache_core::{Error, Limits, PrefixIndex, Reason};

use common::engine::{Engine, limits, run, span};
use common::index::{Index, Store, media_keys};
use common::prompt::{Part, Prompt};

/// Ten text tokens, a span of ten tokens, ten text tokens.
fn with_image(digest: u8) -> Prompt {
    run(0, 10).then(&Prompt::media(digest, 10)).then(&run(20, 30))
}

/// Different content under the same placeholders, none, or the same content elsewhere diverges at the span's
/// first token. A match never ends inside a span.
#[test]
fn an_image_matches_only_itself_at_the_same_position() {
    let mut engine = Engine::new(limits());
    engine.put(&with_image(b'A'));
    assert_eq!(engine.get(&with_image(b'A')), 29);
    assert_eq!(engine.get(&with_image(b'B')), 10);
    assert_eq!(engine.get(&run(0, 30)), 10, "the query has no media, the cache has");
    let later = run(0, 11).then(&Prompt::media(b'A', 10)).then(&run(20, 30));
    assert_eq!(engine.get(&later), 10, "one token later");
    let longer = run(0, 10).then(&Prompt::media(b'A', 11)).then(&run(20, 30));
    assert_eq!(engine.get(&longer), 10, "the length is part of the identity");
    let cut = engine.index.lookup("", &with_image(b'A'), 15, None).unwrap();
    assert_eq!((cut.length, cut.matched), (10, 30), "the limit falls inside the image");

    let mut engine = Engine::new(limits());
    engine.put(&run(0, 30));
    assert_eq!(engine.get(&with_image(b'B')), 10, "the query has media, the cache has none");
}

/// A match does not end inside a span even if eviction has left half an image.
#[test]
fn half_an_image_is_not_served() {
    let mut engine = Engine::new(Limits { segment_tokens: 5, ..limits() });
    engine.put(&with_image(b'A'));
    engine.evict_units(3);
    assert_eq!(engine.index.ntokens(), 15);
    assert_eq!(engine.get(&with_image(b'A')), 10);
    assert_eq!(engine.put(&with_image(b'A')), 30);
    assert_eq!(engine.get(&with_image(b'A')), 29);
}

/// Only the caller's content digest identifies an image.
#[test]
fn different_content_is_a_different_image() {
    let mut engine = Engine::new(limits());
    let frame = |digest| Prompt::media(digest, 4).then(&run(0, 4));
    engine.put(&frame(1));
    assert_eq!(engine.get(&frame(1)), 7);
    let other = engine.fetch("", &frame(2));
    assert_eq!((other.length, other.reason), (0, Reason::Media));
}

/// Text before a new image stays reusable.
#[test]
fn a_new_image_keeps_the_text_before_it() {
    let mut engine = Engine::new(limits());
    engine.put(&run(0, 1000).then(&Prompt::media(b'A', 50)).then(&run(0, 10)));
    assert_eq!(engine.get(&run(0, 1000).then(&Prompt::media(b'B', 50))), 1000);
}

/// A store that is cut to fit is cut before an image. One that would add nothing leaves the other branch
/// alone.
#[test]
fn a_store_that_does_not_fit_is_cut_before_an_image() {
    let mut engine = Engine::new(Limits { max_bytes: 15, ..limits() });
    assert_eq!(engine.put(&with_image(b'A')), 10);

    let mut engine = Engine::new(Limits { max_bytes: 12, ..limits() });
    let text = run(0, 12);
    engine.put(&text);
    let (length, evicted) = engine.store(&span("", &with_image(b'A')));
    assert_eq!((length, evicted.is_empty()), (0, true));
    assert_eq!(engine.index.ntokens(), 12);
    assert_eq!(engine.get(&text), 11, "a store that gains nothing must lose nothing");
}

/// Adapters and tenants have their own namespaces: they never see each other's tokens, and statistics and
/// drops are per namespace.
#[test]
fn namespaces_never_mix() {
    let mut engine = Engine::new(limits());
    let prompt = run(0, 100);
    engine.store(&span("m lora@v1", &prompt));
    let other = engine.fetch("m lora@v2", &prompt);
    assert_eq!((other.length, other.matched, other.reason), (0, 0, Reason::NoEntry));

    engine.store(&span("m lora@v2", &prompt.then(&run(100, 150))));
    let tokens_held = |engine: &Engine, name| engine.index.namespace_stats(name).ntokens;
    assert_eq!((tokens_held(&engine, "m lora@v1"), tokens_held(&engine, "m lora@v2")), (100, 150));
    let dropped = engine.index.drop_namespace("m lora@v1");
    assert_eq!((dropped.segments.len(), dropped.amount.tokens), (1, 100));
    assert_eq!((tokens_held(&engine, "m lora@v1"), tokens_held(&engine, "m lora@v2")), (0, 150));
    assert_eq!(engine.fetch("m lora@v1", &prompt).length, 0);
    assert_eq!(engine.fetch("m lora@v2", &prompt).length, 99);
}

/// Interns enough unused contents to trigger a sweep.
fn many_images(index: &mut PrefixIndex) {
    for digest in 0..=u8::MAX {
        for length in 1..3 {
            media_keys(index, &Prompt::media(digest, length), true).unwrap();
        }
    }
}

/// A key that a caller holds keeps its meaning, however many images come and go.
#[test]
fn a_key_in_use_keeps_its_meaning() {
    let image = |digest| Prompt(vec![Part::Media(digest, 9), Part::Text(1)]);
    let mut index = PrefixIndex::new(limits());
    let held = media_keys(&mut index, &image(7), true).unwrap();
    many_images(&mut index);
    let query = held.query();
    let inserted = index.insert("", &query, 1, 0).unwrap();
    assert_eq!(inserted.length, 10);
    drop(held);
    many_images(&mut index);
    for digest in 0..=u8::MAX {
        let prefix = index.lookup("", &image(digest), 10, None).unwrap();
        assert_eq!(prefix.length, if digest == 7 { 10 } else { 0 }, "image {digest}");
    }
}

/// Keys built for a lookup of unknown content cannot be stored.
#[test]
fn unknown_content_is_not_stored() {
    let mut index = PrefixIndex::new(limits());
    let prompt = with_image(b'A');
    let looked_up = media_keys(&mut index, &prompt, false).unwrap();
    let refused = index.insert("", &looked_up.query(), 1, 0);
    assert_eq!(refused, Err(Error::InvalidToken { position: 10, key: u32::MAX }));
    let store: Store = span("", &prompt);
    Index::plan(&mut index, &store, 0).unwrap();
    assert_eq!(index.lookup("", &with_image(b'B'), 29, None).unwrap().length, 0);
}

/// Ranks that make the same calls assign the same ids to contents, even after sweeps. The choice among
/// several checkpoints may depend on them.
#[test]
fn ranks_assign_the_same_content_ids() {
    let mut ranks = [PrefixIndex::new(limits()), PrefixIndex::new(limits())];
    ranks.iter_mut().for_each(many_images);
    let all = Prompt((0..100).map(|digest| Part::Media(digest, 5)).collect());
    let [left, right] = ranks.each_mut().map(|rank| media_keys(rank, &all, true).unwrap());
    assert!(left == right, "the keys differ");
}
