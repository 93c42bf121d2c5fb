//! The operations of an index on prompts, as a trait, so that the driver can run on any implementation.

use kvcache_core::{
    BrokenInvariant, CheckpointSpec, Committed, Dropped, Error, Inserted, LabelAmount, LayoutId, LeaseId,
    Match, MediaKeys, Need, Outcome, Plan, PlanId, Planned, PrefixIndex, Query, Scope, SegmentId, Span,
    Stats, StoreRequest, Taken, TreeStats,
};

use super::prompt::Prompt;

/// A store, before it is planned.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) namespace: String,
    pub(crate) layout: u64,
    pub(crate) prompt: Prompt,
    pub(crate) bytes_per_token: u64,
    pub(crate) buffers: u32,
    pub(crate) checkpoint: Option<CheckpointSpec>,
    pub(crate) label: u16,
    pub(crate) prompt_length: Option<usize>,
}

impl Store {
    fn request<'a>(&'a self, query: &Query<'a>) -> StoreRequest<'a> {
        StoreRequest {
            namespace: &self.namespace,
            layout: LayoutId(self.layout),
            query: *query,
            bytes_per_token: self.bytes_per_token,
            segment_buffers: self.buffers,
            checkpoint: self.checkpoint,
            label: self.label,
            prompt: self.prompt_length,
        }
    }
}

pub(crate) trait Index {
    fn plan(&mut self, store: &Store, stamp: u64) -> Result<(Planned, Dropped), Error>;
    fn draft(&mut self, store: &Store, stamp: u64) -> Result<Outcome, Error>;
    fn settle(&mut self, draft: PlanId, length: usize, recopy: bool) -> Result<(Need, Dropped), Error>;
    fn promise(&mut self, draft: PlanId) -> Result<Plan, Error>;
    fn commit(&mut self, plan: PlanId, stamp: u64) -> Result<Committed, Error>;
    fn abort(&mut self, plan: PlanId) -> Result<Dropped, Error>;
    fn insert(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        bytes_per_token: u64,
        stamp: u64,
    ) -> Result<Inserted, Error>;
    fn lookup(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        limit: usize,
        touch: Option<u64>,
    ) -> Result<Match, Error>;
    fn acquire(&mut self, namespace: &str, prompt: &Prompt, limit: usize) -> Result<(Match, Scope), Error>;
    fn take(&mut self, namespace: &str, prompt: &Prompt, limit: usize) -> Result<(Match, Taken), Error>;
    fn release(&mut self, lease: LeaseId, stamp: u64) -> Dropped;
    fn evict(&mut self, need: Need) -> Dropped;
    fn evict_idle(&mut self, stamp: u64) -> Dropped;
    fn count_units(&self, need: Need) -> u64;
    fn count_idle(&self, stamp: u64) -> u64;
    fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Dropped>;
    fn compacted(&mut self, lease: LeaseId, segment: SegmentId, parts: u32) -> bool;
    fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> bool;
    fn unreserve_bytes(&mut self, nbytes: u64, buffers: u64);
    fn drop_namespace(&mut self, namespace: &str) -> Dropped;
    fn clear(&mut self) -> Dropped;
    fn stats(&self) -> Stats;
    fn namespace_stats(&self, namespace: &str) -> TreeStats;
    fn labels(&self) -> Vec<LabelAmount>;
    fn layouts(&self, namespace: &str) -> Vec<LayoutId>;
    fn validate(&self) -> Result<(), BrokenInvariant>;
}

