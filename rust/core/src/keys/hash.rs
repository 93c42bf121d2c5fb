//! The hash of a path: one name for a namespace, a layout and the first tokens of a prompt.
//!
//! Policies know a unit again by it, ranks compare trees by it, and what leaves the process (events,
//! records on disk) is named by it. So it is the same in every process and on every machine, however the
//! tree is cut into nodes: the media in a path count by their contents, not by the ids that this index
//! gave them. It is BLAKE3, keyed, cut to 128 bits: tokens and namespaces are the tenants' to choose, and
//! no choice of them makes two paths equal, even for one who knows the key. (`SipHash` and xxh3 promise
//! that only while the key is secret, and the default one is public.)
//!
//! A [`PathHasher`] is the state after a path. Going on from a parent costs O(edge), so a tree is hashed
//! in one pass with a clone at each branch; a single path costs O(its tokens), 1.4 ns each. Nodes
//! keep no hash: 16 bytes in each would be paid by all, and nothing that is frequent asks for one.

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

/// What all hashes that are to be compared with each other have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u8; 32]);

impl Default for HashKey {
    /// Fixed for good: hashes made with it outlive the process.
    fn default() -> Self {
        Self(*b"kvcache: hash of a path, public.")
    }
}

impl fmt::Debug for HashKey {
    /// A secret one stays one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey")
    }
}

/// The content that a media key is for: a hash of its digest and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHash([u8; 16]);

impl ContentHash {
    /// The hash of one content.
    pub fn new(digest: &[u8], tokens: u32) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&tokens.to_le_bytes()).update(digest);
        Self(shortened(&hasher))
    }
}

/// The state after a path; extended key by key, it gives the hash of every prefix on the way.
#[derive(Clone, Debug)]
pub struct PathHasher(blake3::Hasher);

impl PathHasher {
    /// The state before the first token. `layout` is what names the layout wherever hashes are compared.
    pub fn new(key: &HashKey, namespace: &str, layout: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&key.0);
        for part in [namespace.as_bytes(), layout] {
            // The length first, so that no two pairs read alike.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Self(hasher)
    }

    /// Goes on by these keys; `content` is asked for each media key among them. O(len).
    pub fn extend(&mut self, keys: &[u32], content: impl Fn(u32) -> ContentHash) {
        const KEYS: usize = 256;
        for run in keys.chunk_by(|a, b| (a | b) & MEDIA_BIT == 0) {
            if run[0] & MEDIA_BIT != 0 {
                // No token has this value, so that a content's hash is never read as tokens.
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
