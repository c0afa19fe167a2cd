//! `elbowroom plan`: a traced iteration, planned under a limit.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use elbowroom::algorithms::{AlgorithmChoice, Conditions};
use elbowroom::choices::Choices;
use elbowroom::explain::Refusal;
use elbowroom::graph::Graph;
use elbowroom::ir::machine::Machine;
use elbowroom::ir::plan::Plan;
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::text::{File, PlanFile};
use elbowroom::ir::trace::Trace;
use elbowroom::ir::{Bytes, check};
use elbowroom::largest::{Largest, LargestError, largest};
use elbowroom::network::Model;
use elbowroom::pins::{self, Pinned, PinnedTask};
use elbowroom::pipeline::{self, Method, PlanError, Planned, Task};
use elbowroom::report::PlanReport;
use elbowroom::sched::deadline::Until;
use elbowroom::size::{BatchSpec, MemorySpec};
use elbowroom::tiles::{self, TileChoice};
use elbowroom::{picture, registry};
use serde::Serialize;

use crate::Answer;
use crate::args::PlanArgs;
use crate::commands::explain::{self, Explained};
use crate::commands::export;
use crate::commands::limits::Limits;
use crate::commands::trace::{self, task, trace_file};
use crate::printer::{self, Row, counted, grouped, row};
use crate::progress::Progress;
use crate::{files, learning, networks, settings, signals};

/// Time of the search for the largest batch where the user gives none: each of some dozen batches is planned.
const TIME_FOR_BATCH: Duration = Duration::from_secs(120);
/// More bytes than a file of pins has.
const LARGEST_PINS: u64 = 1 << 20;

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<Answer> {
    let started = Instant::now();
    let method = settings::method(&args.planner)?;
    let freedom = settings::freedom(&args.planner.freedom);
    let progress = Progress::new("planning");
    let (mut share_of_whole, mut known, mut fitting) = (None, None, None);
    let mut planning_started = started;
    let (task, machine_is_named, largest) = match &args.trace {
        Some(path) => {
            networks::expect_own_batch(path, args.network.batch)?;
            let file = trace_file(path, args.inputs)?;
            let machine_is_named = args.machine.machine.is_some() || file.machine.is_some();
            (Task { freedom, ..task(path, file, &args.machine)? }, machine_is_named, None)
        }
        None => {
            signals::catch();
            let Traced { task, limit, kept, largest, fitting: found } =
                match traced_network(args, &method, freedom, &progress)? {
                    Ok(found) => found,
                    Err(answer) => return Ok(answer),
                };
            (share_of_whole, known, fitting) = (limit, kept, found);
            if largest.is_some() && args.planner.search.time.is_none() {
                planning_started = Instant::now();
            }
            (task, args.machine.machine.is_some(), largest)
        }
    };
    signals::catch();
    progress.stage_begins("planning");
    if args.memory.is_none() && args.live_limit.is_none() {
        return suggest(args, &task, &method, started, &progress);
    }
    let given = task;
    let (task, pins) = pinned(args.pins.as_deref(), &given)?;
    let memory = share_of_whole.map_or(args.memory, |whole| Some(whole.limit));
    let proof = |limit: MemorySpec| {
        let limited = task.with_memory(limit.absolute()?);
        if memory.is_some() {
            pipeline::impossible(&limited)
        } else {
            pipeline::impossible_schedule(&limited)
        }
    };
    if let Some(error) = memory.or(args.live_limit).and_then(proof) {
        let bytes = if memory.is_some() { Planned::height } else { peak_live };
        return refuse(args.json, &task, &method, (error, bytes), started, &progress);
    }
    let kept = match known {
        Some(kept) => kept,
        None => pipeline::unconstrained(&given, method.packer, &progress)?,
    };
    if let Some(limit) = args.live_limit {
        return by_live_memory(args, (&task, pins), &method, limit, &kept, started, &progress);
    }
    let unconstrained = share_of_whole.map_or(kept.height(), |whole| whole.peak);
    // The plan that keeps everything need not obey pins.
    let method = method.placed(task.pins.is_none().then_some(kept.plan));
    let memory = memory.unwrap_or(MemorySpec::Share(1.0));
    let planned = match memory.resolve(unconstrained) {
        Some(limit) => {
            let task = task.with_memory(limit);
            pipeline::plan_or_for_less(&task, &method.clone().since(planning_started), &progress)
        }
        None => pipeline::smallest(&task, &method.clone().since(planning_started), unconstrained, &progress),
    };
    let trace = task.trace.fingerprint();
    let fitting = fitting.filter(|plan| task.pins.is_none() && plan.plan.trace().fingerprint() == trace);
    let mut planned = match (planned, fitting) {
        (Ok(planned), Some(fitting)) if fitting.predicted.iteration < planned.predicted.iteration => fitting,
        (Err(PlanError::GaveUp { .. }), Some(fitting)) => fitting,
        (Ok(planned), _) => planned,
        (Err(error), _) => {
            return refuse(args.json, &task, &method, (error, Planned::height), started, &progress);
        }
    };
    // Everything counts that the user has waited for.
    planned.planning = started.elapsed();
    let limited = task.with_memory(planned.plan.machine().memory);
    let report = unless_interrupted(PlanReport::new(&limited, &method, unconstrained, &planned));
    learning::save(&args.learned, &progress.learned())?;
    drop(progress);
    if machine_is_named {
        warn_of_missing_memory(&task.machine, planned.height());
    }
    if let Some(path) = &args.svg {
        files::write(Some(path), &picture::svg(&planned.plan, &planned.predicted))?;
    }
    export::write(&planned.plan, &planned.predicted, args.timeline.as_deref(), args.snapshot.as_deref())?;
    if let Some(path) = &args.output {
        // The file is for the trace that was given, in which more ops may be recomputed.
        let plan = Plan { trace: given.trace.fingerprint(), ..planned.plan.plan().clone() };
        let plan = check::check(given.trace, limited.machine.clone(), plan)?.plan().clone();
        let file = PlanFile { machine: limited.machine.clone(), plan };
        files::write(Some(path), &File::Plan(Box::new(file)).to_string())?;
    }
    let explanation = args
        .explain
        .then(|| Choices::of(&limited, planned.plan.schedule(), &planned.predicted).with_pins(pins));
    print_all(args, &report, explanation.as_ref(), largest)
}

