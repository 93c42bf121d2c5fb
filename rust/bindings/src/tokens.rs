//! Reads token ids from any Python object that holds them. The only file that handles buffers.

use kvcache_core::{Error, MAX_TOKEN, MediaKeys, PrefixIndex, Query, Span, check_tokens};
use pyo3::Borrowed;
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError};
#[cfg(not(Py_GIL_DISABLED))]
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

use crate::arguments::{is_boolean, type_name};
use crate::error::{ConfigError, TokenError, to_python};

/// A media span from Python: start, length, digest.
pub(crate) type SpanArgument = (usize, usize, Vec<u8>);

/// Token ids, read once for several calls.
///
/// Keeps a contiguous 32-bit buffer (array.array, numpy, mlx) without copying it, in O(1); converts
/// anything else, in O(n).
#[pyclass(frozen, module = "kvcache._core")]
pub(crate) struct Tokens(Source);

enum Source {
    Buffer(PyUntypedBuffer, usize),
    Owned(Vec<u32>),
}

#[pymethods]
impl Tokens {
    #[new]
    fn new(tokens: &Bound<'_, PyAny>) -> PyResult<Self> {
        read(tokens)
    }

    /// A copy with more token ids appended.
    fn extended(&self, more: &Bound<'_, PyList>) -> PyResult<Self> {
        let more = from_list(more)?;
        Ok(Self(Source::Owned([self.keys(), &more].concat())))
    }

    /// A copy of the first `length` tokens, or of all if there are fewer.
    fn head(&self, length: usize) -> Self {
        let keys = self.keys();
        Self(Source::Owned(keys[..length.min(keys.len())].to_vec()))
    }

    fn __len__(&self) -> usize {
        match &self.0 {
            Source::Buffer(_, length) => *length,
            Source::Owned(tokens) => tokens.len(),
        }
    }
}

impl Tokens {
    pub(crate) fn keys(&self) -> &[u32] {
        match &self.0 {
            // SAFETY: `from_buffer` checks that this is a contiguous run of `length` aligned 32-bit
            // integers, and the buffer stays exported while `self` lives. A caller that writes to it
            // at the same time races with the read, as with any reader of a Python buffer; every bit
            // pattern is a valid u32.
            #[allow(unsafe_code)]
            Source::Buffer(buffer, length) if *length > 0 => unsafe {
                std::slice::from_raw_parts(buffer.buf_ptr().cast(), *length)
            },
            Source::Buffer(..) => &[],
            Source::Owned(tokens) => tokens,
        }
    }

    /// Calls `with` on the query for the first `length` tokens, with media ids filled in.
    pub(crate) fn with_query<R>(
        &self,
        index: &mut PrefixIndex,
        length: usize,
        media: &[SpanArgument],
        intern: bool,
        with: impl FnOnce(&mut PrefixIndex, &Query<'_>) -> Result<R, kvcache_core::Error>,
    ) -> PyResult<R> {
        let (keys, rest) = self.keys().split_at(length);
        let result = if media.is_empty() {
            // The tokens past the key are checked too: an invalid id is an error at any position.
            check_tokens(rest, length).and_then(|()| with(index, &Query::tokens(keys)))
        } else {
            let spans = spans(media);
            let keys = index.media_keys(keys, &spans, intern);
            keys.and_then(|keys: MediaKeys| with(index, &keys.query()))
        };
        result.map_err(|error| match error {
            Error::InvalidToken { position, key } if self.unsigned() => {
                out_of_range(&key.to_string(), position)
            }
            error => to_python(&error),
        })
    }

    /// Whether the ids are in an array of unsigned integers.
    fn unsigned(&self) -> bool {
        let Source::Buffer(buffer, _) = &self.0 else { return false };
        matches!(ElementType::from_format(buffer.format()), ElementType::UnsignedInteger { .. })
    }
}

pub(crate) fn spans(media: &[SpanArgument]) -> Vec<Span<'_>> {
    media.iter().map(|(start, length, digest)| Span { start: *start, length: *length, digest }).collect()
}

