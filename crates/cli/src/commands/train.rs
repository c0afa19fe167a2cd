//! `elbowroom train`: the whole road.

mod print;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use elbowroom::engine::{HostOptions, HostPlace};
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::machine::Channel;
use elbowroom::largest::{LargestError, largest};
use elbowroom::size::BatchSpec;
use elbowroom::train::changing::{Changing, Varying, longest_sentence};
use elbowroom::train::{Saving, TrainError, TrainObserver, Training};
use elbowroom::{algorithms, plot, resident, sim, train};

use crate::Answer;
use crate::args::TrainArgs;
use crate::commands::trace;
use crate::progress::{self, Progress};
use crate::{files, printer, settings};
use print::Trained;

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
        print::print(&trained)?
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
