//! Content names: the file name of a record, and the hashes it consists of.
//!
//! `h(p)` covers everything that the KV of the first `p` tokens depends on: format version, namespace, rank,
//! number of ranks, layout, `segment_tokens`, the tokens up to `p`, and the media spans among them. It does
//! not depend on how a tree is cut, so processes and machines find each other's records. One pass over a
//! prompt yields the hashes at all boundaries: 131,072 tokens and 128 boundaries take about 0.2 ms.
//!
//! ```text
//! <namespace digest>/<layout digest>/<h(start)>/<length>-<h(end)>.kv        a segment
//! <namespace digest>/<layout digest>/<h(start)>/<length>-<h(end)>.cp.kv     a checkpoint after token `end`
//! ```
//!
//! ```text
//! field(x) = length of x in bytes as u64, x          all numbers little-endian
//! H        = BLAKE3, keyed with derive_key("kvcache 2026 record names", secret) if there is a secret
//! layout   = H(field("kvcache layout"), field(layout))
//! space    = H(field("kvcache namespace"), field(namespace), rank u32, ranks u32)
//! root     = H(field("kvcache prefix"), version u32, field(namespace), rank u32, ranks u32, layout,
//!              segment_tokens u32)
//! h(p)     = BLAKE3 keyed with root, of the tokens before p as u32; the first token of a media span is
//!            preceded by 0xFFFFFFFF, the span's length as u64 and its digest
//! ```
//!
//! A name alone is never trusted: a reader also compares the header and the tokens.

use std::{fmt, path::PathBuf, sync::Arc};

use crate::digest::Digest;

/// Version of names and records. Part of every hash, so records of another version are never found.
pub const FORMAT_VERSION: u32 = 1;

/// All token ids are below this. Above it is the marker of a media span in the hashed stream.
pub const TOKEN_LIMIT: u32 = 1 << 31;
const MEDIA_MARK: u32 = u32::MAX;
/// Bytes per hash update.
const BLOCK: usize = 16 * 1024;

/// Everything except tokens that decides whether KV may be reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Model, revision, adapter, tenant: everything that must never mix. Not empty.
    pub namespace: String,
    /// Layer classes, shapes per token, dtypes, quantisation, as any string that is equal if and only if KV
    /// can be joined.
    pub layout: String,
    /// This process's rank in a tensor- or pipeline-parallel run.
    pub rank: u32,
    /// Number of ranks; 1 without parallelism.
    pub ranks: u32,
    /// Maximum tokens per segment. Caches that differ in it share nothing.
    pub segment_tokens: u32,
}

/// An image or audio span: `length` tokens from `start` that represent the content `digest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    /// Position of its first token in the prompt.
    pub start: usize,
    /// Number of tokens; at least 1.
    pub length: usize,
    /// Digest of the content.
    pub digest: Digest,
}

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The KV of its own tokens.
    Segment,
    /// The sliding-window and recurrent layers after its last token. Usable only with the KV before it.
    Checkpoint,
}

/// The name of one record. Cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Digest of namespace and rank: the first folder.
    pub space: Digest,
    /// Digest of the layout: the second folder.
    pub layout: Digest,
    /// `h(start)`: the third folder.
    pub start: Digest,
    /// Tokens in the record.
    pub length: u32,
    /// `h(start + length)`.
    pub end: Digest,
    /// Segment or checkpoint.
    pub kind: Kind,
}

impl Name {
    /// Path below the root folder.
    pub fn path(&self) -> PathBuf {
        let mut path = PathBuf::with_capacity(300);
        path.extend([self.space.to_string(), self.layout.to_string(), self.tail()]);
        path
    }

    /// The part of the path below the layout's folder. A header names its parent this way.
    pub fn tail(&self) -> String {
        let suffix = if self.kind == Kind::Checkpoint { ".cp" } else { "" };
        format!("{}/{}-{}{suffix}.kv", self.start, self.length, self.end)
    }

    /// Parses a tail below the folders of `space` and `layout`. Returns `None` unless it is spelled exactly as
    /// [`tail`](Self::tail) spells it.
    pub fn parse(space: Digest, layout: Digest, tail: &str) -> Option<Self> {
        let (start, file) = tail.split_once('/')?;
        let stem = file.strip_suffix(".kv")?;
        let (stem, kind) =
            stem.strip_suffix(".cp").map_or((stem, Kind::Segment), |stem| (stem, Kind::Checkpoint));
        let (length, end) = stem.split_once('-')?;
        let name = Self {
            space,
            layout,
            start: start.parse().ok()?,
            length: length.parse().ok()?,
            end: end.parse().ok()?,
            kind,
        };
        (name.length > 0 && name.tail() == tail).then_some(name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.space, self.layout, self.tail())
    }
}

/// A prompt that cannot be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// A token id at or above [`TOKEN_LIMIT`].
    Token {
        /// Position in the prompt.
        position: usize,
    },
    /// Media spans must be sorted, disjoint, non-empty and within the tokens.
    Media {
        /// The span's index in the list.
        index: usize,
    },
    /// Boundaries must be sorted and within the tokens.
    Boundary {
        /// The boundary's index in the list.
        index: usize,
    },
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token { position } => {
                write!(f, "token ids must be below {TOKEN_LIMIT}; the one at position {position} is not")
            }
            Self::Media { index } => write!(
                f,
                "media spans must be sorted, disjoint, non-empty and within the tokens; span {index} is not"
            ),
            Self::Boundary { index } => {
                write!(f, "boundaries must be sorted and within the tokens; boundary {index} is not")
            }
        }
    }
}

