//! Path hashes: one name for a namespace, a layout and the first tokens of a prompt.
//!
//! Policies recognise a returning unit by its path hash, ranks compare trees by it, and it names whatever
//! leaves the process (events, records on disk). So it is the same in every process and on every machine,
//! however the tree is cut into nodes: media are hashed by content, not by the ids of this index.
//!
//! The hash is keyed BLAKE3, truncated to 128 bits. Tenants choose their tokens and namespaces, and
//! finding two paths with the same hash must be infeasible even for one who knows the key. (`SipHash` and
//! xxh3 offer that only while the key is secret, and the default key is public.)
//!
//! A [`PathHasher`] is the state after a path. Extending it by an edge costs O(edge), so a tree is hashed
//! in one pass with a clone at each branch; a single path costs 1.4 ns per token. Nodes do not store
//! their hash: it would cost 16 bytes each, and no frequent operation needs it.

use std::fmt;

use crate::keys::token::MEDIA_BIT;

/// The hash of a path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathHash(pub [u8; 16]);

impl fmt::Display for PathHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PathHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The key of the hash. Only hashes under the same key are comparable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u8; 32]);

impl Default for HashKey {
    /// Never changes: hashes under it outlive the process.
    fn default() -> Self {
        Self(*b"kvcache: hash of a path, public.")
    }
}

impl fmt::Debug for HashKey {
    /// Prints nothing of the key, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey")
    }
}

/// The hash of a media content: of its digest and its length in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHash([u8; 16]);

impl ContentHash {
    /// Hashes one content.
    pub fn new(digest: &[u8], tokens: u32) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&tokens.to_le_bytes()).update(digest);
        Self(shortened(&hasher))
    }
}

/// The state after a path. Extended key by key, it yields the hash of every prefix on the way.
#[derive(Clone, Debug)]
pub struct PathHasher(blake3::Hasher);

impl PathHasher {
    /// The state before the first token. `layout` must identify the layout in every process that compares hashes.
    pub fn new(key: &HashKey, namespace: &str, layout: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&key.0);
        for part in [namespace.as_bytes(), layout] {
            // Hash the length first, so that no two pairs hash the same bytes.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Self(hasher)
    }

    /// Extends the path by `keys`; `content` maps a media key to its content. O(len).
    pub fn extend(&mut self, keys: &[u32], content: impl Fn(u32) -> ContentHash) {
        const KEYS: usize = 256;
        for run in keys.chunk_by(|a, b| (a | b) & MEDIA_BIT == 0) {
            if run[0] & MEDIA_BIT != 0 {
                // No token has this value, so tokens can never imitate a content hash.
                self.0.update(&u32::MAX.to_le_bytes()).update(&content(run[0]).0);
                continue;
            }
            for keys in run.chunks(KEYS) {
                let mut bytes = [0; 4 * KEYS];
                for (bytes, key) in bytes.chunks_exact_mut(4).zip(keys) {
                    bytes.copy_from_slice(&key.to_le_bytes());
                }
                self.0.update(&bytes[..4 * keys.len()]);
            }
        }
    }

    /// The hash of the path so far.
    pub fn hash(&self) -> PathHash {
        PathHash(shortened(&self.0))
    }
}

fn shortened(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    short
}

#[cfg(test)]
mod tests;
