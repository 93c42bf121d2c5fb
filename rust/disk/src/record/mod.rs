//! A record: one immutable, valid safetensors file that describes itself and carries its own checksums.
//!
//! ```text
//! 8 bytes       length of the header, little-endian
//! header        JSON: "__metadata__" (see below), then name, dtype, shape, offsets of each array; spaces
//! payload       from a multiple of 16 KiB on: the arrays in order, [outer…][tokens][inner…], no padding
//! ```
//!
//! | key of `__metadata__` | value |
//! |---|---|
//! | `crc32c` | CRC-32C of everything before the payload, with these 8 digits as zeros; always the first key |
//! | `kvcache` | [`FORMAT_VERSION`](crate::name::FORMAT_VERSION) |
//! | `kind` | `segment` or `checkpoint` |
//! | `namespace`, `rank`, `ranks`, `layout`, `segment_tokens` | the [`Identity`](crate::name::Identity) |
//! | `space`, `layout_digest`, `start_hash`, `end_hash`, `length` | the [`Name`](crate::name::Name) |
//! | `start` | position of the first token |
//! | `tokens` | base64 of `u32` little-endian |
//! | `media` | JSON: `[start, length, digest]` of each span that overlaps the tokens |
//! | `parent` | `<h(start)>/<length>-<h(end)>.kv` of the record that holds the token before `start`, or empty |
//! | `meta` | free text of the layer adapter |
//! | `arrays` | JSON: `[name, token axis or null]` of each array, in order |
//! | `checksums` | CRC-32C of each array per step of 256 tokens, 8 hexadecimal digits each |
//!
//! A step of an array is rows `256 i … 256 (i + 1)` of every outer index, concatenated. An array without a
//! token axis is one step. This lets a reader verify a part of the tokens without reading the rest.

mod encode;
mod header;
mod read;
mod spec;

pub use encode::{encode, file_bytes, write};
pub use header::{Damage, Header};
pub use read::{Failure, read_header, read_range};
pub use spec::{ArraySpec, Spec, SpecError};

/// Tokens per checksum.
pub const STEP_TOKENS: usize = 256;

/// Alignment of the payload: the page size of Apple's CPUs.
pub const PAYLOAD_ALIGNMENT: usize = 16 * 1024;

/// Maximum length of a header: 32 times that of a long record.
pub(crate) const MAX_HEADER: usize = 16 << 20;

/// The start of the JSON, up to the digits of the header's checksum.
const OPENING: &[u8] = br#"{"__metadata__":{"crc32c":""#;

/// The position of those digits in the header.
const CRC_DIGITS: std::ops::Range<usize> = 8 + OPENING.len()..8 + OPENING.len() + 8;

/// CRC-32C of the header, with the digits of the checksum as zeros.
fn header_crc(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..CRC_DIGITS.start]);
    let crc = crc32c::crc32c_append(crc, b"00000000");
    crc32c::crc32c_append(crc, &bytes[CRC_DIGITS.end..])
}