/// Reads token ids from a list, a tuple, or an integer array with one dimension, or two if the first is 1.
pub(crate) fn read(tokens: &Bound<'_, PyAny>) -> PyResult<Tokens> {
    if let Ok(list) = tokens.cast::<PyList>() {
        return from_list(list).map(|tokens| Tokens(Source::Owned(tokens)));
    }
    if let Ok(tuple) = tokens.cast::<PyTuple>() {
        let tokens: PyResult<_> = tuple.iter().enumerate().map(|(at, item)| token(&item, at)).collect();
        return tokens.map(|tokens| Tokens(Source::Owned(tokens)));
    }
    if tokens.is_instance_of::<PyString>() || tokens.is_instance_of::<PyBytes>() {
        return Err(wrong_type(tokens));
    }
    match PyUntypedBuffer::get(tokens) {
        Ok(buffer) => from_buffer(tokens, buffer),
        Err(error) => Err(unreadable(tokens, error)),
    }
}

/// Maps an error from exporting a buffer. Exporting a lazy array evaluates it, which can fail in its own ways.
fn unreadable(tokens: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = tokens.py();
    if error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyBufferError>(py) {
        return wrong_type(tokens);
    }
    let text = error.value(py).to_string();
    if text.contains("There is no Stream") {
        return ConfigError::new_err(format!(
            "the tokens were made on another thread and never computed ({text}); call mx.eval on them in the \
             thread that made them"
        ));
    }
    error
}

fn wrong_type(tokens: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(tokens);
    PyTypeError::new_err(format!(
        "tokens must be a list, a tuple or a 1-D integer array of token ids, found {name}"
    ))
}

/// The fast path takes exact `int`s only, so that no call into Python can change the list during the loop.
#[allow(unsafe_code)]
fn from_list(list: &Bound<'_, PyList>) -> PyResult<Vec<u32>> {
    let mut tokens = Vec::with_capacity(list.len());
    #[cfg(not(Py_GIL_DISABLED))]
    {
        let mut read = 0;
        for (at, slot) in tokens.spare_capacity_mut()[..list.len()].iter_mut().enumerate() {
            // `PyLong_AsSize_t` reads the digits directly. `PyLong_AsLong` calls a second function to
            // report overflow, which makes the loop 50 % slower.
            // SAFETY: the GIL is held and `at` is below the length; the borrowed item is read before
            // any other code can run. `PyLong_AsSize_t` of an exact int runs no Python code.
            let value = unsafe {
                let item = ffi::PyList_GetItem(list.as_ptr(), at.cast_signed());
                if item.is_null() || ffi::PyLong_CheckExact(item) == 0 {
                    break;
                }
                ffi::PyLong_AsSize_t(item)
            };
            if value > MAX_TOKEN as usize {
                break;
            }
            slot.write(value as u32);
            read = at + 1;
        }
        // SAFETY: the first `read` slots are initialised.
        unsafe { tokens.set_len(read) };
        // A negative or very large item leaves an exception set.
        drop(PyErr::take(list.py()));
    }
    while tokens.len() < list.len() {
        let at = tokens.len();
        tokens.push(token(&list.get_item(at)?, at)?);
    }
    Ok(tokens)
}

/// Converts one token id. The error names its position and value.
fn token(item: &Bound<'_, PyAny>, at: usize) -> PyResult<u32> {
    let integer = item.is_exact_instance_of::<PyInt>() || !is_boolean(item);
    let value: Option<i64> = if integer { item.extract().ok() } else { None };
    match value.map(u32::try_from) {
        Some(Ok(value)) if value <= MAX_TOKEN => Ok(value),
        None if !integer || !is_index(item.as_borrowed()) => Err(PyTypeError::new_err(format!(
            "token ids must be integers, found {} of type {} at position {at}",
            shown(item),
            type_name(item)
        ))),
        _ => Err(out_of_range(&shown(item), at)),
    }
}

