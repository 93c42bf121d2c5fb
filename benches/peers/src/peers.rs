//! The indexes, behind one trait. Each starts from raw token ids: hashing blocks counts.

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, compute_block_hash_for_seq,
    compute_seq_hash_for_block,
};
use kv_index::{TenantId, TokenTree};
use kvcache_core::{Limits, Need, PrefixIndex, Query};

/// The page of kv-index; also the smaller block of dynamo.
pub(crate) const BLOCK: usize = 16;

pub(crate) trait Peer {
    fn insert(&mut self, tokens: &[u32]);

    /// Tokens matched, in whole blocks where the peer has blocks.
    fn lookup(&mut self, tokens: &[u32]) -> usize;

    /// Drops the least recently used entries until some `tokens` are gone. False where the peer
    /// leaves the choice of victims to its caller.
    fn evict(&mut self, _tokens: usize) -> bool {
        false
    }

    /// What the peer itself says that it occupies.
    fn claimed_bytes(&self) -> Option<u64> {
        None
    }
}

pub(crate) type Make = fn() -> Box<dyn Peer>;

pub(crate) const PEERS: [(&str, Make); 4] = [
    ("kvcache", || Box::new(Own(PrefixIndex::new(Limits::default()), 0))),
    ("kv-index TokenTree", || Box::new(Pages::default())),
    ("dynamo RadixTree, 16", || Box::new(Blocks::new(16))),
    ("dynamo RadixTree, 64", || Box::new(Blocks::new(64))),
];

struct Own(PrefixIndex, u64);

impl Peer for Own {
    fn insert(&mut self, tokens: &[u32]) {
        self.1 += 1;
        self.0.insert("", &Query::tokens(tokens), 1, self.1).expect("valid tokens");
    }

    fn lookup(&mut self, tokens: &[u32]) -> usize {
        self.1 += 1;
        let query = Query::tokens(tokens);
        self.0.match_prefix("", &query, tokens.len(), Some(self.1)).expect("valid tokens").length
    }

    fn evict(&mut self, tokens: usize) -> bool {
        !self.0.evict(Need { tokens: tokens as u64, ..Need::default() }).is_empty()
    }

    fn claimed_bytes(&self) -> Option<u64> {
        Some(self.0.stats().index_bytes)
    }
}

const TENANT: &str = "engine";

struct Pages(TokenTree, TenantId);

impl Default for Pages {
    fn default() -> Self {
        Self(TokenTree::new(), TenantId::from(TENANT))
    }
}

impl Peer for Pages {
    fn insert(&mut self, tokens: &[u32]) {
        self.0.insert_tokens(tokens, TENANT);
    }

    fn lookup(&mut self, tokens: &[u32]) -> usize {
        self.0.match_prefix_with_counts(tokens).matched_token_count
    }

    fn evict(&mut self, tokens: usize) -> bool {
        let held = self.0.tenant_token_size(&self.1);
        self.0.evict_tenant(&self.1, held.saturating_sub(tokens));
        true
    }
}

struct Blocks {
    tree: RadixTree,
    block: usize,
    events: u64,
}

impl Blocks {
    fn new(block: usize) -> Self {
        Self { tree: RadixTree::new(), block, events: 0 }
    }
}

pub(crate) fn block_hashes(tokens: &[u32], block: usize) -> Vec<LocalBlockHash> {
    compute_block_hash_for_seq(tokens, block as u32, BlockHashOptions::default())
}

pub(crate) fn stored(tokens: &[u32], block: usize, event_id: u64) -> RouterEvent {
    let contents = block_hashes(tokens, block);
    let sequences = compute_seq_hash_for_block(&contents);
    let blocks = contents
        .into_iter()
        .zip(sequences)
        .map(|(tokens_hash, sequence)| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(sequence),
            tokens_hash,
            mm_extra_info: None,
        })
        .collect();
    let store = KvCacheStoreData { parent_hash: None, start_position: Some(0), blocks };
    let event = KvCacheEvent { event_id, data: KvCacheEventData::Stored(store), dp_rank: 0 };
    RouterEvent::new(0, event)
}

impl Peer for Blocks {
    fn insert(&mut self, tokens: &[u32]) {
        self.events += 1;
        let event = stored(tokens, self.block, self.events);
        self.tree.apply_event(event).expect("no parent is asked for");
    }

    fn lookup(&mut self, tokens: &[u32]) -> usize {
        let scores = self.tree.find_matches(block_hashes(tokens, self.block), false).scores;
        scores.values().max().map_or(0, |blocks| *blocks as usize * self.block)
    }
}
