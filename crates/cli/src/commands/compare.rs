//! `elbowroom compare`: planners side by side, at every limit or each at its smallest.

mod print;

use std::path::Path;

use anyhow::{Result, bail};
use elbowroom::compare::{self, Comparison, Row};
use elbowroom::ir::planning::Planner;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::{self, Task};
use elbowroom::size::{MemoryRange, MemorySpec};
use elbowroom::{plot, registry};
use serde::Serialize;

use crate::Answer;
use crate::args::CompareArgs;
use crate::commands::trace::traced;
use crate::progress::Progress;
use crate::{files, printer, settings, signals};
use print::Output;

/// Runs the command.
pub fn run(args: &CompareArgs) -> Result<Answer> {
    if args.svg.is_some() && args.traces.len() > 1 {
        bail!("--svg draws one trace, but {} were given; name one", args.traces.len());
    }
    let progress = Progress::new("reading");
    signals::catch();
    let planners = planners(args)?;
    // All files are read first: a wrong one is reported before a long search, not after it.
    let read = |path: &std::path::PathBuf| task(args, path);
    let tasks = args.traces.iter().map(read).collect::<Result<Vec<_>>>()?;
    let mut output = Output::new(args, &tasks, &planners);
    let mut compared = Vec::new();
    for task in &tasks {
        if signals::interrupted() {
            break;
        }
        compared.push(plan(args, task, &planners, &progress, &mut output)?);
    }
    drop(progress);
    if let (Some(path), [one]) = (&args.svg, compared.as_slice()) {
        let title = format!("{} on {}", one.trace, one.machine);
        files::write(Some(path), &plot::svg(&title, &one.rows))?;
    }
    if args.json {
        match compared.as_slice() {
            [one] => printer::json(one)?,
            several => printer::json(&Traces { traces: several })?,
        }
    }
    Ok(Answer::Yes)
}

/// The planners of the command line.
fn planners(args: &CompareArgs) -> Result<Vec<&'static dyn Planner>> {
    let names = if args.planners.is_empty() {
        registry::planners()
    } else {
        args.planners.iter().map(String::as_str).collect()
    };
    crate::planners::planners(names, &args.options, &args.network)
}

/// One trace on the machine of the command line.
fn task(args: &CompareArgs, path: &Path) -> Result<Task> {
    Ok(Task { freedom: settings::freedom(&args.freedom), ..traced(path, args.inputs, &args.machine)? })
}

/// Plans one trace with every planner, and prints rows when they are found.
fn plan<'a>(
    args: &CompareArgs,
    task: &'a Task,
    planners: &[&dyn Planner],
    progress: &Progress,
    output: &mut Output<'_>,
) -> Result<Compared<'a>> {
    let packer = registry::packer(&args.packer)?;
    progress.stage_begins("finding the unconstrained peak");
    let baseline = args.baseline.as_deref().map_or(Ok(packer), registry::packer)?;
    let kept = pipeline::unconstrained(task, baseline, progress)?;
    let by_live_memory = args.live_limit.is_some();
    let peak = if by_live_memory { kept.predicted.peak_live } else { kept.height() };
    let (low, steps) = if args.overhead.is_some() { (0.05, 20) } else { (0.3, 8) };
    let default = MemoryRange { low: MemorySpec::Share(low), high: MemorySpec::Share(1.0) };
    let range = args.live_limit.or(args.memory).unwrap_or(default);
    let Some(limits) = range.resolve(peak, args.steps.unwrap_or(steps) as usize) else {
        bail!(
            "`compare` takes sizes or shares, like 600MiB..2GiB or 30%..100%; `min` is for `plan` and `train`"
        );
    };
    let comparison = Comparison {
        task,
        planners,
        packer,
        budget: settings::budget(&args.search)?,
        limits: &limits,
        by_live_memory,
        unconstrained: peak,
        alone: args.alone,
    };
    let total = if args.overhead.is_some() { planners.len() } else { planners.len() * limits.len() };
    let mut done = 0;
    progress.above(|| output.begin(task, peak))?;
    let mut printed = Ok(());
    let found = |row: &Row| {
        done += 1;
        progress.stage_begins(format!("{done}/{total} done: {} at {:.0} %", row.planner, 100.0 * row.share));
        if printed.is_ok() {
            printed = progress.above(|| output.row(row));
        }
        if printed.is_err() {
            // The reader has closed the pipe, so the search ends.
            signals::interrupt();
        }
    };
    let rows = match args.overhead {
        Some(overhead) => compare::smallest(&comparison, overhead, progress, found)?,
        None => compare::compare(&comparison, progress, found)?,
    };
    printed?;
    progress.above(|| output.end(&rows))?;
    Ok(Compared {
        trace: task.trace.name(),
        machine: &task.machine.name,
        unconstrained_peak_bytes: peak,
        unlimited_iteration_ns: task.costs.total(),
        rows,
    })
}

/// Several traces, each with its own comparison.
#[derive(Serialize)]
struct Traces<'a> {
    traces: &'a [Compared<'a>],
}

/// The comparison of one trace as one object.
#[derive(Serialize)]
struct Compared<'a> {
    trace: &'a str,
    machine: &'a str,
    /// Arena size when every tensor stays on the device, by the baseline's packer; peak live memory where that is limited.
    unconstrained_peak_bytes: Bytes,
    unlimited_iteration_ns: Nanos,
    rows: Vec<Row>,
}