/// The answer to `--batch max`.
#[derive(Clone, Copy, Debug, Serialize)]
struct LargestBatch {
    /// Samples of the largest batch for which a plan was found.
    largest_batch: usize,
    /// Whether the search ended by itself: for one sample more its short searches found no plan.
    largest_batch_complete: bool,
}

/// The JSON report.
#[derive(Serialize)]
struct WithBatch<'a> {
    #[serde(flatten)]
    plan: Explained<'a, PlanReport>,
    #[serde(flatten)]
    largest: Option<LargestBatch>,
}

/// A network that was traced.
struct Traced {
    task: Task,
    /// The limit, if it is in no bytes and weights are in tiles.
    limit: Option<ShareOfWhole>,
    /// The plan that keeps every tensor of the task, if it was made.
    kept: Option<Planned>,
    /// The largest batch, if that was asked for.
    largest: Option<LargestBatch>,
    /// The plan that has shown that it fits.
    fitting: Option<Planned>,
}

/// A limit that is a share of the peak that the network has without tiles, as that of a training, or the smallest one.
#[derive(Clone, Copy)]
struct ShareOfWhole {
    limit: MemorySpec,
    peak: Bytes,
}

/// The network that `--model` names, traced; the answer instead if not even one sample fits.
fn traced_network(
    args: &PlanArgs,
    method: &Method<'_>,
    freedom: Freedom,
    progress: &Progress,
) -> Result<Result<Traced, Answer>> {
    let machine = settings::machine(&args.machine, trace::cpu()?)?;
    let tiles =
        args.tiles.unwrap_or(if args.output.is_some() { TileChoice::Never } else { TileChoice::Auto });
    networks::warn_of_tiles_without_effect(&args.network, tiles);
    let source = networks::source(&args.network)?;
    let (graph, largest, fitting) = match networks::batch(&args.network, &source) {
        BatchSpec::Samples(samples) => {
            (Arc::new(trace::network(&args.network, &source, samples as usize)?), None, None)
        }
        BatchSpec::Largest => {
            let options = trace::options(&args.network, 1);
            networks::warn_of_options_without_effect(&source, &options);
            let Some(memory) = args.memory else {
                anyhow::bail!("--batch max needs a limit in bytes, like --memory 24GiB");
            };
            // The other half of the user's time is for the plan.
            let mut method = method.clone();
            method.budget.time = match args.planner.search.time {
                Some(time) => method.budget.time.map(|_| time / 2),
                None => method.budget.time.map(|_| TIME_FOR_BATCH),
            };
            let conditions = Conditions {
                memory,
                machine: &machine,
                method: &method,
                freedom,
                iterations: 1,
                threads: method.budget.threads,
                algorithms: AlgorithmChoice::AsBuilt,
            };
            let model = Model::of(source, options)?;
            match largest(&model, &conditions, tiles, progress) {
                Ok(Largest { samples, graph, complete, planned, .. }) => {
                    let largest = LargestBatch { largest_batch: samples, largest_batch_complete: complete };
                    // Made by a shorter search than this command reports.
                    (graph, Some(largest), Some(Planned { reproducible: false, ..planned }))
                }
                Err(error @ LargestError::None(_)) => return Ok(Err(Answer::No(error.to_string()))),
                Err(error) => return Err(error.into()),
            }
        }
    };
    let estimate = |graph: &Graph| -> Result<Task> {
        let mut task = Task::estimate(graph, &machine, freedom)?;
        task.trace = Arc::new(trace::with_inputs(Trace::clone(&task.trace), args.inputs)?);
        Ok(task)
    };
    let cut = |limit: Option<Bytes>| tiles::cut(&graph, tiles, limit, &machine, freedom);
    let traced = |task, limit, kept| Ok(Ok(Traced { task, limit, kept, largest, fitting }));
    match args.memory {
        Some(MemorySpec::Share(_) | MemorySpec::Smallest) if tiles != TileChoice::Never => {
            let task = estimate(&graph)?;
            let kept = pipeline::unconstrained(&task, method.packer, progress)?;
            let peak = kept.height();
            let limit = args.memory.and_then(|memory| memory.resolve(peak));
            let tiled = cut(limit)?;
            match Arc::ptr_eq(&tiled, &graph) {
                true => traced(task, None, Some(kept)),
                false => {
                    let limit = limit.map_or(MemorySpec::Smallest, MemorySpec::Absolute);
                    traced(estimate(&tiled)?, Some(ShareOfWhole { limit, peak }), None)
                }
            }
        }
        Some(MemorySpec::Absolute(limit)) => {
            let tiled = cut(Some(limit))?;
            traced(estimate(&tiled)?, None, None)
        }
        _ => traced(estimate(&graph)?, None, None),
    }
}

