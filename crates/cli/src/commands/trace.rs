//! `elbowroom trace`: writes a trace of one iteration of a network, and prints how much memory it needs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use elbowroom::graph::{Graph, Mode, zoo};
use elbowroom::import::{self, ImportError, Imported};
use elbowroom::ir::machine::Machine;
use elbowroom::ir::planning::{CostSource, Costs, Freedom};
use elbowroom::ir::search::Budget;
use elbowroom::ir::text::{File, TraceFile};
use elbowroom::ir::trace::{Again, Op, Trace};
use elbowroom::network::Source;
use elbowroom::pipeline::{Method, Task, sizes};
use elbowroom::registry;
use elbowroom::sched::chain::pieces::in_pieces;
use elbowroom::sim::cost::Roofline;
use elbowroom::size::BatchSpec;
use elbowroom::{engine, onnx, sim};

use crate::Answer;
use crate::args::{ImportArgs, InputArgs, MachineArgs, NetworkArgs, TraceArgs};
use crate::commands::limits::Limits;
use crate::printer::{self, counted};
use crate::progress::Progress;
use crate::{files, networks, settings, signals};

/// Longest search for the smallest limit of a trace.
const SUMMARY_TIME: Duration = Duration::from_secs(5);

/// The kind of the ops that provide the batch, in traces of networks and in imported ones.
const INPUT: &str = "input";

/// Runs the command.
pub fn run(args: &TraceArgs) -> Result<Answer> {
    let args = &of_file(args)?;
    let (trace, costs, machine, graph) = match &args.import {
        Some(path) => {
            let bytes = files::content(path, "the recorded file, for example one of those in it")?;
            let imported = imported(path, &bytes, &args.importing)?;
            for line in imported.notes.to_string().lines() {
                let _ = writeln!(std::io::stderr(), "{}", printer::printable(line));
            }
            // Recorded durations are kept; a machine is noted only if the user names one, for the file does not.
            let named =
                args.machine.machine.is_some() || args.machine.link.is_some() || args.machine.align.is_some();
            let machine = if named { Some(settings::machine(&args.machine, cpu()?)?) } else { None };
            let costs = match &machine {
                Some(machine) if args.machine.roofline => {
                    Costs::estimate(&imported.trace, &Roofline::new(machine))
                }
                _ => {
                    say_that_durations_stay(path, &imported.costs, &args.machine);
                    imported.costs
                }
            };
            (imported.trace, costs, machine, None)
        }
        None => {
            let machine = settings::machine(&args.machine, cpu()?)?;
            let source = networks::source(&args.network)?;
            let network = network(&args.network, &source, samples(&args.network, &source)?)?;
            let trace =
                engine::trace(&network).with_context(|| format!("{} cannot be traced", network.name))?;
            let costs = Costs::estimate(&trace, &Roofline::new(&machine));
            (trace, costs, Some(machine), Some(network))
        }
    };
    let trace = with_inputs(trace, args.inputs)?;
    let trace = match args.pieces {
        Some(most) => in_pieces(&trace, most)?,
        None => trace,
    };
    let file = File::Trace(Box::new(TraceFile { trace, costs: Some(costs), machine }));
    let text = if args.json { serde_json::to_string(&file)? + "\n" } else { file.to_string() };
    files::write(args.output.as_deref(), &text)?;
    // Without a file, or with one like /dev/stdout, the trace itself is the output.
    if let (Some(path), File::Trace(file)) = (args.output.as_ref().filter(|path| path.is_file()), file) {
        summarize(args, path, *file, graph.as_ref())?;
    }
    Ok(Answer::Yes)
}

/// The arguments, where an import of a file with a network is that network.
fn of_file(args: &TraceArgs) -> Result<TraceArgs> {
    let mut args = args.clone();
    let is_network = |path: &mut PathBuf| onnx::Model::is_named(&path.to_string_lossy());
    if let Some(path) = args.import.take_if(is_network) {
        args.network.model = path.to_string_lossy().into_owned();
    }
    if let Some(path) = &args.import {
        networks::expect_own_batch(path, args.network.batch)?;
    }
    Ok(args)
}

/// Prints what was traced and how much memory it needs.
fn summarize(args: &TraceArgs, path: &Path, file: TraceFile, graph: Option<&Graph>) -> Result<()> {
    let TraceFile { trace, costs, machine } = file;
    let machine = machine.map_or_else(cpu, Ok)?;
    let costs = costs.unwrap_or_else(|| Costs::estimate(&trace, &Roofline::new(&machine)));
    let task = Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None };
    let progress = Progress::new("");
    signals::catch();
    let planner = registry::planner(registry::DEFAULT_PLANNER)?;
    let packer = registry::packer(registry::DEFAULT_PACKER)?;
    let method = Method::new(planner, packer, Budget::default());
    let end = Instant::now().checked_add(SUMMARY_TIME);
    let limits = Limits::find(&task, &method, false, end, &progress)?;
    drop(progress);
    if args.json {
        printer::json(&limits)?;
        return Ok(());
    }
    let ops = task.trace.ops().len() as u64;
    printer::line(&format!("{}: {}, {}", path.display(), task.trace.name(), counted(ops, "op")))?;
    if let Some(graph) = graph {
        printer::section("Network", &networks::description(graph))?;
    }
    limits.print()
}

/// The machine of traces that name none.
pub fn cpu() -> Result<Machine> {
    sim::presets::machine("cpu").context("the preset cpu exists")
}

