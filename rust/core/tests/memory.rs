//! Compares the index's own count of its heap bytes with the allocator's, to the byte.
// `GlobalAlloc` is an unsafe trait. This implementation counts and forwards.
#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kvcache_core::{
    BrokenInvariant, Committed, Dropped, Error, Inserted, LabelAmount, LayoutId, LeaseId, Limits, Match,
    Need, Outcome, Plan, PlanId, Planned, PrefixIndex, Query, Scope, SegmentId, Stats, Taken, TreeStats,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use common::driver::run;
use common::index::{Index, Store};
use common::operations::{config, script};
use common::prompt::Prompt;

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: usize, sign: isize) {
    LIVE.with(|live| live.set(live.get() + sign * bytes.cast_signed()));
}

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> isize {
    LIVE.with(Cell::get)
}

fn since(before: isize) -> u64 {
    u64::try_from(live() - before).unwrap()
}

/// An index, and the bytes that its calls have allocated and not freed.
struct Counted {
    inner: PrefixIndex,
    bytes: isize,
}

impl Counted {
    fn new(limits: Limits) -> Self {
        let before = live();
        let inner = PrefixIndex::new(limits);
        Self { inner, bytes: live() - before }
    }

    /// Runs a call. Its result belongs to the caller, so it does not count.
    fn call<R: Clone>(&mut self, call: impl FnOnce(&mut PrefixIndex) -> R) -> R {
        let before = live();
        let result = call(&mut self.inner);
        self.bytes += live() - before;
        let copy = result.clone();
        let before = live();
        drop(result);
        self.bytes += live() - before;
        copy
    }
}

impl Index for Counted {
    fn plan(&mut self, store: &Store, stamp: u64) -> Result<(Planned, Dropped), Error> {
        self.call(|inner| Index::plan(inner, store, stamp))
    }

    fn draft(&mut self, store: &Store, stamp: u64) -> Result<Outcome, Error> {
        self.call(|inner| Index::draft(inner, store, stamp))
    }

    fn settle(&mut self, draft: PlanId, length: usize, recopy: bool) -> Result<(Need, Dropped), Error> {
        self.call(|inner| inner.settle(draft, length, recopy))
    }

    fn promise(&mut self, draft: PlanId) -> Result<Plan, Error> {
        self.call(|inner| inner.promise(draft))
    }

    fn count_units(&self, need: Need) -> u64 {
        self.inner.count_units(need)
    }

    fn count_idle(&self, stamp: u64) -> u64 {
        self.inner.count_idle(stamp)
    }

    fn commit(&mut self, plan: PlanId, stamp: u64) -> Result<Committed, Error> {
        self.call(|inner| inner.commit(plan, stamp))
    }

    fn abort(&mut self, plan: PlanId) -> Result<Dropped, Error> {
        self.call(|inner| inner.abort(plan))
    }

    fn insert(&mut self, namespace: &str, prompt: &Prompt, each: u64, stamp: u64) -> Result<Inserted, Error> {
        self.call(|inner| Index::insert(inner, namespace, prompt, each, stamp))
    }

    fn lookup(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        limit: usize,
        touch: Option<u64>,
    ) -> Result<Match, Error> {
        self.call(|inner| inner.lookup(namespace, prompt, limit, touch))
    }

    fn acquire(&mut self, namespace: &str, prompt: &Prompt, limit: usize) -> Result<(Match, Scope), Error> {
        self.call(|inner| Index::acquire(inner, namespace, prompt, limit))
    }

    fn take(&mut self, namespace: &str, prompt: &Prompt, limit: usize) -> Result<(Match, Taken), Error> {
        self.call(|inner| Index::take(inner, namespace, prompt, limit))
    }

    fn release(&mut self, lease: LeaseId, stamp: u64) -> Dropped {
        self.call(|inner| inner.release(lease, stamp))
    }

    fn evict(&mut self, need: Need) -> Dropped {
        self.call(|inner| inner.evict(need))
    }

    fn evict_idle(&mut self, stamp: u64) -> Dropped {
        self.call(|inner| inner.evict_idle(stamp))
    }

    fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Dropped> {
        self.call(|inner| inner.make_room(nbytes, buffers))
    }

    fn compacted(&mut self, lease: LeaseId, segment: SegmentId, parts: u32) -> bool {
        self.call(|inner| inner.compacted(lease, segment, parts))
    }

    fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> bool {
        self.call(|inner| inner.reserve_bytes(nbytes, buffers))
    }

    fn unreserve_bytes(&mut self, nbytes: u64, buffers: u64) {
        self.call(|inner| inner.unreserve_bytes(nbytes, buffers));
    }

    fn drop_namespace(&mut self, namespace: &str) -> Dropped {
        self.call(|inner| inner.drop_namespace(namespace))
    }

    fn clear(&mut self) -> Dropped {
        self.call(PrefixIndex::clear)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn namespace_stats(&self, namespace: &str) -> TreeStats {
        self.inner.namespace_stats(namespace)
    }

    fn labels(&self) -> Vec<LabelAmount> {
        self.inner.labels().to_vec()
    }

    fn layouts(&self, namespace: &str) -> Vec<LayoutId> {
        self.inner.layouts(namespace)
    }

    fn validate(&self) -> Result<(), BrokenInvariant> {
        self.inner.validate()?;
        let reported = self.inner.stats().index_bytes;
        if reported.cast_signed() != self.bytes as i64 {
            return Err(BrokenInvariant(format!(
                "index_bytes is {reported}, the allocator counts {}",
                self.bytes
            )));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(config(300))]

    /// The driver validates after every step, which compares the bytes.
    #[test]
    fn index_bytes_is_what_the_allocator_counted(script in script(60)) {
        run(&script, Counted::new).map_err(TestCaseError::fail)?;
    }
}

/// Ids cost four bytes per token; the tree adds less than a tenth of that.
#[test]
fn a_long_key_costs_little_more_than_its_ids() {
    const TOKENS: u32 = 131_072;
    let keys: Vec<u32> = (0..TOKENS).collect();
    let before = live();
    let mut index = PrefixIndex::new(Limits::default());
    index.insert("", &Query::tokens(&keys), 1, 0).unwrap();
    let counted = since(before);
    assert_eq!(counted, index.stats().index_bytes);
    assert!(counted * 10 <= u64::from(TOKENS) * 43, "{counted} bytes for {TOKENS} tokens");
}

/// A cleared index holds nothing that grew with what was stored.
#[test]
fn a_cleared_index_is_small() {
    let before = live();
    let mut index = PrefixIndex::new(Limits { segment_tokens: 16, ..Limits::default() });
    for prompt in 0..1000_u32 {
        let keys: Vec<u32> = (0..100).map(|at| prompt * 1000 + at).collect();
        index.insert("", &Query::tokens(&keys), 1, 0).unwrap();
    }
    drop(index.clear());
    let left = since(before);
    assert_eq!(left, index.stats().index_bytes);
    assert!(left < 4096, "{left} bytes are left");
}
