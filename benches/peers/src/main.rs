//! Times kvcache's index beside other prefix indexes from crates.io, interleaved in one run.
//!
//! Prints tab-separated figures: section, case, size, contender, median ns, best ns. Progress goes
//! to stderr. `python -m benches.peers` runs this and writes the report.

mod alloc;
mod peers;
mod prompts;
mod sections;
mod threads;
mod timing;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

const SIZES: [usize; 4] = [1_024, 8_192, 32_768, 131_072];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let sections: [(&str, fn()); 8] = [
        ("lookup", sections::lookup),
        ("insert", sections::insert),
        ("stored", sections::stored),
        ("evict", sections::evict),
        ("chat", sections::chat),
        ("bushy", sections::bushy),
        ("memory", sections::memory),
        ("threads", threads::two_threads),
    ];
    for (name, run) in sections {
        if wanted.is_empty() || wanted.iter().any(|want| want == name) {
            eprintln!("{name}");
            run();
        }
    }
}