fn is_index(item: Borrowed<'_, '_, PyAny>) -> bool {
    item.hasattr("__index__").unwrap_or(false)
}

pub(crate) fn shown(item: &Bound<'_, PyAny>) -> String {
    let text = item.repr().map_or_else(|_| "a value".to_owned(), |text| text.to_string());
    if text.chars().count() <= 40 { text } else { text.chars().take(40).chain("…".chars()).collect() }
}

fn out_of_range(value: &str, at: usize) -> PyErr {
    TokenError::new_err(format!("token ids must be from 0 to {MAX_TOKEN}, found {value} at position {at}"))
}

/// Prefixes of element formats in foreign byte order.
const FOREIGN: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };

fn from_buffer(object: &Bound<'_, PyAny>, buffer: PyUntypedBuffer) -> PyResult<Tokens> {
    let kind = ElementType::from_format(buffer.format());
    let length = buffer.item_count();
    let shape = buffer.shape();
    if buffer.format().to_bytes().first().is_some_and(|order| FOREIGN.contains(order)) {
        return Err(PyTypeError::new_err(format!(
            "token arrays must be in this machine's byte order, found element format {:?} in {}",
            buffer.format().to_string_lossy(),
            type_name(object)
        )));
    }
    let one_row = match shape {
        [_] => true,
        [rows, _] => *rows == 1,
        _ => false,
    };
    if !one_row {
        return Err(TokenError::new_err(format!(
            "tokens must have one dimension, or two with one row, found shape {shape:?}; pass one row at a time"
        )));
    }
    let aligned = (buffer.buf_ptr() as usize).is_multiple_of(align_of::<u32>());
    match kind {
        ElementType::SignedInteger { bytes: 4 } | ElementType::UnsignedInteger { bytes: 4 }
            if buffer.is_c_contiguous() && aligned && length > 0 =>
        {
            Ok(Tokens(Source::Buffer(buffer, length)))
        }
        ElementType::SignedInteger { bytes: 2 } => convert::<i16>(&buffer),
        ElementType::SignedInteger { bytes: 4 } => convert::<i32>(&buffer),
        ElementType::SignedInteger { bytes: 8 } => convert::<i64>(&buffer),
        ElementType::UnsignedInteger { bytes: 2 } => convert::<u16>(&buffer),
        ElementType::UnsignedInteger { bytes: 4 } => convert::<u32>(&buffer),
        ElementType::UnsignedInteger { bytes: 8 } => convert::<u64>(&buffer),
        _ => Err(PyTypeError::new_err(format!(
            "token arrays must hold 16-, 32- or 64-bit integers, found element format {:?} in {}",
            buffer.format().to_string_lossy(),
            type_name(object)
        ))),
    }
}

/// Reads element by element, at any strides and alignment.
fn convert<T: Copy + TryInto<i64> + std::fmt::Display>(buffer: &PyUntypedBuffer) -> PyResult<Tokens> {
    let rows = buffer.dimensions() == 2;
    let mut tokens = Vec::with_capacity(buffer.item_count());
    for at in 0..buffer.item_count() {
        let element = if rows { buffer.get_ptr(&[0, at]) } else { buffer.get_ptr(&[at]) };
        // SAFETY: the index is within the buffer's shape, and `T` has the size and format of its elements.
        #[allow(unsafe_code)]
        let value: T = unsafe { element.cast::<T>().read_unaligned() };
        let token = value.try_into().ok().and_then(|value| u32::try_from(value).ok());
        match token.filter(|token| *token <= MAX_TOKEN) {
            Some(token) => tokens.push(token),
            None => return Err(out_of_range(&value.to_string(), at)),
        }
    }
    Ok(Tokens(Source::Owned(tokens)))
}
