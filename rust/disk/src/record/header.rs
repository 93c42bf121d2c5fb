//! Parses headers without trusting them.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use safetensors::tensor::Metadata;
use serde_json::Value;

use super::{
    CRC_DIGITS, MAX_HEADER, OPENING, PAYLOAD_ALIGNMENT, header_crc,
    spec::{ArraySpec, Extent, Spec},
};
use crate::name::{FORMAT_VERSION, Identity, Kind, Media, Name};

/// Why a file is not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The file ends inside its header or payload.
    Short,
    /// A check fails, or the file never was a record; the text names the check.
    Corrupt(&'static str),
}

/// A parsed header: the record's spec, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The record's spec.
    pub spec: Spec,
    /// Size of the whole file.
    pub file_bytes: u64,
    /// Offset of the payload.
    pub payload: u64,
    pub(crate) extents: Vec<Extent>,
    /// The checksums of all arrays in order, one per step.
    pub(crate) checksums: Vec<u32>,
}

impl Header {
    /// Reads the length of the header, including its 8-byte length field, from the first bytes of a file.
    pub(crate) fn length(first: &[u8]) -> Result<usize, Damage> {
        let first: [u8; 8] = first.get(..8).and_then(|f| f.try_into().ok()).ok_or(Damage::Short)?;
        usize::try_from(u64::from_le_bytes(first))
            .ok()
            .and_then(|length| length.checked_add(8))
            .filter(|length| *length <= MAX_HEADER && length.is_multiple_of(PAYLOAD_ALIGNMENT))
            .ok_or(Damage::Corrupt("length of the header"))
    }

    /// Parses everything before the payload of a file of `file_bytes`. Verifies the checksum first, which
    /// catches every flipped bit, and then the consistency of the fields, since a header can be forged.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Self, Damage> {
        if bytes.len() != Self::length(bytes)? {
            return Err(Damage::Short);
        }
        let digits = &bytes[CRC_DIGITS];
        let opened = &bytes[8..CRC_DIGITS.start] == OPENING;
        let crc = str::from_utf8(digits).ok().filter(|_| opened).and_then(hex);
        if crc != Some(header_crc(bytes)) {
            return Err(Damage::Corrupt("checksum of the header"));
        }
        let metadata: Metadata =
            serde_json::from_slice(&bytes[8..]).map_err(|_| Damage::Corrupt("JSON of the header"))?;
        let payload = bytes.len() as u64;
        let (spec, checksums) = spec(&metadata).ok_or(Damage::Corrupt("fields of the header"))?;
        let extents = spec.extents().map_err(|_| Damage::Corrupt("shapes of the arrays"))?;
        spec.check().map_err(|_| Damage::Corrupt("fields of the header"))?;
        let mut offset = 0;
        for (array, extent) in spec.arrays.iter().zip(&extents) {
            let info = metadata.info(&array.name).ok_or(Damage::Corrupt("names of the arrays"))?;
            let end = offset + extent.bytes();
            if info.data_offsets != (offset, end) {
                return Err(Damage::Corrupt("offsets of the arrays"));
            }
            offset = end;
        }
        if checksums.len() != extents.iter().map(Extent::steps).sum::<usize>() {
            return Err(Damage::Corrupt("number of checksums"));
        }
        match payload + offset as u64 {
            expected if expected > file_bytes => Err(Damage::Short),
            expected if expected < file_bytes => Err(Damage::Corrupt("length of the file")),
            _ => Ok(Self { spec, file_bytes, payload, extents, checksums }),
        }
    }
}

fn hex(digits: &str) -> Option<u32> {
    let plain = digits.len() == 8 && digits.bytes().all(|d| d.is_ascii_digit() || (b'a'..=b'f').contains(&d));
    plain.then(|| u32::from_str_radix(digits, 16).ok())?
}

fn spec(metadata: &Metadata) -> Option<(Spec, Vec<u32>)> {
    let fields: &HashMap<String, String> = metadata.metadata().as_ref()?;
    let field = |key: &str| fields.get(key).map(String::as_str);
    let number = |key: &str| field(key)?.parse::<u32>().ok();
    if number("kvcache")? != FORMAT_VERSION {
        return None;
    }
    let name = Name {
        space: field("space")?.parse().ok()?,
        layout: field("layout_digest")?.parse().ok()?,
        start: field("start_hash")?.parse().ok()?,
        length: number("length")?,
        end: field("end_hash")?.parse().ok()?,
        kind: match field("kind")? {
            "segment" => Kind::Segment,
            "checkpoint" => Kind::Checkpoint,
            _ => return None,
        },
    };
    let identity = Arc::new(Identity {
        namespace: field("namespace")?.to_owned(),
        layout: field("layout")?.to_owned(),
        rank: number("rank")?,
        ranks: number("ranks")?,
        segment_tokens: number("segment_tokens")?,
    });
    let parent = match field("parent")? {
        "" => None,
        tail => Some(Name::parse(name.space, name.layout, tail)?),
    };
    let tokens = STANDARD.decode(field("tokens")?).ok().filter(|bytes| bytes.len().is_multiple_of(4))?;
    let four = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    let checksums = field("checksums")?;
    let checksums: Option<Vec<u32>> =
        (0..checksums.len()).step_by(8).map(|at| hex(checksums.get(at..at + 8)?)).collect();
    let spec = Spec {
        name,
        identity,
        start: field("start")?.parse().ok()?,
        tokens: tokens.chunks_exact(4).map(four).collect(),
        media: serde_json::from_str::<Vec<Value>>(field("media")?)
            .ok()?
            .iter()
            .map(media)
            .collect::<Option<_>>()?,
        parent,
        meta: field("meta")?.to_owned(),
        arrays: serde_json::from_str::<Vec<Value>>(field("arrays")?)
            .ok()?
            .iter()
            .map(|array| self::array(metadata, array))
            .collect::<Option<_>>()?,
    };
    (spec.arrays.len() == metadata.tensors().len()).then_some((spec, checksums?))
}

fn media(span: &Value) -> Option<Media> {
    let [start, length, digest] = span.as_array()?.as_slice() else { return None };
    Some(Media {
        start: usize::try_from(start.as_u64()?).ok()?,
        length: usize::try_from(length.as_u64()?).ok()?,
        digest: digest.as_str()?.parse().ok()?,
    })
}

fn array(metadata: &Metadata, array: &Value) -> Option<ArraySpec> {
    let [name, axis] = array.as_array()?.as_slice() else { return None };
    let name = name.as_str()?;
    let info = metadata.info(name)?;
    let token_axis = match axis {
        Value::Null => None,
        axis => Some(usize::try_from(axis.as_u64()?).ok()?),
    };
    Some(ArraySpec { name: name.to_owned(), dtype: info.dtype, shape: info.shape.clone(), token_axis })
}
