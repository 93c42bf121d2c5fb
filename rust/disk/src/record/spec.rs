//! The description of a record, and the layout of its arrays.

use std::{fmt, ops::Range, sync::Arc};

use safetensors::Dtype;

use super::STEP_TOKENS;
use crate::name::{Identity, Kind, Media, Name, TOKEN_LIMIT};

/// One array of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// Unique in its record, e.g. `layers.3.keys`. Not `__metadata__`.
    pub name: String,
    /// Element type, of whole bytes.
    pub dtype: Dtype,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// The token axis, whose length is the record's number of tokens; `None` if the array cannot be cut.
    pub token_axis: Option<usize>,
}

/// Everything about a record except the bytes of its arrays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Name of the file. The caller guarantees that `start` and `end` are [`Namer`](crate::name::Namer)'s
    /// hashes of the prompt that ends with `tokens`.
    pub name: Name,
    /// Namespace, layout, rank.
    pub identity: Arc<Identity>,
    /// Position of its first token in the prompt.
    pub start: usize,
    /// Its tokens, `name.length` of them.
    pub tokens: Vec<u32>,
    /// Media spans that overlap the tokens, at their positions in the prompt.
    pub media: Vec<Media>,
    /// The segment that holds the token before `start`; `None` if there is none (`start` is 0, or the model has
    /// no full-attention layers). A record is written only if its parent is on disk, and evicted before it.
    pub parent: Option<Name>,
    /// Free text of the layer adapter, stored verbatim.
    pub meta: String,
    /// The arrays, in file order.
    pub arrays: Vec<ArraySpec>,
}

/// Why a record cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError(pub String);

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

/// The layout of one array's bytes, in memory and in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Runs of rows: the product of the axes before the token axis. 0 if the array is empty.
    pub(crate) outer: usize,
    /// Rows per run: tokens, or 1 if the array cannot be cut.
    pub(crate) rows: usize,
    /// Bytes per row.
    pub(crate) row: usize,
    /// Whether a range of tokens selects rows.
    pub(crate) cuttable: bool,
}

impl Extent {
    pub(crate) fn bytes(&self) -> usize {
        self.outer * self.rows * self.row
    }

    /// Number of checksums.
    pub(crate) fn steps(&self) -> usize {
        self.rows.div_ceil(STEP_TOKENS)
    }

    /// The rows that a range of tokens selects.
    pub(crate) fn select(&self, tokens: &Range<usize>) -> Range<usize> {
        if self.cuttable { tokens.clone() } else { 0..self.rows }
    }
}

impl ArraySpec {
    /// The layout of the array; `None` if the shape does not match the token axis, has elements of partial
    /// bytes, or is too large.
    pub(crate) fn extent(&self, tokens: usize) -> Option<Extent> {
        let product = |axes: &[usize]| axes.iter().try_fold(1_usize, |a, &b| a.checked_mul(b));
        let width = self.dtype.bitsize().is_multiple_of(8).then(|| self.dtype.bitsize() / 8)?;
        let (outer, rows, inner) = match self.token_axis {
            None => (1, 1, product(&self.shape)?),
            Some(axis) => {
                let rows = *self.shape.get(axis).filter(|&&rows| rows == tokens)?;
                (product(&self.shape[..axis])?, rows, product(&self.shape[axis + 1..])?)
            }
        };
        let row = inner.checked_mul(width)?;
        let bytes = outer.checked_mul(rows)?.checked_mul(row).filter(|&bytes| bytes <= 1 << 48)?;
        Some(Extent {
            outer: if bytes == 0 { 0 } else { outer },
            rows,
            row,
            cuttable: self.token_axis.is_some(),
        })
    }
}

impl Spec {
    /// The layout of each array.
    pub(crate) fn extents(&self) -> Result<Vec<Extent>, SpecError> {
        let tokens = self.tokens.len();
        let extent = |array: &ArraySpec| {
            array.extent(tokens).ok_or_else(|| {
                SpecError(format!(
                    "array {:?} of shape {:?} and dtype {:?} does not hold {tokens} tokens on axis {:?}",
                    array.name, array.shape, array.dtype, array.token_axis
                ))
            })
        };
        self.arrays.iter().map(extent).collect()
    }

    /// Checks everything that a reader would reject.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        let fail = |message: String| Err(SpecError(message));
        if self.tokens.is_empty() || self.tokens.len() != self.name.length as usize {
            return fail(format!(
                "the record must have the {} tokens of its name, found {}",
                self.name.length,
                self.tokens.len()
            ));
        }
        if let Some(token) = self.tokens.iter().find(|&&token| token >= TOKEN_LIMIT) {
            return fail(format!("token ids must be below {TOKEN_LIMIT}, found {token}"));
        }
        let Some(end) = self.start.checked_add(self.tokens.len()) else {
            return fail(format!("a record cannot start at {}", self.start));
        };
        let overlaps = |span: &Media| {
            span.start < end && span.start.checked_add(span.length).is_some_and(|e| e > self.start)
        };
        if !self.media.iter().all(overlaps) {
            return fail(format!("media spans must overlap the record's tokens [{}, {end})", self.start));
        }
        if self.identity.namespace.is_empty() {
            return fail("a record on disk needs a namespace, found \"\"".into());
        }
        if let Some(parent) = &self.parent {
            let same = (parent.space, parent.layout) == (self.name.space, self.name.layout);
            if !same || parent.kind != Kind::Segment || *parent == self.name {
                return fail(format!(
                    "the parent must be another segment of the same layout, found {parent}"
                ));
            }
        }
        let mut names: Vec<&str> = self.arrays.iter().map(|array| array.name.as_str()).collect();
        names.sort_unstable();
        if let Some([duplicate, _]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return fail(format!("array names must be unique, found {duplicate:?} twice"));
        }
        if names.contains(&"__metadata__") {
            return fail("an array must not be named \"__metadata__\"".into());
        }
        Ok(())
    }
}
