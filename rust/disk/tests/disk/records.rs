//! The record format: golden bytes, every range, and damage of all kinds.

use std::{
    fs,
    io::{IoSlice, IoSliceMut},
    sync::Mutex,
};

use kvcache_disk::{
    files::{Files, Handle, Open, OsFiles, Stat},
    record::{Damage, Failure, Header, PAYLOAD_ALIGNMENT, encode, file_bytes, read_header, read_range},
};
use proptest::prelude::*;

use crate::{
    count,
    make::{Random, Record, chain, checkpoint, namer, segment, tokens},
};

/// A file in memory.
struct Memory(Mutex<Vec<u8>>);

impl Handle for Memory {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> std::io::Result<usize> {
        let bytes = self.0.lock().unwrap();
        let mut rest = bytes.get(offset as usize..).unwrap_or_default();
        let before = rest.len();
        for buffer in buffers {
            let count = buffer.len().min(rest.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
        }
        Ok(before - rest.len())
    }

    fn write_at(&self, _: &[IoSlice<'_>], _: u64) -> std::io::Result<usize> {
        unreachable!("records are read only")
    }

    fn will_read(&self, _: u64, _: u64) {}

    fn stat(&self) -> std::io::Result<Stat> {
        let bytes = self.0.lock().unwrap().len() as u64;
        let modified = std::time::Duration::ZERO;
        Ok(Stat { is_file: true, is_folder: false, bytes, modified, links: 1, identity: (0, 0), mode: 0o600 })
    }

    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: bool) -> std::io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> std::io::Result<()> {
        Ok(())
    }
}

fn bytes(record: &Record) -> Vec<u8> {
    let mut bytes = encode(&record.spec, &record.slices()).unwrap();
    bytes.extend(record.arrays.iter().flatten());
    assert_eq!(bytes.len() as u64, file_bytes(&record.spec).unwrap());
    bytes
}

fn sample() -> Record {
    segment(&namer("golden"), &tokens(1, 700), 0, 700, None)
}

fn read(bytes: Vec<u8>, from: usize, to: usize, record: &Record) -> Result<(Header, Vec<Vec<u8>>), Failure> {
    let file = Memory(Mutex::new(bytes));
    let header = read_header(&file)?;
    let mut slices = record.want(from, to).destination;
    let mut borrowed: Vec<&mut [u8]> = slices.iter_mut().map(Vec::as_mut_slice).collect();
    read_range(&file, &header, from..to, &mut borrowed)?;
    Ok((header, slices))
}

/// The bytes must not change without a new version of the format. For a new version, `KVCACHE_BLESS=1` writes
/// the golden file.
#[test]
fn golden() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/record.kv");
    let (namer, tokens) = (namer("golden \"/é"), tokens(1, 300));
    let head = segment(&namer, &tokens, 0, 20, None);
    let mut record = segment(&namer, &tokens, 20, 300, Some(head.spec.name));
    let digest = kvcache_disk::Digest([7; 32]);
    record.spec.media = vec![kvcache_disk::name::Media { start: 10, length: 15, digest }];
    record.spec.meta = "{}".into();
    let bytes = bytes(&record);
    if std::env::var_os("KVCACHE_BLESS").is_some() {
        fs::write(path, &bytes).unwrap();
    }
    assert!(fs::read(path).unwrap() == bytes, "the bytes of a record have changed");
    let (header, slices) = read(bytes, 0, 280, &record).unwrap();
    assert_eq!((header.spec.clone(), slices), (record.spec.clone(), record.part(0, 280)));
}

#[test]
fn records_are_valid_safetensors_files() {
    let record = sample();
    let bytes = bytes(&record);
    let opened = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (spec, data) in record.spec.arrays.iter().zip(&record.arrays) {
        let tensor = opened.tensor(&spec.name).unwrap();
        assert_eq!((tensor.shape(), tensor.dtype(), tensor.data()), (&spec.shape[..], spec.dtype, &data[..]));
    }
    let header = Header::parse(&bytes[..PAYLOAD_ALIGNMENT], bytes.len() as u64).unwrap();
    assert_eq!(header.payload, PAYLOAD_ALIGNMENT as u64);
}

