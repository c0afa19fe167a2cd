//! `elbowroom compare`: planners side by side, at every limit or each at its smallest.

mod print;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};
use elbowroom::compare::{self, Comparison, Row};
use elbowroom::ir::check::CheckedPlan;
use elbowroom::ir::packing::Packer;
use elbowroom::ir::planning::Planner;
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::page::{self, Subject};
use elbowroom::pipeline::{self, Method, Planned, Task};
use elbowroom::sched::deadline::Until;
use elbowroom::size::{MemoryRange, MemorySpec};
use elbowroom::tradeoff::Tradeoff;
use elbowroom::why::{Means, Why};
use elbowroom::{plot, registry, sim};
use serde::Serialize;

use crate::Answer;
use crate::args::CompareArgs;
use crate::commands::trace::traced;
use crate::files::Folder;
use crate::progress::Progress;
use crate::{files, printer, settings, signals};
use print::Output;

/// Runs the command.
pub fn run(args: &CompareArgs) -> Result<Answer> {
    if args.svg.is_some() && args.traces.len() > 1 {
        bail!("--svg draws one trace, but {} were given; name one", args.traces.len());
    }
    if args.html.is_some() && args.traces.len() > 1 {
        bail!("--html shows one trace, but {} were given; name one", args.traces.len());
    }
    let progress = Progress::new("reading");
    let planners = planners(args)?;
    // All files are read first: a wrong one is reported before a long search, not after it.
    let read = |path: &std::path::PathBuf| task(args, path);
    let tasks = args.traces.iter().map(read).collect::<Result<Vec<_>>>()?;
    signals::catch();
    let _folder = args.html.as_deref().map(Folder::make).transpose()?;
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
    let mut pages = Pages { folder: args.html.as_deref(), task, kept: &kept, packer, written: Vec::new() };
    let mut paged = Ok(());
    let mut found = |row: &Row, plan: Option<&CheckedPlan>| {
        done += 1;
        progress.stage_begins(format!("{done}/{total} done: {} at {:.0} %", row.planner, 100.0 * row.share));
        if printed.is_ok() {
            printed = progress.above(|| output.row(row));
        }
        if printed.is_err() {
            // The reader has closed the pipe, so the search ends.
            signals::interrupt();
        }
        if paged.is_ok() {
            paged = pages.write(row, plan);
        }
        if paged.is_err() {
            signals::interrupt();
        }
    };
    let rows = match args.overhead {
        Some(overhead) => compare::smallest(&comparison, overhead, progress, |row| found(row, None))?,
        None => compare::compare(&comparison, progress, found)?,
    };
    printed?;
    paged?;
    pages.index(&rows)?;
    progress.above(|| output.end(&rows))?;
    Ok(Compared {
        trace: task.trace.name(),
        machine: &task.machine.name,
        unconstrained_peak_bytes: peak,
        unlimited_iteration_ns: task.costs.total(),
        rows,
    })
}

/// The pages of a comparison.
struct Pages<'a> {
    /// Where they lie; `None` if there are to be none.
    folder: Option<&'a Path>,
    task: &'a Task,
    kept: &'a Planned,
    packer: &'static dyn Packer,
    /// The page of each row, if it has a plan.
    written: Vec<Option<String>>,
}

impl Pages<'_> {
    /// Writes the page of a row's plan.
    fn write(&mut self, row: &Row, plan: Option<&CheckedPlan>) -> Result<()> {
        let Some(folder) = self.folder else { return Ok(()) };
        let Some(plan) = plan else {
            self.written.push(None);
            return Ok(());
        };
        let task = self.task.with_memory(row.limit_bytes);
        let predicted = sim::simulate(&task.trace, &task.costs, &task.machine, plan.schedule())?;
        let method =
            Method::new(registry::planner(registry::DEFAULT_PLANNER)?, self.packer, Budget::evaluations(1));
        let means = Means { method: &method, smallest: &method };
        // Suggestions would be plans for every plan.
        let no_time = Until::new(&Silent, Some(Instant::now()));
        let why = Why::of(&task, Some(plan), self.kept, &means, &no_time);
        let subject = Subject {
            task: &task,
            plan: Some(plan),
            unconstrained: self.kept,
            predicted: &predicted,
            why: &why,
            run: None,
        };
        let name = format!("{}-{}.html", row.planner, row.limit_bytes.get());
        files::write(Some(&folder.join(&name)), &page::report(&subject).html)?;
        self.written.push(Some(name));
        Ok(())
    }

    /// Writes the page of the comparison.
    fn index(&self, rows: &[Row]) -> Result<()> {
        let Some(folder) = self.folder else { return Ok(()) };
        let title = format!("{} on {}", self.task.trace.name(), self.task.machine.name);
        let unlimited = self.task.costs.total();
        let tradeoff = Tradeoff { title: &title, unlimited, rows, pages: &self.written };
        files::write(Some(&folder.join("index.html")), &tradeoff.html())
    }
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
