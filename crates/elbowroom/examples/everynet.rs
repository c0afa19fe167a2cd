//! Every network of the zoo, trained under max(a share of its natural peak, 1.05 × the smallest limit that a plan is found for), with the
//! same iterations without a limit beside it, compared to the bit.
//!
//! `cargo run --release -p elbowroom --example everynet -- [--share 50] [--factor 1.05] [--iterations N] [--threads N] [--time SECONDS]
//! [--planner NAME] [--data FOLDER] [--only NAME,PART-OF-A-NAME,…]`
//!
//! Beside the smallest limit stands the bound from the largest single op, whose operands, results and workspace must be resident together.
//! Sizes stand in the table below: small enough to train on two cores, large enough that activations outweigh parameters. One line per
//! network; the exit status is 1 if any of them failed. `--data` is given to the networks for CIFAR's image size.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elbowroom::engine::{self, HostOptions};
use elbowroom::graph::zoo::{self, OptimizerKind, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::machine::Machine;
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Observer};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::report::TrainReport;
use elbowroom::sim::cost::Roofline;
use elbowroom::size::MemorySpec;
use elbowroom::train::{Iteration, TrainObserver, Training, train};
use elbowroom::{registry, sim};

/// One network at one size. Zero stands for the network's own default.
struct Row {
    model: &'static str,
    batch: usize,
    image: usize,
    length: usize,
    /// Where the default optimizer needs a long training to show a falling loss: another one with its step size, and how many times the
    /// iterations.
    slow: Option<(OptimizerKind, f32, u64)>,
}

const fn row(model: &'static str, batch: usize, image: usize, length: usize) -> Row {
    Row { model, batch, image, length, slow: None }
}

/// A network without normalization, which learns nothing for a while.
const fn plain(model: &'static str, batch: usize, image: usize) -> Row {
    Row { slow: Some((OptimizerKind::Adam, 3e-4, 5)), ..row(model, batch, image, 0) }
}

/// A deep network, which the default step size throws far off before it learns.
const fn deep(model: &'static str, batch: usize, image: usize) -> Row {
    Row { slow: Some((OptimizerKind::Adam, 3e-4, 1)), ..row(model, batch, image, 0) }
}

/// The table of networks and batch sizes.
const NETWORKS: &[Row] = &[
    plain("alexnet", 16, 67),
    plain("vgg11", 64, 32),
    plain("vgg13", 64, 32),
    plain("vgg16", 64, 32),
    plain("vgg19", 64, 32),
    row("googlenet", 16, 64, 0),
    row("inception-v3", 8, 96, 0),
    row("inception-resnet-v2", 4, 96, 0),
    row("resnet18", 64, 32, 0),
    row("resnet34", 32, 32, 0),
    deep("resnet50", 16, 32),
    deep("resnet101", 12, 32),
    deep("resnet152", 8, 32),
    row("resnet110", 32, 32, 0),
    row("densenet121", 8, 32, 0),
    row("densenet161", 8, 32, 0),
    row("densenet169", 8, 32, 0),
    row("densenet201", 8, 32, 0),
    row("unet", 2, 64, 0),
    row("stochastic-resnet18", 64, 32, 0),
    row("lstm", 64, 0, 35),
    row("seq2seq", 64, 0, 12),
    row("gpt", 16, 0, 128),
    row("kmeans", 20_000, 0, 0),
];

struct Settings {
    share: f64,
    factor: f64,
    iterations: u64,
    threads: usize,
    time: f64,
    planner: String,
    data: Option<PathBuf>,
    only: Option<String>,
}