impl std::error::Error for NameError {}

/// Names the records of one identity. Create it once; cloning is cheap.
#[derive(Clone, Debug)]
pub struct Namer {
    identity: Arc<Identity>,
    space: Digest,
    layout: Digest,
    root: blake3::Hasher,
}

impl Namer {
    /// Creates a namer. A secret keys all digests: without it, nobody can tell from the names whether a given
    /// prompt is stored, and records written with another secret are never found. It may have any length; use
    /// at least 16 random bytes.
    pub fn new(identity: Identity, secret: Option<&[u8]>) -> Self {
        let fresh = |domain: &str| {
            let mut hasher = match secret {
                Some(secret) => {
                    blake3::Hasher::new_keyed(&blake3::derive_key("kvcache 2026 record names", secret))
                }
                None => blake3::Hasher::new(),
            };
            absorb(&mut hasher, domain.as_bytes());
            hasher
        };
        let mut space = fresh("kvcache namespace");
        absorb(&mut space, identity.namespace.as_bytes());
        space.update(&identity.rank.to_le_bytes()).update(&identity.ranks.to_le_bytes());
        let mut layout = fresh("kvcache layout");
        absorb(&mut layout, identity.layout.as_bytes());
        let layout = finish(&layout);

        let mut root = fresh("kvcache prefix");
        root.update(&FORMAT_VERSION.to_le_bytes());
        absorb(&mut root, identity.namespace.as_bytes());
        root.update(&identity.rank.to_le_bytes()).update(&identity.ranks.to_le_bytes());
        root.update(&layout.0).update(&identity.segment_tokens.to_le_bytes());
        // As the key and not as a prefix of the tokens: this aligns segments with the chunks of the hash, and is
        // twice as fast.
        let root = blake3::Hasher::new_keyed(&finish(&root).0);
        Self { identity: Arc::new(identity), space: finish(&space), layout, root }
    }

    /// The identity whose records it names.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// The folder of this namespace and rank, for all layouts.
    pub fn space(&self) -> Digest {
        self.space
    }

    /// The layout's folder.
    pub fn layout(&self) -> Digest {
        self.layout
    }

    /// Computes `h(p)` for each `p` in `boundaries`, in one pass over `tokens`. O(tokens + boundaries).
    ///
    /// A media span enters the hash whole, at its first token, so two prompts diverge at the first token of a
    /// span that differs. Spans that start at or after the last boundary have no effect.
    ///
    /// # Errors
    /// A token, span or boundary that is out of range.
    pub fn hashes(
        &self,
        tokens: &[u32],
        media: &[Media],
        boundaries: &[usize],
    ) -> Result<Vec<Digest>, NameError> {
        // One check of all tokens first, because it vectorises.
        if tokens.iter().fold(0, |all, token| all | token) >= TOKEN_LIMIT {
            let position = tokens.iter().position(|&token| token >= TOKEN_LIMIT).unwrap_or_default();
            return Err(NameError::Token { position });
        }
        let mut free = 0;
        for (index, span) in media.iter().enumerate() {
            let end = span.start.checked_add(span.length).filter(|&end| end <= tokens.len());
            match end {
                Some(end) if span.start >= free && span.length > 0 => free = end,
                _ => return Err(NameError::Media { index }),
            }
        }
        let (mut hasher, mut block) = (self.root.clone(), [0; BLOCK]);
        let mut media = media.iter().peekable();
        let (mut at, mut digests) = (0, Vec::with_capacity(boundaries.len()));
        for (index, &boundary) in boundaries.iter().enumerate() {
            if boundary < at || boundary > tokens.len() {
                return Err(NameError::Boundary { index });
            }
            while let Some(span) = media.next_if(|span| span.start < boundary) {
                feed(&mut hasher, &tokens[at..span.start], &mut block);
                at = span.start;
                hasher.update(&MEDIA_MARK.to_le_bytes());
                hasher.update(&(span.length as u64).to_le_bytes()).update(&span.digest.0);
            }
            feed(&mut hasher, &tokens[at..boundary], &mut block);
            at = boundary;
            digests.push(finish(&hasher));
        }
        Ok(digests)
    }

    /// The name of the record of `length` tokens between two hashes.
    pub fn name(&self, kind: Kind, start: Digest, length: u32, end: Digest) -> Name {
        Name { space: self.space, layout: self.layout, start, length, end, kind }
    }
}

fn finish(hasher: &blake3::Hasher) -> Digest {
    Digest(*hasher.finalize().as_bytes())
}

/// Hashes the length first, so that no two lists of fields hash the same bytes.
fn absorb(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
}

/// Hashes tokens as little-endian, in blocks large enough for the hash's widest SIMD kernel.
fn feed(hasher: &mut blake3::Hasher, tokens: &[u32], block: &mut [u8; BLOCK]) {
    for tokens in tokens.chunks(BLOCK / 4) {
        let block = &mut block[..tokens.len() * 4];
        for (four, token) in block.chunks_exact_mut(4).zip(tokens) {
            four.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(block);
    }
}
