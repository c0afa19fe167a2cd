//! `elbowroom trace`: one iteration of a network, written down.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use elbowroom::graph::{Graph, zoo};
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::text::{File, TraceFile};
use elbowroom::pipeline::Task;
use elbowroom::sim::cost::Roofline;
use elbowroom::{engine, sim};

use crate::Answer;
use crate::args::{MachineArgs, NetworkArgs, TraceArgs};
use crate::{files, settings};

/// Runs the command.
pub fn run(args: &TraceArgs) -> Result<Answer> {
    let network = network(&args.network)?;
    let machine =
        settings::machine(&args.machine, sim::presets::machine("cpu").context("the preset cpu exists")?)?;
    let trace = engine::trace(&network).with_context(|| format!("{} cannot be traced", network.name))?;
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    let file = File::Trace(Box::new(TraceFile { trace, costs: Some(costs), machine: Some(machine) }));
    let text = if args.json { serde_json::to_string(&file)? + "\n" } else { file.to_string() };
    files::write(args.output.as_deref(), &text)?;
    Ok(Answer::Yes)
}

/// The graph that the user named.
pub fn network(args: &NetworkArgs) -> Result<Graph> {
    let number = |given: Option<u32>| given.map(|number| number as usize);
    let options = zoo::Options {
        image: number(args.image),
        classes: number(args.classes),
        length: number(args.length),
        vocabulary: number(args.vocabulary),
        width: number(args.width),
        layers: number(args.layers),
        optimizer: args.optimizer,
        learning_rate: args.learning_rate,
        ..zoo::Options::new(args.batch as usize)
    };
    Ok(zoo::build(&args.model, &options)?)
}

/// A trace from a file, with its costs and machine, or those of the machine that the user named.
pub fn traced(path: &Path, machine_args: &MachineArgs) -> Result<Task> {
    let file = files::parse(path)?.into_trace().with_context(|| format!("cannot use {}", path.display()))?;
    let own = file.machine.unwrap_or(sim::presets::machine("cpu").context("the preset cpu exists")?);
    let machine = settings::machine(machine_args, own)?;
    // Costs in the file were made for the file's machine; another machine has others, unless they were measured or recorded.
    let costs = match file.costs {
        Some(costs) if machine_args.machine.is_none() => costs,
        _ => Costs::estimate(&file.trace, &Roofline::new(&machine)),
    };
    Ok(Task { trace: Arc::new(file.trace), costs, machine, freedom: Freedom::ALL })
}
