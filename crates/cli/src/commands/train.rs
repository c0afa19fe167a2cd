//! `elbowroom train`: the whole road.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use elbowroom::engine::{HostOptions, HostPlace};
use elbowroom::graph::op::Algorithm;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::machine::Channel;
use elbowroom::largest::{LargestError, largest};
use elbowroom::report::{Conduct, TrainReport};
use elbowroom::size::BatchSpec;
use elbowroom::train::changing::{Changing, Varying, longest_sentence};
use elbowroom::train::{Saving, TrainError, TrainObserver, Training};
use elbowroom::{algorithms, plot, resident, sim, train};
use serde::Serialize;

use crate::Answer;
use crate::args::TrainArgs;
use crate::commands::plan;
use crate::commands::trace;
use crate::progress::{self, Progress};
use crate::{files, printer, settings};

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<Answer> {
    args.plot.as_deref().map_or(Ok(()), files::expect_writable)?;
    let threads = settings::threads(&args.planner.search);
    let mut machine = sim::presets::machine("cpu").context("the preset cpu exists")?;
    let link = args.host_rate.map(|rate| (Channel::with_rate(rate.0), Channel::with_rate(rate.0)));
    if let Some((to_host, to_device)) = link {
        (machine.to_host, machine.to_device) = (to_host, to_device);
    }
    machine.host_memory = args.host_memory.unwrap_or(machine.host_memory);
    let place = match args.host.as_str() {
        "memory" => HostPlace::Memory,
        folder => HostPlace::Folder(PathBuf::from(folder)),
    };
    let batch = match args.network.batch {
        BatchSpec::Samples(samples) => samples as usize,
        BatchSpec::Largest => 1,
    };
    let longest = longest(args)?;
    let options = |batch| options(args, longest, batch);
    let build = |batch| zoo::build(&args.network.model, &options(batch));
    let mut training = Training {
        graph: Arc::new(build(batch)?),
        memory: args.memory,
        machine,
        method: settings::method(&args.planner)?,
        freedom: settings::freedom(&args.planner.freedom),
        iterations: args.iterations,
        data: args.data.clone(),
        host: HostOptions { place, link },
        seed: args.planner.search.seed,
        threads,
        verify: args.verify,
        save: args.save.clone().map(|path| Saving { path, every: args.save_every }),
        resume: args.resume.clone(),
        changing: None,
        reactive: args.reactive,
    };
    progress::heed_ctrl_c();
    let observer = Progress::new("");
    if args.network.batch == BatchSpec::Largest {
        observer.stage("looking for the largest batch");
        training.graph = match largest(&training, &build, &observer) {
            Ok(graph) => graph,
            Err(error @ LargestError::None(_)) => return Ok(Answer::No(error.to_string())),
            Err(error) => return Err(error.into()),
        };
    }
    let batch = train::samples(&training.graph);
    let seed = args.planner.search.seed;
    let varying = Varying { samples: args.samples, lengths: longest.is_some() };
    let changing = Changing::new(&args.network.model, &options(batch), varying, seed);
    training.changing = changing.as_ref();
    let mut natural = None;
    if changing.is_none() {
        let choice = algorithms::choose(&training, args.allow_other_bits, &observer)?;
        (training.graph, training.memory, natural) = (choice.graph, choice.memory, choice.natural);
    } else if args.allow_other_bits {
        bail!("--allow-other-bits is for networks whose structure stays: every form would choose for itself");
    }
    let outcome = train::train_after(&training, natural, &observer);
    drop(observer);
    let report = match outcome {
        Ok(report) => report,
        Err(TrainError::Refused(refusal)) => {
            if args.json {
                printer::json(&refusal)?;
            }
            return Ok(Answer::No(refusal.sentence()));
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(path) = &args.plot {
        let title = format!("{} under {}", report.plan.trace, report.plan.limit_bytes);
        files::write(Some(path), &plot::losses(&title, report.first_iteration, &report.losses))?;
    }
    let trained = Trained { report, peak_resident_bytes: resident::most() };
    if args.json {
        printer::json(&trained)?
    } else {
        print(&trained)?
    };
    Ok(match trained.report.verified {
        Some(false) => {
            Answer::No("the limited run differs from the unlimited one, which is a fault in elbowroom".into())
        }
        _ => Answer::Yes,
    })
}

/// Words of the longest sentence, where the batches of a network have the lengths of their sentences.
fn longest(args: &TrainArgs) -> Result<Option<usize>> {
    let network = &args.network;
    let usual = longest_sentence(&network.model, trace::options(network, 1).mode);
    match (args.longest, usual) {
        (Some(_), None) => {
            bail!("{} takes no sentences, so it has no --longest; use --length", network.model)
        }
        (Some(words), _) => Ok(Some(words as usize)),
        (None, usual) => Ok(usual.filter(|_| network.length.is_none())),
    }
}

/// What the user chose about the network in its largest form, for batches of this size.
fn options(args: &TrainArgs, longest: Option<usize>, batch: usize) -> Options {
    let chosen = trace::options(&args.network, batch);
    Options { length: longest.or(chosen.length), target: longest, ..chosen }
}

/// The report of the library, with what only the process knows.
#[derive(Serialize)]
struct Trained {
    #[serde(flatten)]
    report: TrainReport,
    /// Most bytes of memory that the whole process has had resident, code and kernels' threads included; `null` where the system does
    /// not say. An unlimited run made for comparison counts as well.
    peak_resident_bytes: Option<Bytes>,
}

/// How many iterations ran by plans, and by how many.
fn ran(conduct: &Conduct) -> String {
    let Conduct { planned_iterations, reactive_iterations, traces, replans, switch_moved_bytes, .. } =
        conduct;
    let counted = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!(
        "{planned_iterations} by plan, {reactive_iterations} on demand; {}, {}; {switch_moved_bytes} moved between plans",
        counted(*traces, "trace"),
        counted(*replans, "plan"),
    )
}

/// What the iterations without a plan took.
fn on_demand(conduct: &Conduct) -> String {
    let time = conduct.reactive_iteration_ns.unwrap_or_default();
    format!(
        "{time} each, peak {}; {} dropped, {} sent to the host, {} ops recomputed, {} compactions of {}",
        conduct.reactive_peak_bytes,
        conduct.reactive_dropped,
        conduct.reactive_offloaded,
        conduct.reactive_recomputed_ops,
        conduct.compactions,
        conduct.compacted_bytes,
    )
}

fn print(Trained { report, peak_resident_bytes }: &Trained) -> Result<()> {
    let losses = report.losses.iter().enumerate();
    let rows = losses.map(|(i, loss)| {
        (format!("iteration {}", report.first_iteration + i as u64), format!("loss {loss:.6}"))
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        printer::pairs(rows.iter().map(|(name, value)| (name.as_str(), value.clone())))?;
        printer::blank()?;
    }
    plan::print(&report.plan)?;
    printer::blank()?;
    let peak = report.measured_peak_bytes;
    let conduct = &report.conduct;
    let exact = if conduct.planned_iterations == 0 {
        "without a plan"
    } else if peak == report.plan.predicted_peak_bytes {
        "as predicted, to the byte"
    } else {
        "not as predicted"
    };
    let above =
        if report.arena_above_intact { "nothing written above it" } else { "bytes above it were written" };
    let against = match report.measured_unlimited_iteration_ns {
        Some(time) => format!("{} against {time} unlimited", printer::percent(report.measured_overhead)),
        None => format!("{} against the sum of its op times", printer::percent(report.measured_overhead)),
    };
    let mut rows = vec![
        ("measured peak", format!("{peak} ({} bytes): {exact}, {above}", peak.get())),
        ("measured iteration", format!("{} ({against})", report.measured_iteration_ns)),
        ("throughput", format!("{:.1} samples/s in batches of {}", report.samples_per_second, report.batch)),
        (
            "measured traffic",
            format!(
                "{} to the host ({}), {} back",
                report.measured_to_host_bytes, report.host, report.measured_to_device_bytes
            ),
        ),
        (
            "host tier",
            format!(
                "{:.2} GB/s there, {:.2} GB/s back, when training began",
                report.to_host_rate as f64 / 1e9,
                report.to_device_rate as f64 / 1e9
            ),
        ),
        ("recomputed", format!("{} ops in each iteration", report.measured_recomputed_ops)),
        ("threads", report.threads.to_string()),
        ("iterations", ran(conduct)),
    ];
    // Where all are computed in the usual way there is nothing to say.
    if report.algorithms.keys().any(|&algorithm| algorithm != Algorithm::default().name()) {
        let counts = report.algorithms.iter().map(|(name, count)| format!("{count} {name}"));
        rows.push(("algorithms", counts.collect::<Vec<_>>().join(", ")));
    }
    if conduct.reactive_iterations > 0 {
        rows.push(("on demand", on_demand(conduct)));
    }
    if let Some(bytes) = peak_resident_bytes {
        rows.push(("process", format!("{bytes} resident at most")));
    }
    if let Some(verified) = report.verified {
        let results = if report.losses.is_empty() { "results" } else { "losses and all parameters" };
        let equal = format!("{results} equal the unlimited run's, to the bit");
        rows.push(("verified", if verified { equal } else { "NOT equal to the unlimited run".to_owned() }));
    }
    printer::pairs(rows)?;
    Ok(())
}
