//! Trains every network of the zoo under max(a share of its unconstrained peak, 1.05 × the smallest limit for which a plan is found), runs
//! the same iterations without a limit, and compares both bit by bit.
//!
//! `cargo run --release -p elbowroom --example everynet -- [--share 50] [--factor 1.05] [--iterations N] [--threads N] [--time SECONDS]
//! [--planner NAME] [--data FOLDER] [--only NAME,PART-OF-A-NAME,…]`
//!
//! The column before the smallest limit is the lower bound from the largest single op, whose operands, results and workspace must be resident
//! together. The table below contains sizes, learning rates and the factor on `--iterations` of each network: small enough to train on two
//! cores, large enough that activations outweigh parameters. One line per network; the exit status is 1 if any of them failed, or did not learn:
//! the mean loss of the last third of the iterations must be below that of the first. `--data` applies to the networks for CIFAR's image size,
//! and `--only resnetN` runs a ResNet of any depth.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::graph::zoo::{OptimizerKind, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::machine::Machine;
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::network::{Model, Network};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::report::TrainReport;
use elbowroom::train::Training;
use elbowroom::{registry, sim};

/// One network at one size. Zero stands for the network's own default.
#[derive(Clone, Copy)]
struct Row<'a> {
    model: &'a str,
    batch: usize,
    image: usize,
    length: usize,
    /// Where the default optimizer does not show a falling loss within few iterations: Adam's learning rate, and the factor on the iterations.
    adam: Option<(f32, u64)>,
}