fn main() -> ExitCode {
    let settings = match settings() {
        Ok(settings) => settings,
        Err(why) => {
            eprintln!("everynet: {why}");
            return ExitCode::from(2);
        }
    };
    println!(
        "{:<21}{:>6}{:>10}{:>8}{:>8}{:>8}{:>10}{:>10}{:>8}{:>9}{:>19}{:>7}{:>7}",
        "network",
        "batch",
        "natural",
        "op %",
        "min %",
        "limit %",
        "peak MiB",
        "to host",
        "recomp.",
        "overhead",
        "loss",
        "equal",
        "s"
    );
    let mut failed = 0;
    let chosen = |row: &&Row| {
        let named = |part: &str| {
            let whole = NETWORKS.iter().any(|other| other.model == part);
            row.model == part || !whole && row.model.contains(part)
        };
        settings.only.as_deref().is_none_or(|only| only.split(',').any(named))
    };
    for row in NETWORKS.iter().filter(chosen) {
        let started = Instant::now();
        match run(row, &settings) {
            Ok((smallest, report)) => failed += usize::from(!tell(row, smallest, &report, started)),
            Err(why) => {
                println!("{:<21}{:>6}  {why}", row.model, row.batch);
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn settings() -> Result<Settings, String> {
    let mut settings = Settings {
        share: 0.5,
        factor: 1.05,
        iterations: 8,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        time: 2.0,
        planner: registry::DEFAULT_PLANNER.to_owned(),
        data: None,
        only: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        let number = || value.parse::<f64>().map_err(|_| format!("{word} wants a number, not `{value}`"));
        match word.as_str() {
            "--share" => settings.share = number()? / 100.0,
            "--factor" => settings.factor = number()?,
            "--iterations" => settings.iterations = number()? as u64,
            "--threads" => settings.threads = number()? as usize,
            "--time" => settings.time = number()?,
            "--planner" => settings.planner = value,
            "--data" => settings.data = Some(PathBuf::from(value)),
            "--only" => settings.only = Some(value),
            _ => return Err(format!("there is no option {word}")),
        }
    }
    Ok(settings)
}

/// Trains one network, and returns the smallest limit with the report.
fn run(row: &Row, settings: &Settings) -> Result<(Bytes, TrainReport), String> {
    let given = |size: usize| (size > 0).then_some(size);
    let options = Options {
        image: given(row.image),
        length: given(row.length),
        optimizer: row.slow.map(|(optimizer, ..)| optimizer),
        learning_rate: row.slow.map(|(_, rate, _)| rate),
        ..Options::new(row.batch)
    };
    let graph = zoo::build(row.model, &options).map_err(|error| error.to_string())?;
    let machine = sim::presets::machine("cpu").ok_or("the preset cpu exists")?;
    let method = Method::new(
        registry::scheduler(&settings.planner).map_err(|error| error.to_string())?,
        registry::packer(registry::DEFAULT_PACKER).map_err(|error| error.to_string())?,
        Budget { threads: settings.threads, ..Budget::time(Duration::from_secs_f64(settings.time.max(0.0))) },
    );
    let (natural, smallest) = bounds(&graph, &machine, &method)?;
    let limit = (natural.get() as f64 * settings.share).max(smallest.get() as f64 * settings.factor);
    let training = Training {
        graph: Arc::new(graph),
        memory: MemorySpec::Absolute(Bytes(limit as u64)),
        machine,
        method,
        freedom: Freedom::ALL,
        iterations: settings.iterations.max(1) * row.slow.map_or(1, |(.., times)| times),
        data: settings.data.clone().filter(|_| row.image == 32),
        host: HostOptions::default(),
        seed: 0,
        threads: settings.threads.max(1),
        verify: true,
        save: None,
        resume: None,
        changing: None,
        reactive: false,
    };
    let report = train(&training, &Silent).map_err(|error| error.to_string())?;
    Ok((smallest, report))
}

/// The natural peak, and the smallest limit for which a plan is found, by estimated durations.
fn bounds(
    graph: &elbowroom::graph::Graph,
    machine: &Machine,
    method: &Method<'_>,
) -> Result<(Bytes, Bytes), String> {
    let trace = engine::trace(graph).map_err(|error| error.to_string())?;
    let costs = Costs::estimate(&trace, &Roofline::new(machine));
    let task = Task { trace: Arc::new(trace), costs, machine: machine.clone(), freedom: Freedom::ALL };
    let natural =
        pipeline::natural(&task, method.packer, &Silent).map_err(|error| error.to_string())?.height();
    let planned = pipeline::smallest(&task, &method.at_once(), natural.align_up(machine.align), &Silent)
        .map_err(|error| error.to_string())?;
    Ok((natural, planned.plan.machine().memory))
}

/// Prints the line of a network, and says whether everything held.
fn tell(row: &Row, smallest: Bytes, report: &TrainReport, started: Instant) -> bool {
    let plan = &report.plan;
    let natural = plan.natural_peak_bytes.get() as f64;
    let mebi = |bytes: Bytes| bytes.get() as f64 / f64::from(1 << 20);
    let exact = report.measured_peak_bytes == plan.predicted_peak_bytes
        && report.measured_peak_bytes <= plan.limit_bytes
        && report.arena_above_intact;
    // Nothing can run in less than the operands, results and workspace of its largest op.
    let possible = smallest >= plan.largest_op_bytes;
    let equal = report.verified == Some(true);
    // The mean of the last iterations, for single batches differ.
    let first = report.losses.first().copied().unwrap_or(f32::NAN);
    let tail = &report.losses[report.losses.len() - report.losses.len().div_ceil(3)..];
    let last = tail.iter().sum::<f32>() / tail.len() as f32;
    let falls = report.losses.len() < 2 || last < first;
    println!(
        "{:<21}{:>6}{:>10.1}{:>8.1}{:>8.1}{:>8.1}{:>10.1}{:>10.1}{:>8}{:>8.1}%{:>10.4} > {:<6.4}{:>7}{:>7.0}{}{}{}",
        row.model,
        row.batch,
        mebi(plan.natural_peak_bytes),
        100.0 * plan.largest_op_bytes.get() as f64 / natural,
        100.0 * smallest.get() as f64 / natural,
        100.0 * plan.limit_bytes.get() as f64 / natural,
        mebi(report.measured_peak_bytes),
        mebi(report.measured_to_host_bytes),
        report.measured_recomputed_ops,
        100.0 * report.measured_overhead,
        first,
        last,
        if equal { "yes" } else { "NO" },
        started.elapsed().as_secs_f64(),
        if exact { "" } else { "  measured peak NOT as predicted" },
        if possible { "" } else { "  min is LESS than the largest op needs" },
        if falls { "" } else { "  loss does NOT fall" },
    );
    exact && possible && equal && falls
}

/// Says nothing on the way.
struct Silent;

impl Observer for Silent {}

impl TrainObserver for Silent {
    fn stage(&self, _what: &str) {}
    fn begin(&self, _iterations: u64) {}
    fn iteration(&self, _done: &Iteration) {}
}
