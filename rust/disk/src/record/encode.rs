//! Encodes and writes records. The arrays are borrowed, never copied.

use std::{
    fmt::Write as _,
    io::{self, IoSlice},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{
    CRC_DIGITS, OPENING, PAYLOAD_ALIGNMENT, STEP_TOKENS, header_crc,
    spec::{Extent, Spec, SpecError},
};
use crate::{
    files::{Handle, write_all},
    name::{FORMAT_VERSION, Kind},
};

/// Encodes the header of a record, which is everything before the payload. The file is the header followed by
/// `arrays`. Checksums every byte once and copies none. Deterministic.
///
/// # Errors
/// An inconsistent spec, or an array whose size differs from its spec.
pub fn encode(spec: &Spec, arrays: &[&[u8]]) -> Result<Vec<u8>, SpecError> {
    spec.check()?;
    let extents = spec.extents()?;
    if arrays.len() != extents.len() {
        return Err(SpecError(format!("the record needs {} arrays, found {}", extents.len(), arrays.len())));
    }
    let mut checksums = String::new();
    for ((array, extent), bytes) in spec.arrays.iter().zip(&extents).zip(arrays) {
        if bytes.len() != extent.bytes() {
            return Err(SpecError(format!(
                "array {:?} must have {} bytes for its shape, found {}",
                array.name,
                extent.bytes(),
                bytes.len()
            )));
        }
        for step in 0..extent.steps() {
            let _ = write!(checksums, "{:08x}", step_crc(extent, bytes, step));
        }
    }
    Ok(seal(&text(spec, &extents, checksums)))
}

/// The size in bytes of a record's file, computed without its arrays.
///
/// # Errors
/// An inconsistent spec.
pub fn file_bytes(spec: &Spec) -> Result<u64, SpecError> {
    spec.check()?;
    let extents = spec.extents()?;
    let checksums = "0".repeat(8 * extents.iter().map(Extent::steps).sum::<usize>());
    let payload: usize = extents.iter().map(Extent::bytes).sum();
    Ok((header_bytes(&text(spec, &extents, checksums)) + payload) as u64)
}

fn step_crc(extent: &Extent, bytes: &[u8], step: usize) -> u32 {
    let rows = step * STEP_TOKENS..((step + 1) * STEP_TOKENS).min(extent.rows);
    (0..extent.outer).fold(0, |crc, outer| {
        let run = outer * extent.rows;
        crc32c::crc32c_append(crc, &bytes[(run + rows.start) * extent.row..(run + rows.end) * extent.row])
    })
}

/// The JSON text from its checksum on, with the checksum's digits as zeros.
fn text(spec: &Spec, extents: &[Extent], checksums: String) -> String {
    let mut tokens = Vec::with_capacity(spec.tokens.len() * 4);
    tokens.extend(spec.tokens.iter().flat_map(|token| token.to_le_bytes()));
    let media = spec.media.iter();
    let media: Value = media
        .map(|m| Value::from(vec![m.start.into(), m.length.into(), Value::from(m.digest.to_string())]))
        .collect();
    let order = spec.arrays.iter();
    let order: Value =
        order.map(|a| Value::from(vec![Value::from(a.name.as_str()), a.token_axis.into()])).collect();
    let (name, identity) = (&spec.name, &spec.identity);
    let kind = if name.kind == Kind::Segment { "segment" } else { "checkpoint" };
    let fields = [
        ("kvcache", FORMAT_VERSION.to_string()),
        ("kind", kind.to_owned()),
        ("namespace", identity.namespace.clone()),
        ("rank", identity.rank.to_string()),
        ("ranks", identity.ranks.to_string()),
        ("layout", identity.layout.clone()),
        ("segment_tokens", identity.segment_tokens.to_string()),
        ("space", name.space.to_string()),
        ("layout_digest", name.layout.to_string()),
        ("start_hash", name.start.to_string()),
        ("end_hash", name.end.to_string()),
        ("length", name.length.to_string()),
        ("start", spec.start.to_string()),
        ("tokens", STANDARD.encode(tokens)),
        ("media", media.to_string()),
        ("parent", spec.parent.map(|parent| parent.tail()).unwrap_or_default()),
        ("meta", spec.meta.clone()),
        ("arrays", order.to_string()),
        ("checksums", checksums),
    ];
    let mut text = String::from("00000000\"");
    for (key, value) in fields {
        let _ = write!(text, ",\"{key}\":{}", Value::from(value));
    }
    text.push('}');
    let mut offset = 0;
    for (array, extent) in spec.arrays.iter().zip(extents) {
        let end = offset + extent.bytes();
        let dtype = serde_json::to_string(&array.dtype).unwrap_or_default();
        let _ = write!(
            text,
            ",{}:{{\"dtype\":{dtype},\"shape\":{},\"data_offsets\":[{offset},{end}]}}",
            Value::from(array.name.as_str()),
            Value::from(array.shape.clone()),
        );
        offset = end;
    }
    text.push('}');
    text
}

fn header_bytes(text: &str) -> usize {
    (8 + OPENING.len() + text.len()).next_multiple_of(PAYLOAD_ALIGNMENT)
}

/// Completes the header: adds its length, pads it up to the payload, and fills in its checksum.
fn seal(text: &str) -> Vec<u8> {
    let length = header_bytes(text);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(((length - 8) as u64).to_le_bytes());
    bytes.extend(OPENING);
    bytes.extend(text.as_bytes());
    bytes.resize(length, b' ');
    let crc = format!("{:08x}", header_crc(&bytes));
    bytes[CRC_DIGITS].copy_from_slice(crc.as_bytes());
    bytes
}

/// Writes a record to an empty file, in one vectored write if the system accepts it whole.
///
/// # Errors
/// The file system's. The file may then be partly written.
pub fn write(handle: &dyn Handle, header: &[u8], arrays: &[&[u8]]) -> io::Result<()> {
    let mut pieces: Vec<IoSlice<'_>> = Vec::with_capacity(1 + arrays.len());
    pieces.push(IoSlice::new(header));
    pieces.extend(arrays.iter().map(|bytes| IoSlice::new(bytes)));
    write_all(handle, &mut pieces, 0)
}