const fn row(model: &'static str, batch: usize, image: usize, length: usize) -> Row<'static> {
    Row { model, batch, image, length, adam: None }
}

/// A network without normalization, which learns nothing for a while.
const fn plain(model: &'static str, batch: usize, image: usize, times: u64) -> Row<'static> {
    Row { adam: Some((3e-4, times)), ..row(model, batch, image, 0) }
}

/// A deep network on small batches, on which the loss rises with the default learning rate before it falls.
const fn deep(model: &'static str, batch: usize, image: usize) -> Row<'static> {
    Row { adam: Some((3e-4, 2)), ..row(model, batch, image, 0) }
}

/// A network whose last maps have few pixels at this size, with dropout on them: single losses differ widely.
const fn wide(model: &'static str, batch: usize, image: usize, times: u64) -> Row<'static> {
    Row { adam: Some((1e-3, times)), ..row(model, batch, image, 0) }
}

/// The table of networks and batch sizes.
const NETWORKS: &[Row<'static>] = &[
    plain("alexnet", 16, 67, 5),
    plain("vgg11", 64, 32, 5),
    plain("vgg13", 64, 32, 5),
    plain("vgg16", 64, 32, 8),
    plain("vgg19", 64, 32, 8),
    row("googlenet", 16, 64, 0),
    wide("inception-v3", 8, 96, 10),
    wide("inception-resnet-v2", 4, 96, 5),
    row("resnet18", 64, 32, 0),
    deep("resnet34", 32, 32),
    deep("resnet50", 16, 32),
    deep("resnet101", 12, 32),
    deep("resnet152", 8, 32),
    deep("resnet110", 32, 32),
    deep("densenet121", 8, 32),
    deep("densenet161", 8, 32),
    deep("densenet169", 8, 32),
    deep("densenet201", 8, 32),
    row("unet", 2, 64, 0),
    Row { adam: Some((3e-4, 4)), ..row("stochastic-resnet18", 64, 32, 0) },
    row("lstm", 64, 0, 35),
    row("seq2seq", 64, 0, 12),
    row("gpt", 16, 0, 128),
    row("kmeans", 20_000, 0, 0),
];

/// A ResNet of any other depth (`--only resnetN`) at the size of CIFAR: deep enough that small batches fill the memory.
const ANY_DEPTH: Row<'static> = deep("", 4, 32);

/// Classes of every network of images: as many as CIFAR has, because a thousand classes would not repeat within a few small batches.
const CLASSES: usize = 10;

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
        "{:<21}{:>6}{:>6}{:>10}{:>8}{:>8}{:>8}{:>10}{:>10}{:>8}{:>9}{:>19}{:>7}{:>7}",
        "network",
        "batch",
        "times",
        "full MiB",
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
    for row in &chosen(settings.only.as_deref()) {
        let started = Instant::now();
        match run(row, &settings) {
            Ok((smallest, report)) => failed += usize::from(!print_row(row, smallest, &report, started)),
            Err(why) => {
                println!("{:<21}{:>6}  {why}", row.model, row.batch);
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// The rows to be run: all, or those that are named as a whole or in part, and ResNets of depths that are not in the table.
fn chosen(only: Option<&str>) -> Vec<Row<'_>> {
    let Some(only) = only else { return NETWORKS.to_vec() };
    let named = |name| {
        let whole: Vec<Row<'_>> = NETWORKS.iter().filter(|row| row.model == name).copied().collect();
        if !whole.is_empty() {
            return whole;
        }
        let parts: Vec<Row<'_>> = NETWORKS.iter().filter(|row| row.model.contains(name)).copied().collect();
        if parts.is_empty() { vec![Row { model: name, ..ANY_DEPTH }] } else { parts }
    };
    only.split(',').flat_map(named).collect()
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
fn run(row: &Row<'_>, settings: &Settings) -> Result<(Bytes, TrainReport), String> {
    let given = |size: usize| (size > 0).then_some(size);
    let options = Options::new(row.batch)
        .image(given(row.image))
        .length(given(row.length))
        .classes((row.image > 0).then_some(CLASSES))
        .optimizer(row.adam.map(|_| OptimizerKind::Adam))
        .learning_rate(row.adam.map(|(rate, _)| rate));
    let model = Model::new(row.model, options).map_err(|error| error.to_string())?;
    let graph = model.largest().map_err(|error| error.to_string())?;
    let machine = sim::presets::machine("cpu").ok_or("the preset cpu exists")?;
    let method = Method::new(
        registry::planner(&settings.planner).map_err(|error| error.to_string())?,
        registry::packer(registry::DEFAULT_PACKER).map_err(|error| error.to_string())?,
        Budget { threads: settings.threads, ..Budget::time(Duration::from_secs_f64(settings.time.max(0.0))) },
    );
    let (unconstrained, smallest) = bounds(&graph, &machine, &method)?;
    let limit = (unconstrained.get() as f64 * settings.share).max(smallest.get() as f64 * settings.factor);
    let mut training = Training::new(model, Bytes(limit as u64))
        .method(method)
        .algorithms(AlgorithmChoice::AsBuilt)
        .iterations(settings.iterations.max(1) * row.adam.map_or(1, |(_, times)| times))
        .threads(settings.threads)
        .verify(true);
    if let Some(data) = settings.data.clone().filter(|_| row.image == 32) {
        training = training.data_path(data);
    }
    let report = training.run().map_err(|error| error.to_string())?;
    Ok((smallest, report))
}

/// The unconstrained peak, and the smallest limit for which a plan is found, by estimated durations.
fn bounds(
    graph: &elbowroom::graph::Graph,
    machine: &Machine,
    method: &Method<'_>,
) -> Result<(Bytes, Bytes), String> {
    let task = Task::estimate(graph, machine, Freedom::ALL).map_err(|error| error.to_string())?;
    let unconstrained =
        pipeline::unconstrained(&task, method.packer, &Silent).map_err(|error| error.to_string())?.height();
    let planned =
        pipeline::smallest(&task, &method.at_once(), unconstrained.align_up(machine.align), &Silent)
            .map_err(|error| error.to_string())?;
    Ok((unconstrained, planned.plan.machine().memory))
}

/// Prints the line of a network; returns whether every check passed.
fn print_row(row: &Row<'_>, smallest: Bytes, report: &TrainReport, started: Instant) -> bool {
    let plan = &report.plan;
    let unconstrained = plan.unconstrained_peak_bytes.get() as f64;
    let mebi = |bytes: Bytes| bytes.get() as f64 / f64::from(1 << 20);
    let execution = &report.execution;
    // Structures that do not recur run without a plan: under the limit, but without a predicted peak.
    let promised =
        execution.planned_iterations == 0 || report.measured_peak_bytes == plan.predicted_peak_bytes;
    let exact = promised
        && report.measured_peak_bytes.max(execution.dynamic_peak_bytes) <= plan.limit_bytes
        && report.arena_above_intact;
    // No plan can need less than the operands, results and workspace of the largest op.
    let possible = smallest >= plan.largest_op_bytes;
    let equal = report.verified == Some(true);
    // Compares the means of the first and last third, because single batches differ.
    let third = report.losses.len().div_ceil(3);
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    let first = mean(&report.losses[..third]);
    let last = mean(&report.losses[report.losses.len() - third..]);
    let falls = report.losses.len() < 2 || last < first;
    println!(
        "{:<21}{:>6}{:>6}{:>10.1}{:>8.1}{:>8.1}{:>8.1}{:>10.1}{:>10.1}{:>8}{:>8.1}%{:>10.4} > {:<6.4}{:>7}{:>7.0}{}{}{}",
        row.model,
        row.batch,
        report.losses.len(),
        mebi(plan.unconstrained_peak_bytes),
        100.0 * plan.largest_op_bytes.get() as f64 / unconstrained,
        100.0 * smallest.get() as f64 / unconstrained,
        100.0 * plan.limit_bytes.get() as f64 / unconstrained,
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