/// An iteration that another program recorded, from the bytes of a file.
fn imported(path: &Path, bytes: &[u8], args: &ImportArgs) -> Result<Imported> {
    let options = import::Options::default()
        .units(if args.published_units { import::Units::Published } else { import::Units::Exact })
        .inplace(args.inplace)
        .remake_inputs(false);
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    import::import(bytes, &name, &options).with_context(|| format!("cannot import {}", path.display()))
}

/// A trace that another program recorded, read as [`imported`] reads it by default; the error `own` if it is of no kind that is imported.
fn foreign(path: &Path, bytes: &[u8], own: anyhow::Error) -> Result<TraceFile> {
    match imported(path, bytes, &ImportArgs::default()) {
        Ok(Imported { trace, costs, .. }) => Ok(TraceFile { trace, costs: Some(costs), machine: None }),
        Err(error) => match error.downcast_ref() {
            Some(ImportError::UnknownKind { .. }) => Err(own),
            _ => Err(error),
        },
    }
}

/// Samples in a batch.
fn samples(args: &NetworkArgs, source: &Source) -> Result<usize> {
    match networks::batch(args, source) {
        BatchSpec::Samples(samples) => Ok(samples as usize),
        BatchSpec::Largest => {
            bail!(
                "--batch max needs a memory limit, which a trace does not have; give a number of samples, like --batch 32"
            )
        }
    }
}

/// The graph that the user named, for batches of this size.
pub fn network(args: &NetworkArgs, source: &Source, batch: usize) -> Result<Graph> {
    let options = options(args, batch);
    networks::warn_of_options_without_effect(source, &options);
    Ok(source.build(&options)?)
}

/// What the user chose about the network.
pub fn options(args: &NetworkArgs, batch: usize) -> zoo::Options {
    let number = |given: Option<u32>| given.map(|number| number as usize);
    zoo::Options::new(batch)
        .image(number(args.image))
        .classes(number(args.classes))
        .length(number(args.length))
        .vocabulary(number(args.vocabulary))
        .width(number(args.width))
        .layers(number(args.layers))
        .optimizer(args.optimizer)
        .learning_rate(args.learning_rate)
        .weight_decay(args.weight_decay)
        .mode(if args.forward_only { Mode::Inference } else { Mode::Training })
}

/// A trace from a file, of our own kind or of one that is imported, with its costs and machine, or those of the machine that the user
/// named.
pub fn traced(path: &Path, inputs: InputArgs, machine_args: &MachineArgs) -> Result<Task> {
    task(path, trace_file(path, inputs)?, machine_args)
}

/// What a file with a trace holds, our own kind or one that is imported, with its inputs as the user chose.
pub fn trace_file(path: &Path, inputs: InputArgs) -> Result<TraceFile> {
    trace_with_inputs(path, &files::content(path, "a file with a trace")?, inputs)
}

/// As [`trace_file`], from the bytes of the file, which may be a pipe that cannot be read twice.
pub fn trace_with_inputs(path: &Path, bytes: &[u8], inputs: InputArgs) -> Result<TraceFile> {
    let file = trace_content(path, bytes)?;
    Ok(TraceFile { trace: with_inputs(file.trace, inputs)?, ..file })
}

/// The same trace, whose ops that provide the batch run once or may be recomputed, as the user chose.
pub fn with_inputs(trace: Trace, inputs: InputArgs) -> Result<Trace> {
    let again = match inputs {
        InputArgs { hold_inputs: true, .. } => Again::Never,
        InputArgs { remake_inputs: true, .. } => Again::Pure,
        InputArgs { .. } => return Ok(trace),
    };
    let mut data = trace.data().clone();
    let provides = |op: &Op| op.kind == INPUT && op.reads.is_empty() && op.mutates.is_empty();
    data.ops.iter_mut().filter(|(_, op)| provides(op)).for_each(|(_, op)| op.again = again);
    Ok(Trace::new(data)?)
}

/// As [`trace_with_inputs`], with the inputs as the file has them.
pub fn trace_content(path: &Path, bytes: &[u8]) -> Result<TraceFile> {
    match files::parse_content(path, bytes) {
        Ok(file) => file.into_trace().with_context(|| format!("cannot use {}", path.display())),
        Err(own) => foreign(path, bytes, own),
    }
}

/// Says that a machine that the user names does not change durations that come with a trace.
fn say_that_durations_stay(path: &Path, costs: &Costs, machine_args: &MachineArgs) {
    if let Some(machine) = &machine_args.machine {
        let _ = writeln!(
            std::io::stderr(),
            "note: {} states {} durations, which stay without --roofline; memory, alignment and link are those of {machine}",
            path.display(),
            costs.source.name()
        );
    }
}

/// What is planned for a trace, with the costs and the machine of its file, or those of the machine that the user named.
pub fn task(path: &Path, file: TraceFile, machine_args: &MachineArgs) -> Result<Task> {
    let own = file.machine.map_or_else(cpu, Ok)?;
    let machine = settings::machine(machine_args, own)?;
    // Costs in the file were made for the file's machine; another machine has others, unless the file states more than a data sheet can.
    let costs = match file.costs.filter(|_| !machine_args.roofline) {
        Some(costs) if costs.source != CostSource::Roofline => {
            say_that_durations_stay(path, &costs, machine_args);
            costs
        }
        Some(costs) if machine_args.machine.is_none() => costs,
        _ => Costs::estimate(&file.trace, &Roofline::new(&machine)),
    };
    let task = Task { trace: Arc::new(file.trace), costs, machine, freedom: Freedom::ALL, pins: None };
    sizes::expect(&task).with_context(|| format!("cannot use {}", path.display()))?;
    Ok(task)
}
