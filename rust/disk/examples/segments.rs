//! Measures CPU time and bandwidth of writing and reading segments of 1,024 tokens × 30 layers of bf16
//! (23.6 MB), compared with a plain sequential read of the same files:
//!
//! ```console
//! $ cargo run --release -p kvcache-disk --example segments -- FOLDER [SEGMENTS [THREADS]]
//! ```
//!
//! With 0 segments it only scans the folder. "Cold" means that the files were dropped from the page cache
//! first (with `posix_fadvise` on Linux; elsewhere all reads are warm).

// The results are for people to read.
#![allow(clippy::cast_precision_loss)]

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use kvcache_disk::{
    Dtype,
    clock::SystemClock,
    files::OsFiles,
    folder::{Folder, Settings},
    name::{Identity, Kind, Namer},
    reader::{Destination, Reader, Want},
    record::{ArraySpec, Spec},
    writer::{Source, Submitted, Writer},
};

const TOKENS: usize = 1024;
const ARRAYS: usize = 60;
const HEADS: usize = 3;
const WIDTH: usize = 64;

/// CPU time of this process, in seconds.
fn cpu() -> f64 {
    let time = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    time(rustix::time::ClockId::ProcessCPUTime)
}

/// Runs `action` and returns wall and CPU time.
fn timed(action: impl FnOnce()) -> (f64, f64) {
    let (wall, before) = (Instant::now(), cpu());
    action();
    (wall.elapsed().as_secs_f64(), cpu() - before)
}

struct Shared(Arc<Vec<Vec<u8>>>);

impl Source for Shared {
    fn arrays(&self) -> Vec<&[u8]> {
        self.0.iter().map(Vec::as_slice).collect()
    }
}

/// Buffers in the layout of a whole prompt, into which a fetch joins the rows of segments.
struct Joined(Vec<Vec<u8>>);

impl Destination for Joined {
    fn slices(&mut self) -> Vec<&mut [u8]> {
        let head = self.0[0].len() / HEADS;
        self.0.iter_mut().flat_map(|array| array.chunks_mut(head)).collect()
    }
}

fn drop_from_page_cache(files: &[PathBuf]) {
    for path in files {
        let file = File::open(path).expect("a record");
        file.sync_all().expect("a disk");
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("posix_fadvise");
    }
}

/// Reads each file sequentially on one thread, 1 MiB at a time, into the same buffer.
fn plain(files: &[PathBuf]) {
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        let mut file = File::open(path).expect("a record");
        while file.read(&mut buffer).expect("a disk") > 0 {}
    }
}

/// Does the same on several threads, with one file per thread at a time.
fn plain_parallel(files: &[PathBuf], threads: usize) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let share: Vec<PathBuf> = files.iter().skip(thread).step_by(threads).cloned().collect();
            scope.spawn(move || plain(&share));
        }
    });
}

/// A path of segments, and where it is stored.
struct Bench {
    root: PathBuf,
    folder: Arc<Folder>,
    specs: Vec<Spec>,
    payload: Arc<Vec<Vec<u8>>>,
}

/// Bytes per array of a segment.
const ARRAY_BYTES: usize = HEADS * TOKENS * WIDTH * 2;

fn open(root: &Path) -> Arc<Folder> {
    let settings = Settings { root: root.to_path_buf(), max_bytes: 1 << 40, reserve: 0, durable: false };
    let folder = Folder::open(settings, Arc::new(OsFiles), Arc::new(SystemClock));
    assert!(folder.wait_ready(Duration::from_secs(600)));
    folder
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let root = PathBuf::from(arguments.next().expect("usage: segments FOLDER [SEGMENTS [THREADS]]"));
    let mut number = |default| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (segments, threads) = (number(16), number(4));
    if segments == 0 {
        let (scan, used) = timed(|| println!("{} records", open(&root).stats().records));
        println!("scan: {:.1} ms, {:.1} ms CPU", scan * 1e3, used * 1e3);
        return;
    }
    let bench = Bench {
        folder: open(&root),
        root,
        specs: specs(segments),
        payload: Arc::new(
            (0..ARRAYS).map(|a| (0..ARRAY_BYTES).map(|i| ((i * 31) ^ (a * 7)) as u8).collect()).collect(),
        ),
    };
    bench.folder.clear().expect("an empty folder");
    bench.put();
    bench.get(threads);
    bench.folder.clear().expect("an empty folder");
}