/// The task with the pins of a file, and what each of them covers.
fn pinned(path: Option<&Path>, task: &Task) -> Result<(Task, Vec<Pinned>)> {
    let Some(path) = path else { return Ok((task.clone(), Vec::new())) };
    let text = String::from_utf8(files::bounded(path, LARGEST_PINS)?);
    let text = text.with_context(|| format!("{} is no text", path.display()))?;
    let wrong = || format!("cannot use the pins of {}", path.display());
    let pins = pins::parse(&text).with_context(wrong)?;
    let PinnedTask { task, pinned } = pins::pin(task, &pins).with_context(wrong)?;
    Ok((task, pinned))
}

/// Says that the machine has too little memory for a plan whose limit the user has set above it: `check` refuses such a plan.
fn warn_of_missing_memory(machine: &Machine, arena: Bytes) {
    if arena > machine.memory {
        let _ = writeln!(
            std::io::stderr(),
            "warning: the arena of {arena} does not fit in the {} of {}; check accepts this plan only with --memory {}",
            machine.memory,
            printer::printable(&machine.name),
            arena.get()
        );
    }
}

/// Without a limit: prints which limits are possible and what to do next.
fn suggest(
    args: &PlanArgs,
    task: &Task,
    method: &Method<'_>,
    started: Instant,
    progress: &Progress,
) -> Result<Answer> {
    let chosen = args.planner.planner != registry::DEFAULT_PLANNER;
    let end = started.checked_add(settings::time(&args.planner.search));
    let limits = Limits::find(task, method, chosen, end, progress)?;
    if args.json {
        printer::json(&limits)?;
        return Ok(Answer::Yes);
    }
    progress.clear();
    printer::line(&format!("{} on {}", task.trace.name(), task.machine.name))?;
    limits.print()?;
    let trace = match &args.trace {
        Some(path) => path.display().to_string(),
        None => format!("--model {} …", args.network.model),
    };
    printer::line("")?;
    printer::line("No limit was given, so nothing was planned. Examples:")?;
    for rest in ["--memory 50% -o FILE", "--memory min -o FILE"] {
        printer::line(&format!("  elbowroom plan {trace} {rest}"))?;
    }
    printer::line(&format!("  elbowroom compare {trace} --memory 30%..100%"))?;
    Ok(Answer::Yes)
}

