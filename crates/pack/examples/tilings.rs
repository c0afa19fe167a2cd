//! Hard problems with a known optimum, for comparisons with other packers.
//!
//! ```text
//! cargo run --release -p elbowroom-pack --example tilings -- write cuts 200 7 > tiling.csv     # 200 buffers, seed 7
//! cargo run --release -p elbowroom-pack --example tilings -- solve cuts 0..40 10 2 0..10       # seeds, seconds, threads, packer's seeds
//! cargo run --release -p elbowroom-pack --example tilings -- after open 1..12/2 60 300 2 0..2  # seeds, both seconds, threads, packer's seeds
//! cargo run --release -p elbowroom-pack --example tilings -- overlap training 100000 5 0..4/2 8 1                # blocks, alive at once, seeds, processor seconds
//! cargo run --release -p elbowroom-pack --example tilings -- timed training 100000 5 0 4 2                       # the same for some seconds, as JSON
//! ```
//!
//! `cuts` are like MiniMalloc's A, B, C and E, `open` like D and J, whose optimum may be below this height and above the peak of live memory; `strips`
//! are harder, and `full` problems fill every byte at all times, with an optimum above that. `file TABLE SECONDS THREADS` packs a table. `solve` packs one problem of 150 to
//! 450 buffers per seed with `auto` and each of the packer's seeds (0 if none is given), and prints how long each took, then the median, the 90th and
//! the 99th percentile and how many were not solved. `after` is for problems with an unknown optimum: it packs each for the longer time with each
//! of the packer's seeds, and prints how far the height after the shorter time is above the lowest height of these runs, and the proved lower
//! bound. Even seeds serve for tuning, odd ones for judging: `0..40/2` takes every second one.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use elbowroom_ir::packing::{Block, Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Silent, StopReason};
use elbowroom_ir::{Bytes, Id};

#[path = "../benches/generate.rs"]
#[expect(dead_code, reason = "the benchmarks use the other kinds of problems")]
mod generate;

/// The optimum of every problem, in bytes; of `open` ones an upper bound.
const OPTIMUM: Bytes = Bytes(1 << 20);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["write", kind, len, seed] => {
            let numbers = len.parse().ok().zip(seed.parse().ok());
            generator(kind).zip(numbers).map(|(generate, (len, seed))| write(generate, len, seed))
        }
        ["solve", kind, seeds, seconds, threads, ref packer @ ..] => {
            let numbers = seconds.parse().ok().zip(threads.parse().ok());
            let problems = generator(kind).zip(parse_seeds(seeds));
            let packer = parse_seeds(packer.first().unwrap_or(&"0..1"));
            let all = problems.zip(packer).zip(numbers);
            all.map(|(((generate, seeds), packer), (s, t))| solve(generate, &seeds, &packer, s, t))
        }
        ["after", kind, seeds, seconds, long, threads, packer] => {
            let numbers = seconds.parse().ok().zip(long.parse().ok()).zip(threads.parse().ok());
            let problems = generator(kind).zip(parse_seeds(seeds)).zip(parse_seeds(packer));
            let all = problems.zip(numbers);
            all.map(|(((generate, seeds), packer), (times, threads))| {
                after(generate, &seeds, &packer, times, threads)
            })
        }
        ["file", path, seconds, threads, ref seed @ ..] => {
            let seed = seed.first().unwrap_or(&"0").parse().ok();
            let numbers = seconds.parse().ok().zip(threads.parse().ok());
            numbers.zip(seed).and_then(|((seconds, threads), seed)| file(path, seconds, threads, seed))
        }
        [kind @ ("overlap" | "timed"), tile, len, alive, seeds, seconds, threads] => {
            let numbers = len.parse().ok().zip(alive.parse().ok().filter(|&alive| alive > 0));
            let budget = seconds.parse().ok().zip(threads.parse().ok().filter(|&threads| threads > 0));
            let all = read_tile(tile).zip(numbers).zip(parse_seeds(seeds)).zip(budget);
            all.map(|(((tile, (len, alive)), seeds), budget)| {
                for seed in seeds {
                    let problem = generate::overlapping(&tile, len, alive, seed);
                    if kind == "timed" { timed(&problem, budget) } else { overlap(&problem, seed, budget) }
                }
            })
        }
        _ => None,
    };
    match done {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprintln!(
                "usage: tilings write KIND LENGTH SEED | solve KIND FROM..TO[/STEP] SECONDS THREADS [FROM..TO] | after KIND FROM..TO[/STEP] SECONDS LONGER THREADS FROM..TO | file PATH SECONDS THREADS [SEED] | overlap TABLE LENGTH ALIVE FROM..TO[/STEP] SECONDS THREADS | timed TABLE LENGTH ALIVE FROM..TO[/STEP] SECONDS THREADS"
            );
            ExitCode::from(2)
        }
    }
}