/// Calls `with` on the prompt's query. Ids without media are passed unchecked, as an engine passes them.
pub(crate) fn with_query<R>(
    index: &mut PrefixIndex,
    prompt: &Prompt,
    intern: bool,
    with: impl FnOnce(&mut PrefixIndex, &Query<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let ids = prompt.ids();
    if prompt.spans().is_empty() {
        return with(index, &Query::tokens(&ids));
    }
    let keys = media_keys(index, prompt, intern)?;
    with(index, &keys.query())
}

pub(crate) fn media_keys(index: &mut PrefixIndex, prompt: &Prompt, intern: bool) -> Result<MediaKeys, Error> {
    let spans = prompt.spans();
    let digests: Vec<[u8; 1]> = spans.iter().map(|span| [span.2]).collect();
    let spans: Vec<Span<'_>> = spans
        .iter()
        .zip(&digests)
        .map(|(&(start, end, _), digest)| Span { start, length: end - start, digest })
        .collect();
    index.media_keys(&prompt.ids(), &spans, intern)
}

impl Index for PrefixIndex {
    fn plan(&mut self, store: &Store, stamp: u64) -> Result<(Planned, Dropped), Error> {
        with_query(self, &store.prompt, true, |index, query| index.plan(&store.request(query), stamp))
    }

    fn draft(&mut self, store: &Store, stamp: u64) -> Result<Outcome, Error> {
        with_query(self, &store.prompt, true, |index, query| index.draft(&store.request(query), stamp))
    }

    fn settle(&mut self, draft: PlanId, length: usize, recopy: bool) -> Result<(Need, Dropped), Error> {
        self.settle(draft, length, recopy)
    }

    fn promise(&mut self, draft: PlanId) -> Result<Plan, Error> {
        self.promise(draft)
    }

    fn commit(&mut self, plan: PlanId, stamp: u64) -> Result<Committed, Error> {
        self.commit(plan, stamp)
    }

    fn abort(&mut self, plan: PlanId) -> Result<Dropped, Error> {
        self.abort(plan)
    }

    fn insert(&mut self, namespace: &str, prompt: &Prompt, each: u64, stamp: u64) -> Result<Inserted, Error> {
        with_query(self, prompt, true, |index, query| index.insert(namespace, query, each, stamp))
    }

    fn lookup(
        &mut self,
        namespace: &str,
        prompt: &Prompt,
        limit: usize,
        touch: Option<u64>,
    ) -> Result<Match, Error> {
        with_query(self, prompt, false, |index, query| index.match_prefix(namespace, query, limit, touch))
    }

    fn acquire(&mut self, namespace: &str, prompt: &Prompt, limit: usize) -> Result<(Match, Scope), Error> {
        with_query(self, prompt, false, |index, query| index.acquire(namespace, query, limit))
    }

    fn take(&mut self, namespace: &str, prompt: &Prompt, limit: usize) -> Result<(Match, Taken), Error> {
        with_query(self, prompt, false, |index, query| index.take(namespace, query, limit))
    }

    fn release(&mut self, lease: LeaseId, stamp: u64) -> Dropped {
        self.release(lease, stamp)
    }

    fn evict(&mut self, need: Need) -> Dropped {
        self.evict(need)
    }

    fn evict_idle(&mut self, stamp: u64) -> Dropped {
        self.evict_idle(stamp)
    }

    fn count_units(&self, need: Need) -> u64 {
        self.count_units(need)
    }

    fn count_idle(&self, stamp: u64) -> u64 {
        self.count_idle(stamp)
    }

    fn make_room(&mut self, nbytes: u64, buffers: u64) -> Option<Dropped> {
        self.make_room(nbytes, buffers)
    }

    fn compacted(&mut self, lease: LeaseId, segment: SegmentId, parts: u32) -> bool {
        self.compacted(lease, segment, parts)
    }

    fn reserve_bytes(&mut self, nbytes: u64, buffers: u64) -> bool {
        self.reserve_bytes(nbytes, buffers)
    }

    fn unreserve_bytes(&mut self, nbytes: u64, buffers: u64) {
        self.unreserve_bytes(nbytes, buffers);
    }

    fn drop_namespace(&mut self, namespace: &str) -> Dropped {
        self.drop_namespace(namespace)
    }

    fn clear(&mut self) -> Dropped {
        self.clear()
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn namespace_stats(&self, namespace: &str) -> TreeStats {
        self.namespace_stats(namespace)
    }

    fn labels(&self) -> Vec<LabelAmount> {
        self.labels().to_vec()
    }

    fn layouts(&self, namespace: &str) -> Vec<LayoutId> {
        self.layouts(namespace)
    }

    fn validate(&self) -> Result<(), BrokenInvariant> {
        self.validate()
    }
}
