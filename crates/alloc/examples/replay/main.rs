//! Replays recorded iterations: what their planned memory needs, beside PyTorch's caching allocator.
//!
//! `cargo run --release -p elbowroom-alloc --example replay -- [--json] FILE...`, with files that `elbowroom-import` reads. Each iteration is
//! run until all of it is planned. `--json` prints one object for each file instead of a table. Weights and other values that outlive the
//! iteration are requested once, before it.

mod events;

use std::error::Error;
use std::time::Instant;

use elbowroom_alloc::{Answer, CachingAllocator, Rehearsal, Request, Settings};
use events::{Event, Iteration};

/// Addresses are aligned to this, as on CUDA devices; also the granule.
const ALIGN: usize = 512;

/// Iterations after which what is not planned stays so.
const MOST: usize = 16;

struct Row {
    name: String,
    requests: usize,
    peak_live: u64,
    height: u64,
    iterations: usize,
    planned: f64,
    seconds: f64,
    whole_peak: u64,
    whole_planned: u64,
    whole_caching: u64,
}

impl Row {
    fn print_json(&self) {
        println!(
            "{{\"requests\":{},\"peak_live_bytes\":{},\"arena_bytes\":{},\"planned_share\":{},\"planned_from_iteration\":{},\
             \"whole_peak_bytes\":{},\"whole_planned_bytes\":{},\"whole_caching_bytes\":{}}}",
            self.requests,
            self.peak_live,
            self.height,
            self.planned,
            self.iterations,
            self.whole_peak,
            self.whole_planned,
            self.whole_caching,
        );
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (options, files): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument == "--json");
    if !options.is_empty() {
        for file in &files {
            replay(file, &Iteration::read(file.as_ref())?).print_json();
        }
        return Ok(());
    }
    println!(
        "| iteration | requests | peak load | height | height ÷ peak | planned | in iteration | planning | with weights: peak | planned ÷ peak | caching ÷ peak |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut worst: f64 = 1.0;
    for file in files {
        let iteration = Iteration::read(file.as_ref())?;
        let row = replay(&file, &iteration);
        let ratio = row.height as f64 / row.peak_live as f64;
        worst = worst.max(ratio);
        println!(
            "| {} | {} | {} | {} | {ratio:.4} | {:.1} % | {} | {:.2} s | {} | {:.3} | {:.3} |",
            row.name,
            row.requests,
            row.peak_live,
            row.height,
            100.0 * row.planned,
            row.iterations,
            row.seconds,
            row.whole_peak,
            row.whole_planned as f64 / row.whole_peak as f64,
            row.whole_caching as f64 / row.whole_peak as f64,
        );
    }
    println!("\nlargest height ÷ peak load: {worst:.4}");
    Ok(())
}

fn replay(file: &str, iteration: &Iteration) -> Row {
    let stem = file.rsplit('/').next().unwrap_or(file);
    let name = stem.split(".json").next().unwrap_or(stem).to_owned();
    let fixed: u64 = iteration.fixed.iter().sum();

    let mut caching = CachingAllocator::new();
    for &bytes in &iteration.fixed {
        caching.allocate(bytes);
    }
    let mut blocks = vec![0; iteration.blocks];
    for _ in 0..4 {
        for event in &iteration.events {
            match *event {
                Event::Malloc { block, bytes } => blocks[block] = caching.allocate(bytes),
                Event::Free { block } => caching.free(blocks[block]),
            }
        }
    }

    let mut sequence = Rehearsal::new(Settings::default().granule(ALIGN));
    let mut answers = vec![Answer::Fallback(None); iteration.blocks];
    let requests = iteration.events.iter().filter(|event| matches!(event, Event::Malloc { .. })).count();
    let mut longest = 0.0f64;
    let mut share = 0.0f64;
    let mut iterations = 0;
    while share < 1.0 && iterations < MOST {
        let before = sequence.stats();
        for event in &iteration.events {
            match *event {
                Event::Malloc { block, bytes } => {
                    let start = Instant::now();
                    answers[block] = sequence.request(Request::new(bytes as usize, ALIGN));
                    longest = longest.max(start.elapsed().as_secs_f64());
                }
                Event::Free { block } => sequence.free(answers[block]),
            }
        }
        let stats = sequence.stats();
        share =
            (stats.planned_bytes - before.planned_bytes) as f64 / (stats.bytes - before.bytes).max(1) as f64;
        iterations += 1;
    }
    let stats = sequence.stats();
    Row {
        name,
        requests,
        peak_live: stats.peak_live.max(1) as u64,
        height: stats.arena_bytes as u64,
        iterations,
        planned: share,
        seconds: longest,
        whole_peak: caching.peak_live(),
        whole_planned: fixed + stats.arena_bytes as u64 + iteration.unplannable,
        whole_caching: caching.reserved(),
    }
}
