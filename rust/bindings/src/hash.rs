//! Path hashes: names for what leaves the process.

use kvcache_core::{HashKey, PathHasher};
use pyo3::prelude::*;

use crate::error::{ConfigError, to_python};
use crate::tokens::{SpanArgument, Tokens, spans};

/// Returns 16 bytes that name a namespace, a layout and these tokens, the same in every process.
///
/// `layout` must identify the layout in every process that compares hashes. With a 32-byte `secret`, nobody
/// without it can compute the name; another length raises `ConfigError`. O(len(tokens)).
#[pyfunction]
#[pyo3(signature = (tokens, namespace, layout, *, media = Vec::new(), secret = None))]
pub(crate) fn path_hash(
    tokens: &Tokens,
    namespace: &str,
    layout: &[u8],
    media: Vec<SpanArgument>,
    secret: Option<&[u8]>,
) -> PyResult<[u8; 16]> {
    let key = match secret {
        None => HashKey::default(),
        Some(secret) => HashKey(secret.try_into().map_err(|_| {
            ConfigError::new_err(format!("a secret must have 32 bytes, found {}", secret.len()))
        })?),
    };
    let before = PathHasher::new(&key, namespace, layout);
    let hash = kvcache_core::path_hash(before, tokens.keys(), &spans(&media));
    hash.map(|hash| hash.0).map_err(|error| to_python(&error))
}