/// Makes a problem of a length from a seed.
type Generator = fn(usize, u64) -> Problem;

fn generator(kind: &str) -> Option<Generator> {
    match kind {
        "cuts" => Some(generate::cuts),
        "strips" => Some(generate::strip),
        "open" => Some(generate::open),
        "full" => Some(generate::full),
        _ => None,
    }
}

/// The seeds of `from..to` or `from..to/step`, or a single one.
fn parse_seeds(text: &str) -> Option<Vec<u64>> {
    if let Ok(seed) = text.parse() {
        return Some(vec![seed]);
    }
    let (range, step) = text.split_once('/').unwrap_or((text, "1"));
    let (from, to) = range.split_once("..")?;
    let step = step.parse().ok().filter(|&step| step > 0)?;
    Some((from.parse().ok()?..to.parse().ok()?).step_by(step).collect())
}

fn write(generate: Generator, len: usize, seed: u64) {
    println!("id,lower,upper,size");
    for (id, block) in generate(len, seed).blocks.iter() {
        println!("{},{},{},{}", id.index(), block.alive[0].start, block.alive[0].end, block.size.get());
    }
}

/// Remembers the proved lower bound.
#[derive(Default)]
struct Bound(AtomicU64);

impl Observer for Bound {
    fn improved(&self, _: u64, bound: u64) {
        self.0.fetch_max(bound, Ordering::Relaxed);
    }
}

/// Remembers the height at a moment, and the proved lower bound.
struct Noted {
    until: Instant,
    height: AtomicU64,
    bound: Bound,
}

impl Observer for Noted {
    fn improved(&self, height: u64, bound: u64) {
        if Instant::now() <= self.until {
            self.height.fetch_min(height, Ordering::Relaxed);
        }
        self.bound.improved(height, bound);
    }
}

/// Packs problems for the longer of two times, and compares the heights after the shorter one with the lowest of all.
fn after(generate: Generator, seeds: &[u64], packer: &[u64], (short, long): (u64, u64), threads: usize) {
    for &seed in seeds {
        let problem = generate(length(seed), seed);
        let (mut noted, mut best, mut bound) = (Vec::new(), u64::MAX, 0);
        for &packer in packer {
            let budget = Budget { threads, seed: packer, ..Budget::time(Duration::from_secs(long)) };
            let until = Instant::now() + Duration::from_secs(short);
            let observer = Noted { until, height: AtomicU64::new(u64::MAX), bound: Bound::default() };
            let outcome = elbowroom_pack::Auto.pack(&problem, &budget, &observer);
            best = outcome.best.map_or(best, |placement| best.min(placement.height.get()));
            bound = bound.max(observer.bound.0.into_inner());
            noted.push(observer.height.into_inner());
        }
        let above: Vec<String> = noted
            .iter()
            .map(|&height| format!("{height} ({:+.3} %)", 100.0 * (height as f64 / best as f64 - 1.0)))
            .collect();
        println!(
            "seed {seed}: {} buffers, peak {}, at least {bound}, lowest {best}, after {short} s {}",
            problem.blocks.len(),
            problem.peak_live().get(),
            above.join(", ")
        );
    }
}

/// Packs a table and prints how long that took, and the lower bound.
fn file(path: &str, seconds: u64, threads: usize, seed: u64) -> Option<()> {
    let text = std::fs::read_to_string(path).ok()?;
    let problem = elbowroom_pack::csv::read(&text).ok()?.problem;
    let budget = Budget { threads, seed, ..Budget::time(Duration::from_secs(seconds)) };
    let start = Instant::now();
    let bound = Bound::default();
    let outcome = elbowroom_pack::Auto.pack(&problem, &budget, &bound);
    let height = outcome.best.map_or(Bytes::MAX, |Placement { height, .. }| height);
    let (height, seconds) = (height.get(), start.elapsed().as_secs_f64());
    let bound = bound.0.into_inner();
    println!("{path}: {height} bytes, at least {bound}, {}, {seconds:.3} s", outcome.stop.name());
    Some(())
}

/// The blocks of a table, or of one generated training iteration.
fn read_tile(name: &str) -> Option<Vec<Block>> {
    let problem = if name == "training" {
        generate::training(960, 0)
    } else {
        elbowroom_pack::csv::read(&std::fs::read_to_string(name).ok()?).ok()?.problem
    };
    Some(problem.blocks.iter().map(|(_, block)| block.clone()).collect())
}

/// Processor seconds of this process so far.
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    // User and system time, in hundredths of a second.
    Some(fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0)
}

/// Interrupts after some processor seconds, where these can be read, and notes when each height was found.
struct Processor {
    started: f64,
    seconds: f64,
    threads: usize,
    /// Before this, the seconds cannot have passed: asking the system takes longer than placing a buffer.
    not_before: Mutex<Instant>,
    heights: Mutex<Vec<(f64, u64)>>,
}