/// The report of a search that a signal may have ended: then nothing reproduces it.
fn unless_interrupted(mut report: PlanReport) -> PlanReport {
    report.reproduce_with = report.reproduce_with.filter(|_| !signals::interrupted());
    report
}

/// Prints the predictions of a plan and, if requested, the reasons for its decisions.
fn print_all(
    args: &PlanArgs,
    report: &PlanReport,
    explanation: Option<&Choices>,
    largest: Option<LargestBatch>,
) -> Result<Answer> {
    if args.json {
        printer::json(&WithBatch { plan: Explained { report, explanation }, largest })?;
    } else {
        if let Some(LargestBatch { largest_batch, largest_batch_complete }) = largest {
            let more = if largest_batch_complete { "" } else { " or more: --time ended the search" };
            printer::line(&format!(
                "largest batch {largest_batch}{more}, for {} within {} on {}",
                args.network.model, report.limit_bytes, report.machine
            ))?;
        }
        print(report)?;
        explanation.map_or(Ok(()), explain::print)?;
    }
    Ok(Answer::Yes)
}

/// The same with a limit on live memory: the schedule is not packed and cannot be written to a file.
fn by_live_memory(
    args: &PlanArgs,
    (task, pins): (&Task, Vec<Pinned>),
    method: &Method<'_>,
    limit: MemorySpec,
    kept: &Planned,
    started: Instant,
    progress: &Progress,
) -> Result<Answer> {
    let unconstrained = kept.predicted.peak_live;
    let Some(limit) = limit.resolve(unconstrained) else {
        anyhow::bail!("--live-limit takes a size or a share, like 600MiB or 50%; `min` is for --memory");
    };
    let limited = task.with_memory(limit);
    let method = &method.clone().since(started);
    let planned = match pipeline::plan_schedule(&limited, method, &[], progress) {
        Ok(planned) => planned,
        Err(error) => return refuse(args.json, task, method, (error, peak_live), started, progress),
    };
    let report = unless_interrupted(PlanReport::of_load(&limited, method, unconstrained, &planned));
    learning::save(&args.learned, &progress.learned())?;
    let schedule = planned.schedule.schedule();
    let explanation =
        args.explain.then(|| Choices::of(&limited, schedule, &planned.predicted).with_pins(pins));
    print_all(args, &report, explanation.as_ref(), None)
}

/// The bytes of a plan on which `--live-limit` is a limit.
fn peak_live(planned: &Planned) -> Bytes {
    planned.predicted.peak_live
}

/// Explains why there is no plan, with a limit that works: one on the `bytes` of a plan.
fn refuse(
    json: bool,
    task: &Task,
    method: &Method<'_>,
    (error, bytes): (PlanError, fn(&Planned) -> Bytes),
    started: Instant,
    progress: &Progress,
) -> Result<Answer> {
    progress.stage_begins("looking for a limit that works");
    let smallest = working_limit(task, method, started, progress).as_ref().map(bytes);
    match Refusal::new(&task.trace, &error, smallest) {
        Some(refusal) => {
            if json {
                printer::json(&refusal)?;
            }
            let ended = method.budget.time.is_some_and(|time| started.elapsed() >= time);
            let hint = if ended && !refusal.proved { "; a longer --time may find a plan" } else { "" };
            Ok(Answer::No(refusal.sentence() + hint))
        }
        None => Err(error.into()),
    }
}

