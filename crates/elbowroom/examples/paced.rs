//! Measured against simulated iteration time where the link is slow: one thread computes, and the host tier is held to a small part of
//! what the machine copies at.
//!
//! `cargo run --release -p elbowroom --example paced -- [--turns 10] [--fraction 20] [--only PART-OF-A-NAME]`
//!
//! `--fraction` is the part of memcpy's rate that the link has, 20 for a twentieth. Both sides run in turns, one iteration each: the
//! unlimited plan, whose op times are the measured compute times, and the plan under the limit. *Simulated* is the prediction of the simulator for
//! the limited plan with the medians of these op times and the named rate; *by its own ops* takes the op times of the limited run
//! instead. The exit status is 1 if results or peaks differ from the prediction; times are shown, not judged.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use elbowroom::data::{Feed, Samples};
use elbowroom::engine::{self, HostOptions, HostPlace, MeasuredCosts, Session, SessionOptions};
use elbowroom::graph::Graph;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::check::CheckedPlan;
use elbowroom::ir::machine::{Channel, Machine};
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::ir::{Bytes, Nanos, units};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

type Failure = Box<dyn std::error::Error>;

/// Networks with their batches.
const NETWORKS: [(&str, usize); 6] =
    [("resnet18", 16), ("vgg16", 16), ("densenet121", 4), ("unet", 1), ("lstm", 32), ("gpt", 4)];
/// Planners, each at a share of the unconstrained peak, in percent, or at the smallest limit that works for it where that is higher.
const PLANS: [(&str, u64); 5] = [("greedy", 80), ("dynprog", 70), ("swdoa", 60), ("bo", 50), ("auto", 40)];

struct Settings {
    turns: usize,
    fraction: u64,
    only: String,
}

fn main() -> ExitCode {
    match settings().and_then(|settings| tell_all(&settings)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            eprintln!("paced: {why}");
            ExitCode::from(2)
        }
    }
}

fn settings() -> Result<Settings, Failure> {
    let mut settings = Settings { turns: 10, fraction: 20, only: String::new() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--turns" => settings.turns = value.parse::<usize>()?.max(1),
            "--fraction" => settings.fraction = value.parse::<u64>()?.max(1),
            "--only" => settings.only = value,
            _ => return Err(format!("there is no option {word}").into()),
        }
    }
    Ok(settings)
}

fn tell_all(settings: &Settings) -> Result<bool, Failure> {
    let memcpy = memcpy();
    let rate = (memcpy / settings.fraction).max(1);
    println!("memcpy {:.2} GB/s, link {:.3} GB/s each way, 1 thread", memcpy as f64 / 1e9, rate as f64 / 1e9);
    println!(
        "{:<12}{:>6}{:>10}{:>8}{:>14}{:>14}{:>14}{:>14}{:>9}{:>15}{:>9}",
        "network",
        "batch",
        "planner",
        "limit",
        "to host",
        "unlimited ms",
        "simulated ms",
        "measured ms",
        "ratio",
        "by its own ops",
        "as told"
    );
    let (mut whole, mut farthest) = (true, 0.0f64);
    for (name, batch) in NETWORKS.into_iter().filter(|(name, _)| name.contains(&settings.only)) {
        let bench = Bench::new(name, batch, rate)?;
        for (planner, percent) in PLANS {
            let line = bench.run(planner, percent, settings.turns)?;
            farthest = farthest.max((line.ratio() - 1.0).abs());
            whole &= line.as_told;
            println!(
                "{name:<12}{batch:>6}{planner:>10}{:>7.1}%{:>14}{:>14.1}{:>14.1}{:>14.1}{:>9.3}{:>15.3}{:>9}",
                100.0 * line.share,
                line.to_host.to_string(),
                milliseconds(line.unlimited),
                milliseconds(line.simulated),
                milliseconds(line.measured),
                line.ratio(),
                line.measured.ratio(line.by_its_own_ops),
                if line.as_told { "yes" } else { "NO" },
            );
        }
    }
    println!("farthest from simulated: {:.1} %", 100.0 * farthest);
    Ok(whole)
}

/// Bytes per second at which memory is copied: the best of a few copies of what no cache holds.
fn memcpy() -> u64 {
    let from = vec![1u8; 256 << 20];
    let mut to = vec![0u8; from.len()];
    let copies = (0..5).map(|_| {
        let started = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        started.elapsed().as_nanos().max(1)
    });
    let shortest = copies.min().unwrap_or(1);
    (from.len() as u128 * 1_000_000_000 / shortest) as u64
}

fn milliseconds(time: Nanos) -> f64 {
    time.get() as f64 / 1e6
}

/// A network with a slow link.
struct Bench {
    graph: Arc<Graph>,
    task: Task,
    unconstrained: Arc<CheckedPlan>,
    inputs: Vec<Vec<u8>>,
    link: Channel,
}

