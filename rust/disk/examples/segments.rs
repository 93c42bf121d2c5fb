//! CPU and bandwidth of writing and reading segments of 1,024 tokens × 30 layers of bf16 (23.6 MB), beside a
//! plain sequential read of the same files:
//!
//! ```console
//! $ cargo run --release -p kvcache-disk --example segments -- FOLDER [SEGMENTS [THREADS]]
//! ```
//!
//! "Cold" means dropped from the page cache before (`posix_fadvise`, on Linux; elsewhere all reads are warm).

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

/// User and system time of this process, in seconds.
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

/// One segment's rows in buffers that hold a whole prompt: as a fetch joins them.
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

/// Each file from start to end by one thread, 1 MiB at a time, into the same buffer.
fn plain(files: &[PathBuf]) {
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        let mut file = File::open(path).expect("a record");
        while file.read(&mut buffer).expect("a disk") > 0 {}
    }
}

/// The same by several threads, a file each at a time.
fn plain_parallel(files: &[PathBuf], threads: usize) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let share: Vec<PathBuf> = files.iter().skip(thread).step_by(threads).cloned().collect();
            scope.spawn(move || plain(&share));
        }
    });
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let root = PathBuf::from(arguments.next().expect("usage: segments FOLDER [SEGMENTS [THREADS]]"));
    let mut number = |default| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (segments, threads) = (number(16), number(4));
    let settings = Settings { root: root.clone(), max_bytes: 1 << 40, reserve: 0, durable: false };
    let folder = Folder::open(settings, Arc::new(OsFiles), Arc::new(SystemClock));
    assert!(folder.wait_ready(Duration::from_secs(60)));

    let identity = Identity {
        namespace: "bench".into(),
        layout: "bench".into(),
        rank: 0,
        ranks: 1,
        segment_tokens: TOKENS as u32,
    };
    let namer = Namer::new(identity, None);
    let tokens: Vec<u32> = (0..(segments * TOKENS) as u32).map(|i| i * 31 % 150_000).collect();
    let cuts: Vec<usize> = (0..=segments).map(|i| i * TOKENS).collect();
    let hashes = namer.hashes(&tokens, &[], &cuts).expect("names");
    let (wall, _) = timed(|| (0..100).for_each(|_| drop(namer.hashes(&tokens, &[], &cuts))));
    println!("names of {} tokens, {} boundaries: {:.0} µs", tokens.len(), cuts.len(), wall * 1e4);

    let bytes = HEADS * TOKENS * WIDTH * 2;
    let payload = Arc::new(
        (0..ARRAYS)
            .map(|a| (0..bytes).map(|i| ((i * 31) ^ (a * 7)) as u8).collect())
            .collect::<Vec<Vec<u8>>>(),
    );
    let total = (segments * ARRAYS * bytes) as f64;
    let spec = |index: usize| Spec {
        name: namer.name(Kind::Segment, hashes[index], TOKENS as u32, hashes[index + 1]),
        identity: Arc::clone(namer.identity()),
        start: cuts[index],
        tokens: tokens[cuts[index]..cuts[index + 1]].to_vec(),
        media: Vec::new(),
        parent: (index > 0)
            .then(|| namer.name(Kind::Segment, hashes[index - 1], TOKENS as u32, hashes[index])),
        meta: String::new(),
        arrays: (0..ARRAYS)
            .map(|array| ArraySpec {
                name: format!("layers.{}.{}", array / 2, ["keys", "values"][array % 2]),
                dtype: Dtype::BF16,
                shape: vec![1, HEADS, TOKENS, WIDTH],
                token_axis: Some(2),
            })
            .collect(),
    };
    folder.clear().expect("an empty folder");
    let writer = Writer::new(Arc::clone(&folder), 1 << 40);
    let specs: Vec<Spec> = (0..segments).map(spec).collect();
    let mut submitting = 0.0;
    let (wall, used) = timed(|| {
        (submitting, _) = timed(|| {
            for spec in &specs {
                let submitted = writer.submit(spec.clone(), Box::new(Shared(Arc::clone(&payload))));
                assert!(matches!(submitted, Ok(Submitted::Queued)));
            }
        });
        assert!(writer.flush(Duration::from_secs(600)));
    });
    let each = 1e3 / segments as f64;
    println!("submit: {:.1} µs of the calling thread a segment", submitting * 1e3 * each);
    println!(
        "put: {:.1} ms CPU, {:.1} ms a segment, {:.2} GB/s",
        used * each,
        wall * each,
        total / wall / 1e9
    );
    let written = folder.stats().written_bytes as f64 / total;
    println!("bytes on disk / payload: {written:.4}");

    let files: Vec<PathBuf> = specs.iter().map(|spec| root.join(spec.name.path())).collect();
    let reader = Reader::new(Arc::clone(&folder), threads);
    let wants = |from: usize| -> Vec<Want<Joined>> {
        let want = |spec: &Spec| Want {
            name: spec.name,
            identity: Arc::clone(&spec.identity),
            start: spec.start + from,
            tokens: spec.tokens[from..].to_vec(),
            media: Vec::new(),
            // Written to once, so that what is measured is not the kernel's zeroing of new pages.
            destination: Joined(vec![vec![1; bytes / TOKENS * (TOKENS - from)]; ARRAYS]),
        };
        specs.iter().map(want).collect()
    };
    let read = |wants| {
        let outcomes = reader.read(wants, Duration::from_secs(600));
        for outcome in &outcomes {
            assert!(outcome.is_read(), "{}", outcome.reason());
        }
    };
    // Alternating, so that both see the same neighbours; the best of each.
    let mut best = [f64::MAX; 8];
    let mut note = |index: usize, value: f64| best[index] = best[index].min(value);
    for _ in 0..5 {
        drop_from_page_cache(&files);
        note(0, timed(|| plain(&files)).0);
        drop_from_page_cache(&files);
        note(1, timed(|| plain_parallel(&files, threads)).0);
        let all = wants(0);
        drop_from_page_cache(&files);
        let (wall, used) = timed(|| read(all));
        note(2, wall);
        note(3, used);
        let all = wants(0);
        let (wall, used) = timed(|| read(all));
        note(4, wall);
        note(5, used);
        note(6, timed(|| plain(&files)).0);
        let part = wants(100);
        note(7, timed(|| read(part)).1);
    }
    let rate = |wall: f64| total / wall / 1e9;
    println!(
        "plain sequential read, cold: {:.2} GB/s; by {threads} threads {:.2}",
        rate(best[0]),
        rate(best[1])
    );
    println!("get, cold: {:.2} GB/s, {:.1} ms CPU a segment", rate(best[2]), best[3] * each);
    println!("get / plain, cold: {:.2}; / by {threads} threads: {:.2}", best[0] / best[2], best[1] / best[2]);
    println!(
        "get, warm: {:.2} GB/s, {:.1} ms CPU a segment; plain {:.2}",
        rate(best[4]),
        best[5] * each,
        rate(best[6])
    );
    println!("get of tokens 100 to 1,024, warm: {:.1} ms CPU a segment", best[7] * each);
    if let Some(scan) = scan(&root) {
        println!("scan: {scan:.1} ms for {segments} records");
    }
    folder.clear().expect("an empty folder");
}

fn scan(root: &Path) -> Option<f64> {
    let settings = Settings { root: root.to_path_buf(), max_bytes: 1 << 40, reserve: 0, durable: false };
    let began = Instant::now();
    let folder = Folder::open(settings, Arc::new(OsFiles), Arc::new(SystemClock));
    folder.wait_ready(Duration::from_secs(600)).then(|| began.elapsed().as_secs_f64() * 1e3)
}