/// The plan for the smallest limit that a quick search finds to work. It takes a second at most, and no longer than the rest of the time budget
/// unless that is less than a fifth of it.
fn working_limit(task: &Task, method: &Method<'_>, started: Instant, progress: &Progress) -> Option<Planned> {
    let second = Duration::from_secs(1);
    let time = method
        .budget
        .time
        .map_or(second, |time| time.saturating_sub(started.elapsed()).max(time / 5).min(second));
    let end = Instant::now().checked_add(time);
    let packer = registry::packer(registry::QUICK_PACKER).ok()?;
    let kept = pipeline::unconstrained(task, packer, &Until::new(progress, end)).ok()?;
    Some(pipeline::quick_smallest(task, kept.height(), end, progress).unwrap_or(kept))
}

/// Prints what a plan promises: the result first, then limit, plan and search.
pub fn print(report: &PlanReport) -> Result<()> {
    printer::line(&format!("{} on {}", report.trace, report.machine))?;
    let mut result = Vec::new();
    if let Some(arena) = report.arena_bytes {
        result.push(row("arena size", arena, format!("{} bytes, offsets assigned", grouped(arena.get()))));
    } else {
        result.push(live(report));
    }
    let against =
        format!("{} times; {} against no limit", report.durations, printer::percent(report.overhead));
    result.push(row("iteration time", report.iteration_ns, against));
    result.push(bound(report));
    printer::section("Result", &result)?;
    printer::section("Limit", &limit(report))?;
    printer::section("Plan", &decisions(report))?;
    printer::section("Search", &search(report))?;
    Ok(())
}

/// The largest sum of live bytes.
fn live(report: &PlanReport) -> Row {
    row("peak live memory", report.peak_live_bytes, "largest sum of buffers alive at one time")
}

/// The lower bound on the iteration time.
pub fn bound(report: &PlanReport) -> Row {
    row("lower bound on time", report.lower_bound_ns, printer::optimality(report.ratio_to_bound))
}

/// What the user allowed and what is possible.
pub fn limit(report: &PlanReport) -> Vec<Row> {
    let share = 100.0 * report.limit_bytes.ratio(report.unconstrained_peak_bytes);
    let name = if report.arena_bytes.is_some() { "limit" } else { "limit on live memory" };
    vec![
        row(name, report.limit_bytes, format!("{share:.1} % of the unconstrained peak")),
        row(
            "unconstrained peak",
            report.unconstrained_peak_bytes,
            "arena size with every tensor on the device",
        ),
        floor(report.largest_op_bytes, report.floor_bytes, &report.floor_op),
    ]
}

/// The limit below which no plan exists, and what needs so much.
pub fn floor(largest_op: Bytes, floor: Bytes, op: &str) -> Row {
    let needed_by = if floor > largest_op {
        format!("op {op} and tensors that may not leave the device then")
    } else {
        format!("op {op} alone")
    };
    row("lower bound on limit", floor, format!("needed by {needed_by}; no plan exists below"))
}

/// What the plan does in one iteration.
pub fn decisions(report: &PlanReport) -> Vec<Row> {
    let mut rows = Vec::new();
    if report.arena_bytes.is_some() {
        rows.push(live(report));
    }
    rows.push(row("offloaded", report.to_host_bytes, "copied to the host in one iteration"));
    rows.push(row("prefetched", report.to_device_bytes, "copied to the device in one iteration"));
    rows.push(row("recomputed", counted(report.recomputed_ops as u64, "op"), "in one iteration"));
    rows
}

/// How the plan was found.
pub fn search(report: &PlanReport) -> Vec<Row> {
    let stopped = format!("{}, found by {}", printer::stopped(report.stop_reason), report.found_by);
    let mut rows = vec![
        row("planner", &report.planner, stopped),
        row("planning time", report.planning_ns, counted(report.evaluations, "evaluation")),
    ];
    if let Some(options) = &report.reproduce_with {
        rows.push(row("reproduce with", options, ""));
    }
    rows
}
