//! Trains a translator under a limit for a thousand iterations. The lengths of sentences change with every batch; a structure gets a plan
//! when it recurs. Shows that memory stays constant and that new plans become rare.
//!
//! `cargo run --release -p elbowroom --example thousand -- [--iterations 1000] [--memory 50%] [--batch 16] [--width 32] [--layers 1]
//! [--longest 50] [--verify yes]`
//!
//! A line sums up the iterations since the line before. `resident` is what the process holds in memory at that moment, by
//! `/proc/self/status`: arena, host tier, all plans, code. The exit status is 1 if an iteration went over the limit, if the measured peak
//! is not the predicted one, or if the unlimited run differs.

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use elbowroom::graph::zoo::Options;
use elbowroom::ir::Bytes;
use elbowroom::ir::search::{Budget, Observer};
use elbowroom::network::Model;
use elbowroom::pipeline::Method;
use elbowroom::size::MemorySpec;
use elbowroom::train::{Iteration, TrainObserver, Training};
use elbowroom::{registry, resident};

/// Where lines are printed; every hundred iterations after the last of them.
const EARLY: [u64; 4] = [10, 20, 50, 100];

struct Settings {
    iterations: u64,
    memory: MemorySpec,
    batch: usize,
    width: usize,
    layers: usize,
    longest: usize,
    verify: bool,
}

fn settings() -> Result<Settings, Box<dyn Error>> {
    let mut settings = Settings {
        iterations: 1000,
        memory: "50%".parse()?,
        batch: 16,
        width: 32,
        layers: 1,
        longest: 50,
        verify: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--iterations" => settings.iterations = value.parse()?,
            "--memory" => settings.memory = value.parse()?,
            "--batch" => settings.batch = value.parse()?,
            "--width" => settings.width = value.parse()?,
            "--layers" => settings.layers = value.parse()?,
            "--longest" => settings.longest = value.parse()?,
            "--verify" => settings.verify = value == "yes",
            _ => return Err(format!("there is no option {word}").into()),
        }
    }
    Ok(settings)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("thousand: {why}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, Box<dyn Error>> {
    let settings = settings()?;
    let options = Options::new(settings.batch).width(settings.width).layers(settings.layers);
    let method = Method::new(
        registry::planner(registry::DEFAULT_PLANNER)?,
        registry::packer(registry::DEFAULT_PACKER)?,
        Budget::default(),
    );
    let training = Training::new(Model::new("seq2seq", options)?.longest(settings.longest)?, settings.memory)
        .method(method.at_once())
        .iterations(settings.iterations)
        .threads(1)
        .verify(settings.verify);
    let curve = Curve::default();
    let report = training.run_observed(&curve)?;
    let execution = report.execution;
    println!(
        "unconstrained peak of the longest {} bytes, limit {}; predicted peak {} bytes, measured {}; dynamic execution at most {}",
        report.plan.unconstrained_peak_bytes.get(),
        report.plan.limit_bytes.get(),
        report.plan.predicted_peak_bytes.get(),
        report.measured_peak_bytes.get(),
        execution.dynamic_peak_bytes.get(),
    );
    println!(
        "{} planned iterations, {} dynamic; {} structures, {} plans; {} moved between plans",
        execution.planned_iterations,
        execution.dynamic_iterations,
        execution.structures,
        execution.plans_made,
        execution.switch_moved_bytes,
    );
    if let Some(equal) = report.verified {
        let equal = if equal { "equal to" } else { "NOT equal to" };
        println!("losses and all parameters {equal} the unlimited run's, to the bit");
    }
    let most = report.measured_peak_bytes.max(execution.dynamic_peak_bytes);
    Ok(most <= report.plan.limit_bytes
        && report.measured_peak_bytes == report.plan.predicted_peak_bytes
        && report.arena_above_intact
        && report.verified != Some(false))
}

fn mebibytes(bytes: Bytes) -> f64 {
    bytes.get() as f64 / f64::from(1 << 20)
}

/// Prints the curve as it becomes known.
#[derive(Default)]
struct Curve {
    now: Mutex<Stretch>,
}

/// The iterations since the last line.
#[derive(Default)]
struct Stretch {
    /// Whether the limited run is over: what follows is the unlimited one.
    over: bool,
    begun: Option<Instant>,
    done: u64,
    planned: u64,
    on_demand: u64,
    /// Traces and plans at the last line.
    before: [u64; 2],
    losses: Vec<f32>,
    peak: Bytes,
}

impl Observer for Curve {}

impl TrainObserver for Curve {
    fn stage(&self, _what: &str) {}

    fn begin(&self, _iterations: u64) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.begun.replace(Instant::now()).is_some() {
            now.over = true;
            return;
        }
        println!(
            "{:>10}{:>9}{:>11}{:>12}{:>11}{:>11}{:>13}{:>9}{:>14}{:>8}",
            "iteration",
            "planned",
            "dynamic",
            "new traces",
            "new plans",
            "plans",
            "peak MiB",
            "limit %",
            "resident MiB",
            "loss"
        );
    }

    fn iteration(&self, done: &Iteration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.over {
            return;
        }
        now.done += 1;
        now.planned += u64::from(done.planned);
        now.on_demand += u64::from(!done.planned);
        now.peak = now.peak.max(done.peak);
        now.losses.extend(done.loss);
        let last = EARLY[EARLY.len() - 1];
        if !(EARLY.contains(&now.done) || now.done > last && now.done.is_multiple_of(last)) {
            return;
        }
        let loss = now.losses.iter().sum::<f32>() / now.losses.len().max(1) as f32;
        println!(
            "{:>10}{:>9}{:>11}{:>12}{:>11}{:>11}{:>13.3}{:>9.1}{:>14.1}{:>8.3}",
            now.done,
            now.planned,
            now.on_demand,
            done.structures - now.before[0],
            done.plans - now.before[1],
            done.plans,
            mebibytes(now.peak),
            100.0 * now.peak.get() as f64 / done.limit.get() as f64,
            resident::now().map_or(f64::NAN, mebibytes),
            loss,
        );
        let (done_so_far, before) = (now.done, [done.structures, done.plans]);
        *now = Stretch { begun: now.begun, done: done_so_far, before, ..Stretch::default() };
    }
}
