//! Records whose bytes are derived from their name, folders to put them in, and a clock set by hand.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kvcache_disk::{
    Dtype,
    clock::Clock,
    files::{Files, OsFiles},
    folder::{Folder, Settings},
    name::{Identity, Kind, Media, Name, Namer},
    reader::{Outcome, Reader, Want},
    record::{ArraySpec, Spec},
};

/// Only bounds hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) const HEADS: usize = 2;
/// Bytes per row of one head.
pub(crate) const ROW: usize = 8;

#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) spec: Spec,
    pub(crate) arrays: Vec<Vec<u8>>,
}

impl Record {
    pub(crate) fn slices(&self) -> Vec<&[u8]> {
        self.arrays.iter().map(Vec::as_slice).collect()
    }

    /// A request for the tokens `from..to` of the record.
    pub(crate) fn want(&self, from: usize, to: usize) -> Want<Vec<Vec<u8>>> {
        want(&self.spec, from, to)
    }

    /// The expected result of that request.
    pub(crate) fn part(&self, from: usize, to: usize) -> Vec<Vec<u8>> {
        part(&self.spec, &self.arrays, from, to)
    }
}

pub(crate) fn want(spec: &Spec, from: usize, to: usize) -> Want<Vec<Vec<u8>>> {
    let (start, end) = (spec.start + from, spec.start + to);
    let overlaps = |span: &&Media| span.start < end && span.start + span.length > start;
    Want {
        name: spec.name,
        identity: Arc::clone(&spec.identity),
        start,
        tokens: spec.tokens[from..to].to_vec(),
        media: spec.media.iter().filter(overlaps).copied().collect(),
        destination: part(spec, &data(spec), from, to).iter().map(|slice| vec![0xAA; slice.len()]).collect(),
    }
}

/// The slices of a range, cut naively.
pub(crate) fn part(spec: &Spec, arrays: &[Vec<u8>], from: usize, to: usize) -> Vec<Vec<u8>> {
    let mut slices = Vec::new();
    for (array, bytes) in spec.arrays.iter().zip(arrays) {
        match array.token_axis {
            _ if bytes.is_empty() => {}
            None => slices.push(bytes.clone()),
            Some(_) => {
                let row = bytes.len() / HEADS / spec.tokens.len();
                for run in bytes.chunks(row * spec.tokens.len()) {
                    slices.push(run[from * row..to * row].to_vec());
                }
            }
        }
    }
    slices
}

/// The correct bytes of a record.
pub(crate) fn data(spec: &Spec) -> Vec<Vec<u8>> {
    spec.arrays
        .iter()
        .map(|array| {
            let mut bytes = vec![0; array.shape.iter().product::<usize>() * array.dtype.bitsize() / 8];
            let mut hasher = blake3::Hasher::new();
            hasher.update(spec.name.to_string().as_bytes()).update(array.name.as_bytes());
            hasher.finalize_xof().fill(&mut bytes);
            bytes
        })
        .collect()
}

pub(crate) fn identity(namespace: &str) -> Identity {
    Identity {
        namespace: namespace.into(),
        layout: r#"[["KVCache",2,4,"BF16"]]"#.into(),
        rank: 0,
        ranks: 1,
        segment_tokens: 512,
    }
}

pub(crate) fn namer(namespace: &str) -> Namer {
    Namer::new(identity(namespace), None)
}

pub(crate) fn arrays(tokens: usize) -> Vec<ArraySpec> {
    let array = |name: &str| ArraySpec {
        name: name.into(),
        dtype: Dtype::BF16,
        shape: vec![1, HEADS, tokens, ROW / 2],
        token_axis: Some(2),
    };
    vec![array("layers.0.keys"), array("layers.0.values")]
}

/// The record of `tokens[start..end]`.
pub(crate) fn segment(
    namer: &Namer,
    tokens: &[u32],
    start: usize,
    end: usize,
    parent: Option<Name>,
) -> Record {
    let hashes = namer.hashes(tokens, &[], &[start, end]).unwrap();
    let spec = Spec {
        name: namer.name(Kind::Segment, hashes[0], (end - start) as u32, hashes[1]),
        identity: Arc::clone(namer.identity()),
        start,
        tokens: tokens[start..end].to_vec(),
        media: Vec::new(),
        parent,
        meta: String::new(),
        arrays: arrays(end - start),
    };
    Record { arrays: data(&spec), spec }
}

/// A path of records that end at `cuts`.
pub(crate) fn chain(namer: &Namer, tokens: &[u32], cuts: &[usize]) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    let mut start = 0;
    for &end in cuts {
        let parent = records.last().map(|record| record.spec.name);
        records.push(segment(namer, tokens, start, end, parent));
        start = end;
    }
    records
}

/// A checkpoint at the end of a segment, with arrays that cannot be cut and an empty one.
pub(crate) fn checkpoint(segment: &Record) -> Record {
    let mut spec = segment.spec.clone();
    spec.parent = Some(spec.name);
    spec.name.kind = Kind::Checkpoint;
    spec.meta = "{\"offset\": 7, \"text\": \"\\\" \u{1F600}\"}".into();
    let array = |name: &str, shape: Vec<usize>| ArraySpec {
        name: name.into(),
        dtype: Dtype::F32,
        shape,
        token_axis: None,
    };
    spec.arrays =
        vec![array("state.1", vec![3, 100]), array("none", vec![1, 4, 0]), array("state.0", vec![7])];
    Record { arrays: data(&spec), spec }
}

/// Tokens that differ from those of any other seed at the first position.
pub(crate) fn tokens(seed: u32, count: usize) -> Vec<u32> {
    std::iter::once(seed).chain((1..count as u32).map(|i| i * 31 % 5000)).collect()
}

#[derive(Default)]
pub(crate) struct HandClock(AtomicU64);

impl HandClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(1_800_000_000_000_000_000)))
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) fn settings(root: &Path, max_bytes: u64) -> Settings {
    Settings { root: root.to_path_buf(), max_bytes, reserve: 0, durable: false }
}

/// Opens a folder and waits for its scan.
pub(crate) fn open(settings: Settings, files: Arc<dyn Files>, clock: &Arc<HandClock>) -> Arc<Folder> {
    let folder = Folder::open(settings, files, Arc::clone(clock) as Arc<dyn Clock>);
    assert!(folder.wait_ready(PATIENCE));
    folder
}

pub(crate) fn plain(root: &Path, max_bytes: u64) -> Arc<Folder> {
    open(settings(root, max_bytes), Arc::new(OsFiles), &HandClock::new())
}

/// Reads one whole record.
pub(crate) fn read(folder: &Arc<Folder>, record: &Record) -> Outcome<Vec<Vec<u8>>> {
    let want = record.want(0, record.spec.tokens.len());
    Reader::new(Arc::clone(folder), 1).read(vec![want], PATIENCE).remove(0)
}

/// Reads one whole record. Returns whether that succeeded; wrong bytes fail the test.
pub(crate) fn reads(folder: &Arc<Folder>, record: &Record) -> bool {
    match read(folder, record) {
        Outcome::Read { header, destination } => {
            assert_eq!(header.spec, record.spec);
            assert_eq!(destination, record.part(0, record.spec.tokens.len()));
            true
        }
        _ => false,
    }
}

/// Bytes of all files below `root`.
pub(crate) fn disk_usage(root: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(root) else { return 0 };
    let size = |path: &Path| match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => disk_usage(path),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(|entry| size(&entry.path())).sum()
}

/// A splitmix64 sequence, so that equal seeds give equal tests.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
