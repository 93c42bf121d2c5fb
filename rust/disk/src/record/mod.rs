//! A record: one immutable file, a valid safetensors file, that says what it is and proves what it holds.
//!
//! ```text
//! 8 bytes       length of the header, little-endian
//! header        JSON: "__metadata__" (all below), then name, dtype, shape, offsets of each array; spaces
//! payload       from a multiple of 16 KiB on: the arrays in order, [outer…][tokens][inner…], nothing between
//! ```
//!
//! | key of `__metadata__` | what it is |
//! |---|---|
//! | `crc32c` | of everything before the payload, these 8 digits taken as zeros; always the first key |
//! | `kvcache` | [`FORMAT_VERSION`](crate::name::FORMAT_VERSION) |
//! | `kind` | `segment` or `checkpoint` |
//! | `namespace`, `rank`, `ranks`, `layout`, `segment_tokens` | the [`Identity`](crate::name::Identity) |
//! | `space`, `layout_digest`, `start_hash`, `end_hash`, `length` | the [`Name`](crate::name::Name) |
//! | `start` | position of the first token |
//! | `tokens` | base64 of `u32` little-endian |
//! | `media` | JSON: `[start, length, digest]` of each span that overlaps the tokens |
//! | `parent` | `<h(start)>/<length>-<h(end)>.kv` of the record that holds the token before `start`, or empty |
//! | `meta` | the adapter's own text |
//! | `arrays` | JSON: `[name, token axis or null]` of each array, in order |
//! | `checksums` | CRC-32C of each array in steps of 256 tokens, 8 hexadecimal digits each |
//!
//! A step of an array is rows `256 i … 256 (i + 1)` of every outer index, concatenated. An array without a
//! token axis is one step. So a part of the tokens can be read and still be verified.

mod encode;
mod header;
mod read;
mod spec;

pub use encode::{encode, file_bytes, write};
pub use header::{Damage, Header};
pub use read::{Failure, read_header, read_range};
pub use spec::{ArraySpec, Spec, SpecError};

/// Tokens that one checksum covers.
pub const STEP_TOKENS: usize = 256;

/// The payload begins at a multiple of this: a page of Apple's CPUs.
pub const PAYLOAD_ALIGNMENT: usize = 16 * 1024;

/// Longest header that is read: 32 times that of a long record.
pub(crate) const MAX_HEADER: usize = 16 << 20;

/// The header up to the digits of its own checksum, after the 8 bytes of its length.
const OPENING: &[u8] = br#"{"__metadata__":{"crc32c":""#;

/// Where the digits of the header's checksum are.
const CRC_DIGITS: std::ops::Range<usize> = 8 + OPENING.len()..8 + OPENING.len() + 8;

/// CRC-32C of the header with its own digits taken as zeros.
fn header_crc(bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&bytes[..CRC_DIGITS.start]);
    let crc = crc32c::crc32c_append(crc, b"00000000");
    crc32c::crc32c_append(crc, &bytes[CRC_DIGITS.end..])
}