#[test]
fn every_kind_of_array_round_trips() {
    for record in [sample(), checkpoint(&sample())] {
        let (header, slices) = read(bytes(&record), 0, 700, &record).unwrap();
        assert_eq!(header.spec, record.spec);
        assert_eq!(slices, record.part(0, 700));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: count(64, 2000) as u32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_range_round_trips(length in 1..1100_usize, a in 0..1100_usize, b in 0..1100_usize) {
        let record = segment(&namer("m"), &tokens(1, length), 0, length, None);
        let (from, to) = (a.min(b) % length, (a.max(b) % length + 1).max(a.min(b) % length + 1));
        let (_, slices) = read(bytes(&record), from, to, &record).unwrap();
        prop_assert_eq!(slices, record.part(from, to));
    }
}

#[test]
fn slices_of_the_wrong_length_are_rejected() {
    let record = sample();
    let file = Memory(Mutex::new(bytes(&record)));
    let header = read_header(&file).unwrap();
    let full = record.want(0, 700).destination;
    let read = |mut slices: Vec<Vec<u8>>, range| {
        let mut slices: Vec<&mut [u8]> = slices.iter_mut().map(Vec::as_mut_slice).collect();
        read_range(&file, &header, range, &mut slices)
    };
    assert!(matches!(read(full[1..].to_vec(), 0..700), Err(Failure::Slices)));
    assert!(matches!(read([full.clone(), full.clone()].concat(), 0..700), Err(Failure::Slices)));
    assert!(matches!(read(full.clone(), 0..699), Err(Failure::Slices)));
    assert!(matches!(read(full.clone(), 0..701), Err(Failure::Slices)));
    assert!(matches!(read(full.clone(), 5..5), Err(Failure::Slices)));
    assert!(read(full, 0..700).is_ok());
}

#[test]
fn inconsistent_specs_are_rejected() {
    type Break = fn(&mut Record);
    let breaks: [Break; 11] = [
        |r| r.spec.tokens.truncate(699),
        |r| r.spec.tokens[3] = 1 << 31,
        |r| r.spec.start = usize::MAX,
        |r| std::sync::Arc::make_mut(&mut r.spec.identity).namespace.clear(),
        |r| r.spec.arrays[1].name = r.spec.arrays[0].name.clone(),
        |r| r.spec.arrays[1].name = "__metadata__".into(),
        |r| r.spec.arrays[1].token_axis = Some(1),
        |r| r.spec.arrays[1].token_axis = Some(9),
        |r| r.spec.arrays[1].shape[3] = usize::MAX,
        |r| r.spec.parent = Some(r.spec.name),
        |r| r.arrays.truncate(1),
    ];
    for (index, broken) in breaks.iter().enumerate() {
        let mut record = sample();
        broken(&mut record);
        assert!(encode(&record.spec, &record.slices()).is_err(), "{index}");
    }
    let mut record = sample();
    record.arrays[0].pop();
    assert!(encode(&record.spec, &record.slices()).is_err());
}

#[test]
fn a_file_truncated_anywhere_is_rejected() {
    let record = sample();
    let whole = bytes(&record);
    let cuts = (0..whole.len()).filter(|cut| *cut < PAYLOAD_ALIGNMENT + 16 || cut % 512 < 2);
    for cut in cuts {
        assert!(read(whole[..cut].to_vec(), 0, 700, &record).is_err(), "{cut}");
        assert!(read(whole[..cut].to_vec(), 0, 1, &record).is_err(), "{cut}");
    }
    assert!(matches!(read(Vec::new(), 0, 700, &record), Err(Failure::Damaged(Damage::Short))));
    let longer = [whole.clone(), vec![0]].concat();
    assert!(read(longer, 0, 700, &record).is_err());
}

/// A reader of a range always detects damage in the steps that cover it, and may ignore damage elsewhere.
#[test]
fn flipped_bits_of_header_and_payload_are_detected() {
    let record = sample();
    let whole = bytes(&record);
    let mut random = Random(1);
    for at in 0..PAYLOAD_ALIGNMENT {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << random.below(8);
        assert!(read(bytes, 0, 1, &record).is_err(), "header byte {at}");
    }
    let (mut detected, rounds) = (0, count(10_000, 100_000));
    for _ in 0..rounds {
        let mut bytes = whole.clone();
        let at = PAYLOAD_ALIGNMENT + random.below(whole.len() - PAYLOAD_ALIGNMENT);
        bytes[at] ^= 1 << random.below(8);
        let from = random.below(700);
        let to = from + 1 + random.below(700 - from);
        match read(bytes, from, to, &record) {
            Ok((_, slices)) => assert_eq!(slices, record.part(from, to), "byte {at}"),
            Err(_) => detected += 1,
        }
    }
    assert!(detected > rounds / 4 && detected < rounds, "{detected} of {rounds} detected");
}

/// Wild content with a valid checksum, as anyone who can write files could forge it.
#[test]
fn forged_headers_never_panic() {
    let record = sample();
    let whole = bytes(&record);
    let header = &whole[..PAYLOAD_ALIGNMENT];
    let mut random = Random(2);
    let digits = header.windows(8).position(|w| w == b"\"crc32c\"").unwrap() + 10;
    let seal = |bytes: &mut Vec<u8>| {
        bytes[digits..digits + 8].copy_from_slice(b"00000000");
        let crc = format!("{:08x}", crc32c::crc32c(bytes));
        bytes[digits..digits + 8].copy_from_slice(crc.as_bytes());
    };
    for _ in 0..count(20_000, 200_000) {
        let mut forged = header.to_vec();
        for _ in 0..=random.below(3) {
            let at = 8 + random.below(5500);
            forged[at] = b"0123456789,:[]{}\"-e x"[random.below(21)];
        }
        seal(&mut forged);
        forged.extend(&whole[PAYLOAD_ALIGNMENT..]);
        // Either rejected or harmless, since readers compare the spec.
        let file = Memory(Mutex::new(forged));
        if let Ok(header) = read_header(&file)
            && header.spec == record.spec
        {
            let read = read(file.0.into_inner().unwrap(), 0, 700, &record);
            assert!(read.is_err() || read.is_ok_and(|(_, slices)| slices == record.part(0, 700)));
        }
    }
}

#[test]
fn random_bytes_are_not_a_record() {
    let mut random = Random(3);
    for length in [0, 1, 7, 8, 9, 100, PAYLOAD_ALIGNMENT, 3 * PAYLOAD_ALIGNMENT] {
        for _ in 0..20 {
            let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            assert!(read_header(&Memory(Mutex::new(bytes.clone()))).is_err());
            if length >= 8 {
                bytes[..8].copy_from_slice(&(PAYLOAD_ALIGNMENT as u64 - 8).to_le_bytes());
                assert!(read_header(&Memory(Mutex::new(bytes))).is_err());
            }
        }
    }
}

/// On the real file system, with more slices than one vectored call allows.
#[test]
fn more_slices_than_fit_in_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = chain(&namer("m"), &tokens(1, 3), &[3]).remove(0);
    record.spec.arrays[0].shape = vec![3000, 3, 5];
    record.spec.arrays[0].token_axis = Some(1);
    record.spec.arrays.truncate(1);
    record.arrays = vec![(0..90_000_u32).map(|i| (i * 7 % 251) as u8).collect()];
    let path = folder.path().join("record");
    let handle = OsFiles.open(&path, Open::Create).unwrap();
    let header = encode(&record.spec, &record.slices()).unwrap();
    kvcache_disk::record::write(&*handle, &header, &record.slices()).unwrap();
    let handle = OsFiles.open(&path, Open::Read).unwrap();
    let header = read_header(&*handle).unwrap();
    let mut slices = vec![vec![0; 20]; 3000];
    let mut borrowed: Vec<&mut [u8]> = slices.iter_mut().map(Vec::as_mut_slice).collect();
    read_range(&*handle, &header, 1..3, &mut borrowed).unwrap();
    for (slice, run) in slices.iter().zip(record.arrays[0].chunks(30)) {
        assert_eq!(slice, &run[10..30]);
    }
}