impl Processor {
    fn used(&self) -> f64 {
        processor_seconds().map_or(0.0, |now| now - self.started)
    }
}

impl Observer for Processor {
    fn improved(&self, height: u64, _: u64) {
        self.heights.lock().expect("no other user has panicked").push((self.used(), height));
    }

    fn interrupted(&self) -> bool {
        let mut not_before = self.not_before.lock().expect("no other user has panicked");
        let now = Instant::now();
        if now < *not_before {
            return false;
        }
        let left = self.seconds - self.used();
        if left <= 0.0 {
            return true;
        }
        *not_before = now + Duration::from_secs_f64((left / self.threads as f64).max(0.001));
        false
    }
}

/// Packs a problem for some processor seconds, and prints how far each height is above the peak.
fn overlap(problem: &Problem, seed: u64, (seconds, threads): (u64, usize)) {
    let budget = Budget { threads, ..Budget::time(Duration::from_secs(4 * seconds)) };
    let started = processor_seconds().unwrap_or(0.0);
    let observer = Processor {
        started,
        seconds: seconds as f64,
        threads,
        not_before: Mutex::new(Instant::now()),
        heights: Mutex::default(),
    };
    let outcome = elbowroom_pack::Auto.pack(problem, &budget, &observer);
    let peak = problem.peak_live();
    let above = |height: u64| 100.0 * (Bytes(height).ratio(peak) - 1.0);
    let used = observer.used();
    if let Some(placement) = &outcome.best {
        elbowroom_pack::validate(problem, placement).expect("the placement is legal");
    }
    let heights = observer.heights.into_inner().expect("no other user has panicked");
    let heights: Vec<String> =
        heights.iter().map(|&(at, height)| format!("{:+.3} % {at:.1} s", above(height))).collect();
    println!(
        "seed {seed}: {} buffers, {used:.1} s, {} evaluations, {:+.4} %; {}",
        problem.blocks.len(),
        outcome.evaluations,
        outcome.best.map_or(f64::INFINITY, |placement| above(placement.height.get())),
        heights.join(", ")
    );
}

/// Packs a problem for some seconds, and prints what came of it as JSON.
fn timed(problem: &Problem, (seconds, threads): (u64, usize)) {
    let budget = Budget { threads, ..Budget::time(Duration::from_secs(seconds)) };
    let (started, processor) = (Instant::now(), processor_seconds());
    let outcome = elbowroom_pack::Auto.pack(problem, &budget, &Silent);
    let (wall, peak) = (started.elapsed(), problem.peak_live());
    let processor =
        processor_seconds().zip(processor).map(|(now, before)| format!("{:.0}", (now - before) * 1e9));
    let placement = outcome.best.expect("there is no capacity");
    elbowroom_pack::validate(problem, &placement).expect("the placement is legal");
    println!(
        r#"{{"buffers": {}, "peak_live_bytes": {}, "arena_bytes": {}, "fragmentation": {}, "packing_ns": {}, "processor_ns": {}}}"#,
        problem.blocks.len(),
        peak.get(),
        placement.height.get(),
        placement.height.ratio(peak) - 1.0,
        wall.as_nanos(),
        processor.as_deref().unwrap_or("null")
    );
}

/// The number of buffers of the problem of a seed.
fn length(seed: u64) -> usize {
    150 + (seed as usize).wrapping_mul(77) % 301
}

fn solve(generate: Generator, seeds: &[u64], packer: &[u64], seconds: u64, threads: usize) {
    let mut times: Vec<f64> = Vec::new();
    let mut unsolved = 0;
    for &seed in seeds {
        let problem = generate(length(seed), seed);
        for &packer in packer {
            let budget = Budget { threads, seed: packer, ..Budget::time(Duration::from_secs(seconds)) };
            let start = Instant::now();
            let outcome = elbowroom_pack::Auto.pack(&problem, &budget, &Silent);
            let took = start.elapsed().as_secs_f64();
            let height = outcome.best.map_or(Bytes::MAX, |Placement { height, .. }| height);
            let solved = outcome.stop == StopReason::Optimal && height == OPTIMUM;
            unsolved += usize::from(!solved);
            times.push(if solved { took } else { f64::INFINITY });
            println!(
                "seed {seed}, packer's {packer}: {} buffers, {took:.3} s, {} evaluations, {:+.3} %",
                problem.blocks.len(),
                outcome.evaluations,
                100.0 * (height.ratio(OPTIMUM) - 1.0)
            );
        }
    }
    times.sort_by(f64::total_cmp);
    let percentile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    if !times.is_empty() {
        println!(
            "median {:.3} s, 90 % {:.3} s, 99 % {:.3} s, {unsolved} of {} not solved in {seconds} s",
            percentile(0.5),
            percentile(0.9),
            percentile(0.99),
            times.len()
        );
    }
}