fn specs(segments: usize) -> Vec<Spec> {
    let identity = Identity {
        namespace: "bench".into(),
        layout: "bench".into(),
        rank: 0,
        ranks: 1,
        segment_tokens: TOKENS as u32,
    };
    let namer = Namer::new(identity, None);
    let tokens: Vec<u32> = (0..131_072).map(|i| i * 31 % 150_000).collect();
    let cuts: Vec<usize> = (0..=128).map(|i| i * TOKENS).collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let (mut ours, mut plain) = (f64::MAX, f64::MAX);
    for _ in 0..200 {
        ours = ours.min(timed(|| drop(namer.hashes(&tokens, &[], &cuts))).0);
        plain = plain.min(
            timed(|| {
                let mut hasher = blake3::Hasher::new();
                for piece in bytes.chunks(TOKENS * 4) {
                    std::hint::black_box(hasher.update(piece).finalize());
                }
            })
            .0,
        );
    }
    println!(
        "names of {} tokens, {} boundaries: {:.0} µs; blake3 of the same bytes: {:.0} µs",
        tokens.len(),
        cuts.len(),
        ours * 1e6,
        plain * 1e6
    );
    let hashes = namer.hashes(&tokens, &[], &cuts).expect("names");
    let name = |index: usize| namer.name(Kind::Segment, hashes[index], TOKENS as u32, hashes[index + 1]);
    let array = |array: usize| ArraySpec {
        name: format!("layers.{}.{}", array / 2, ["keys", "values"][array % 2]),
        dtype: Dtype::BF16,
        shape: vec![1, HEADS, TOKENS, WIDTH],
        token_axis: Some(2),
    };
    let spec = |index: usize| Spec {
        name: name(index),
        identity: Arc::clone(namer.identity()),
        start: cuts[index],
        tokens: tokens[cuts[index]..cuts[index + 1]].to_vec(),
        media: Vec::new(),
        parent: (index > 0).then(|| name(index - 1)),
        meta: String::new(),
        arrays: (0..ARRAYS).map(array).collect(),
    };
    (0..segments.min(128)).map(spec).collect()
}

impl Bench {
    fn total(&self) -> f64 {
        (self.specs.len() * ARRAYS * ARRAY_BYTES) as f64
    }

    /// Milliseconds per segment.
    fn each(&self, seconds: f64) -> f64 {
        seconds * 1e3 / self.specs.len() as f64
    }

    fn put(&self) {
        let writer = Writer::new(Arc::clone(&self.folder), 1 << 40);
        let specs = self.specs.clone();
        let mut submitting = 0.0;
        let (wall, used) = timed(|| {
            (submitting, _) = timed(|| {
                for spec in specs {
                    let submitted = writer.submit(spec, Box::new(Shared(Arc::clone(&self.payload))));
                    assert!(matches!(submitted, Ok(Submitted::Queued)));
                }
            });
            assert!(writer.flush(Duration::from_secs(600)));
        });
        println!("submit: {:.1} µs per segment on the calling thread", self.each(submitting) * 1e3);
        let rate = self.total() / wall / 1e9;
        println!(
            "put, per segment: {:.1} ms CPU, {:.1} ms; {rate:.2} GB/s",
            self.each(used),
            self.each(wall)
        );
        println!("bytes on disk / payload: {:.4}", self.folder.stats().written_bytes as f64 / self.total());
    }

    fn wants(&self, from: usize) -> Vec<Want<Joined>> {
        let want = |spec: &Spec| Want {
            name: spec.name,
            identity: Arc::clone(&spec.identity),
            start: spec.start + from,
            tokens: spec.tokens[from..].to_vec(),
            media: Vec::new(),
            // Written once beforehand, so as not to measure the kernel's zeroing of new pages.
            destination: Joined(vec![vec![1; ARRAY_BYTES / TOKENS * (TOKENS - from)]; ARRAYS]),
        };
        self.specs.iter().map(want).collect()
    }

    fn get(&self, threads: usize) {
        let files: Vec<PathBuf> = self.specs.iter().map(|spec| self.root.join(spec.name.path())).collect();
        let reader = Reader::new(Arc::clone(&self.folder), threads);
        let read = |wants| {
            for outcome in &reader.read(wants, Duration::from_secs(600)) {
                assert!(outcome.is_read(), "{}", outcome.reason());
            }
        };
        // Alternate, so that both see the same load from other processes, and take the best of each.
        let mut best = [f64::MAX; 8];
        let mut note = |index: usize, value: f64| best[index] = best[index].min(value);
        for _ in 0..7 {
            drop_from_page_cache(&files);
            note(0, timed(|| plain(&files)).0);
            drop_from_page_cache(&files);
            note(1, timed(|| plain_parallel(&files, threads)).0);
            let wants = self.wants(0);
            drop_from_page_cache(&files);
            let (wall, used) = timed(|| read(wants));
            note(2, wall);
            note(3, used);
            let wants = self.wants(0);
            let (wall, used) = timed(|| read(wants));
            note(4, wall);
            note(5, used);
            note(6, timed(|| plain(&files)).0);
            let wants = self.wants(100);
            note(7, timed(|| read(wants)).1);
        }
        let rate = |wall: f64| self.total() / wall / 1e9;
        let cpu = |used: f64| self.each(used);
        println!("plain, cold: {:.2} GB/s; {threads} threads: {:.2}", rate(best[0]), rate(best[1]));
        println!("get, cold: {:.2} GB/s, {:.1} ms CPU per segment", rate(best[2]), cpu(best[3]));
        println!(
            "get / plain, cold: {:.2}; / {threads} threads: {:.2}",
            best[0] / best[2],
            best[1] / best[2]
        );
        println!(
            "get, warm: {:.2} GB/s, {:.1} ms CPU; plain {:.2}",
            rate(best[4]),
            cpu(best[5]),
            rate(best[6])
        );
        println!("get of tokens 100 to 1,024, warm: {:.1} ms CPU per segment", cpu(best[7]));
    }
}