/// What one plan did.
struct Line {
    share: f64,
    to_host: Bytes,
    unlimited: Nanos,
    simulated: Nanos,
    by_its_own_ops: Nanos,
    measured: Nanos,
    /// Whether results, peak and traffic are as promised.
    as_told: bool,
}

impl Line {
    fn ratio(&self) -> f64 {
        self.measured.ratio(self.simulated)
    }
}

impl Bench {
    fn new(name: &str, batch: usize, rate: u64) -> Result<Self, Failure> {
        let graph = Arc::new(zoo::build(name, &Options::new(batch))?);
        let mut feed = Feed::open(&graph, None, 0)?;
        let inputs = feed.read(&graph, &Samples::From(0))?.slots().map(<[u8]>::to_vec).collect();
        let link = Channel::with_rate(rate);
        let cpu = sim::presets::machine("cpu").ok_or("the preset cpu exists")?;
        let machine = Machine { to_host: link, to_device: link, ..cpu };
        let trace = Arc::new(engine::trace(&graph)?);
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let mut task =
            Task { trace, costs, machine, freedom: Freedom { recompute: false, ..Freedom::ALL }, pins: None };
        let packer = registry::packer(registry::DEFAULT_PACKER)?;
        let unconstrained = pipeline::unconstrained(&task, packer, &Silent)?.plan;
        let mut bench = Self { graph, task: task.clone(), unconstrained, inputs, link };
        let mut session = bench.open(&bench.unconstrained, None)?;
        let mut measured = MeasuredCosts::new(&task.trace);
        for iteration in 0..3 {
            session.run_iteration(iteration)?;
            if iteration > 0 {
                measured.add(bench.unconstrained.schedule(), &session.timeline());
            }
        }
        task.costs = measured.median();
        bench.task = task;
        Ok(bench)
    }

    fn open(&self, plan: &Arc<CheckedPlan>, link: Option<(Channel, Channel)>) -> Result<Session, Failure> {
        let host = HostOptions::default().place(HostPlace::Memory).link(link);
        let options = SessionOptions::default().threads(1).host(host);
        let mut session = Session::new(self.graph.clone(), plan.clone(), options)?;
        for (slot, bytes) in self.inputs.iter().enumerate() {
            session.fill_input(slot, |input| input.copy_from_slice(bytes));
        }
        Ok(session)
    }

    /// Plans under a limit with measured op times, and runs that plan in turns with the unlimited one.
    fn run(&self, planner: &str, percent: u64, turns: usize) -> Result<Line, Failure> {
        let height = self.unconstrained.placement().height;
        let method = Method::new(
            registry::planner(planner)?,
            registry::packer(registry::DEFAULT_PACKER)?,
            Budget::evaluations(2_000),
        );
        let limited = self.task.with_memory(Bytes(height.get() * percent / 100));
        let planned = match pipeline::plan(&limited, &method, &Silent) {
            Ok(planned) => planned,
            Err(_) => pipeline::smallest(&self.task, &method, height, &Silent)?,
        };
        let mut free = self.open(&self.unconstrained, None)?;
        let mut tight = self.open(&planned.plan, Some((self.link, self.link)))?;
        let (mut of_free, mut of_tight) =
            (MeasuredCosts::new(&self.task.trace), MeasuredCosts::new(&self.task.trace));
        let (mut unlimited, mut measured) = (Vec::new(), Vec::new());
        let mut as_told = true;
        for turn in 0..=turns as u64 {
            let at_100 = free.run_iteration(turn)?.iteration;
            let report = tight.run_iteration(turn)?;
            as_told &= report.measured_peak == planned.height()
                && tight.timeline().traffic == planned.predicted.traffic
                && free.output(0) == tight.output(0);
            // The first turn pays for fresh pages.
            if turn > 0 {
                of_free.add(self.unconstrained.schedule(), &free.timeline());
                of_tight.add(planned.plan.schedule(), &tight.timeline());
                unlimited.push(at_100);
                measured.push(report.iteration);
            }
        }
        as_told &= free.digests()? == tight.digests()?;
        let predicted = |costs: MeasuredCosts| {
            let costs = costs.median();
            sim::simulate(&self.task.trace, &costs, &self.task.machine, planned.plan.schedule())
        };
        Ok(Line {
            share: planned.plan.machine().memory.ratio(height),
            to_host: planned.predicted.traffic.to_host,
            unlimited: units::median(&mut unlimited).unwrap_or_default(),
            simulated: predicted(of_free)?.iteration,
            by_its_own_ops: predicted(of_tight)?.iteration,
            measured: units::median(&mut measured).unwrap_or_default(),
            as_told,
        })
    }
}
