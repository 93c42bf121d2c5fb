//! Interleaved timing: in every round each contender runs once, so that all meet the same clock
//! speed and the same neighbours.

use std::hint::black_box;
use std::time::Instant;

pub(crate) struct Contender<'a> {
    pub(crate) name: String,
    /// Runs once; called `batch` times in a row for one sample.
    pub(crate) run: Box<dyn FnMut() + 'a>,
}

/// One line a contender, for the report: section, case, size, name, median and best ns.
pub(crate) fn report(section: &str, case: &str, size: usize, name: &str, samples: &mut [f64]) {
    samples.sort_by(f64::total_cmp);
    let (median, best) = (samples[samples.len() / 2], samples[0]);
    println!("{section}\t{case}\t{size}\t{name}\t{median}\t{best}");
}

pub(crate) fn interleaved(
    section: &str,
    case: &str,
    size: usize,
    contenders: &mut [Contender<'_>],
    rounds: usize,
) {
    eprintln!("  {section}, {case}, {size}");
    // A sample of some 20 us at least: reading the clock costs as much as the smallest lookup.
    let batches: Vec<u32> = contenders
        .iter_mut()
        .map(|contender| {
            let start = Instant::now();
            for _ in 0..5 {
                (contender.run)();
            }
            let each = start.elapsed().as_nanos() / 5 + 1;
            (20_000 / each + 1) as u32
        })
        .collect();
    let mut samples = vec![Vec::with_capacity(rounds); contenders.len()];
    for _ in 0..rounds {
        for (at, contender) in contenders.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..batches[at] {
                (contender.run)();
            }
            samples[at].push(start.elapsed().as_nanos() as f64 / f64::from(batches[at]));
        }
    }
    for (contender, samples) in contenders.iter().zip(&mut samples) {
        report(section, case, size, &contender.name, samples);
    }
}

/// Nanoseconds of one call.
pub(crate) fn once<R>(run: impl FnOnce() -> R) -> f64 {
    let start = Instant::now();
    black_box(run());
    start.elapsed().as_nanos() as f64
}
