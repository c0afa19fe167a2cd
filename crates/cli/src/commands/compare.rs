//! `elbowroom compare`: planners side by side, at every limit or each at its smallest.

use std::path::Path;

use anyhow::{Result, bail};
use elbowroom::compare::{self, Comparison, Row};
use elbowroom::ir::planning::Scheduler;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::{self, Task};
use elbowroom::report::PlanReport;
use elbowroom::size::{MemoryRange, MemorySpec};
use elbowroom::{plot, registry};
use serde::Serialize;

use crate::Answer;
use crate::args::{CompareArgs, RatioTo};
use crate::commands::trace::traced;
use crate::progress::{self, Progress};
use crate::{files, learning, printer, settings};

/// Runs the command.
pub fn run(args: &CompareArgs) -> Result<Answer> {
    if args.svg.is_some() && args.traces.len() > 1 {
        bail!("--svg draws one trace; name one");
    }
    let progress = Progress::new("reading");
    progress::heed_ctrl_c();
    let asked = args.traces.iter().map(|path| ask(args, path, &progress)).collect::<Result<Vec<_>>>()?;
    drop(progress);
    tell(args, &asked)?;
    Ok(Answer::Yes)
}

/// One trace with what all planners answered.
struct Asked {
    task: Task,
    natural: Bytes,
    rows: Vec<Row>,
}

/// Asks every planner about one trace.
fn ask(args: &CompareArgs, path: &Path, progress: &Progress) -> Result<Asked> {
    let task = Task { freedom: settings::freedom(&args.freedom), ..traced(path, &args.machine)? };
    let packer = registry::packer(&args.packer)?;
    let names = if args.planners.is_empty() {
        registry::planners()
    } else {
        args.planners.iter().map(String::as_str).collect()
    };
    let planners: Vec<&dyn Scheduler> =
        names.into_iter().map(|name| learning::scheduler(name, &args.network)).collect::<Result<_, _>>()?;

    progress.say("measuring the natural peak");
    let baseline = args.baseline.as_deref().map_or(Ok(packer), registry::packer)?;
    let kept = pipeline::natural(&task, baseline, progress)?;
    let by_load = args.load_limit.is_some();
    let natural = if by_load { kept.predicted.peak_load } else { kept.height() };
    let (low, steps) = if args.overhead.is_some() { (0.05, 20) } else { (0.3, 8) };
    let usual = MemoryRange { low: MemorySpec::Share(low), high: MemorySpec::Share(1.0) };
    let range = args.load_limit.or(args.memory).unwrap_or(usual);
    let Some(limits) = range.resolve(natural, args.steps.unwrap_or(steps) as usize) else {
        bail!("`compare` takes sizes or shares, like 30%..100%; `min` is for `plan` and `train`");
    };
    let budget = settings::budget(&args.search)?;
    let comparison =
        Comparison { task: &task, planners: &planners, packer, budget, limits: &limits, by_load, natural };
    let total = if args.overhead.is_some() { planners.len() } else { planners.len() * limits.len() };
    let mut done = 0;
    let heard = |row: &Row| {
        done += 1;
        progress.say(format!("{done}/{total}: {} at {:.0} %", row.planner, 100.0 * row.share));
    };
    let rows = match args.overhead {
        Some(overhead) => compare::smallest(&comparison, overhead, progress, heard)?,
        None => compare::compare(&comparison, progress, heard)?,
    };
    Ok(Asked { task, natural, rows })
}

/// Prints the answers: one trace in full, several in one table.
fn tell(args: &CompareArgs, asked: &[Asked]) -> Result<()> {
    let objects = asked.iter().map(|Asked { task, natural, rows }| Compared {
        trace: task.trace.name(),
        machine: &task.machine.name,
        natural_peak_bytes: *natural,
        unlimited_iteration_ns: task.costs.total(),
        rows,
    });
    let objects: Vec<Compared<'_>> = objects.collect();
    if let Some(to) = args.ratio {
        ratios(asked, to)?;
    }
    match (asked, objects.as_slice()) {
        ([Asked { task, natural, rows }], [object]) => {
            if let Some(path) = &args.svg {
                let title = format!("{} on {}", task.trace.name(), task.machine.name);
                files::write(Some(path), &plot::svg(&title, rows))?;
            }
            if args.json {
                printer::json(object)?;
            } else if args.csv {
                files::write(None, &compare::csv(rows))?;
            } else if args.ratio.is_none() {
                print(task, natural.to_string(), rows, usize::from(args.overhead.is_some()))?;
            }
        }
        _ if args.ratio.is_some() => {}
        _ if args.json => printer::json(&Traces { traces: &objects })?,
        _ if args.csv => {
            for (index, Asked { task, rows, .. }) in asked.iter().enumerate() {
                let csv = compare::csv(rows);
                let mut lines = csv.lines();
                let head = lines.next().filter(|_| index == 0).map(|head| format!("trace,{head}\n"));
                // Names of traces are free text.
                let name = task.trace.name().replace('"', "\"\"");
                let rows = lines.map(|row| format!("\"{name}\",{row}\n"));
                files::write(None, &head.into_iter().chain(rows).collect::<String>())?;
            }
        }
        _ if args.overhead.is_some() => smallest(asked)?,
        _ => overheads(asked)?,
    }
    Ok(())
}

/// Several traces, each with its own comparison.
#[derive(Serialize)]
struct Traces<'a> {
    traces: &'a [Compared<'a>],
}

/// Prints the smallest limit of every planner as a share of the natural peak, a line for each trace.
fn smallest(asked: &[Asked]) -> Result<()> {
    let mut head = ["trace", "natural peak"].map(str::to_owned).to_vec();
    // Every trace has a row for every planner, unless it was interrupted.
    let most = asked.iter().max_by_key(|asked| asked.rows.len());
    head.extend(most.iter().flat_map(|asked| &asked.rows).map(|row| row.planner.to_owned()));
    let lines = asked.iter().map(|Asked { task, natural, rows }| {
        let share = |row: &Row| match row.feasible {
            true => format!("{:.1} %", 100.0 * row.share),
            false => row.stop_reason.to_owned(),
        };
        let mut line = vec![task.trace.name().to_owned(), natural.to_string()];
        line.extend(rows.iter().map(share));
        line.resize(head.len(), String::new());
        line
    });
    printer::grid(&head, &lines.collect::<Vec<_>>())?;
    Ok(())
}

/// Prints every planner's largest ratio to a bound over the limits that it could serve, and its longest planning, a line for each trace.
fn ratios(asked: &[Asked], to: RatioTo) -> Result<()> {
    let mut head = vec!["trace".to_owned()];
    head.extend(
        planners(asked).flat_map(|name| [name.to_owned(), "limits".to_owned(), "planning".to_owned()]),
    );
    let lines = asked.iter().map(|Asked { task, rows, .. }| {
        let mut line = vec![task.trace.name().to_owned()];
        for name in planners(asked) {
            let of = || rows.iter().filter(|row| row.planner == name);
            let ratio = |row: &Row| match to {
                RatioTo::Bound => row.ratio_to_bound,
                RatioTo::Chain => row.ratio_to_chain_bound,
            };
            let served = of().filter(|row| row.feasible).count();
            let worst = of().filter_map(ratio).max_by(f64::total_cmp);
            line.push(worst.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}")));
            line.push(format!("{served}/{}", of().count()));
            line.push(of().map(|row| row.planning_ns).max().unwrap_or_default().to_string());
        }
        line
    });
    printer::grid(&head, &lines.collect::<Vec<_>>())?;
    Ok(())
}

/// Names of the planners that were asked, each once, in the order of asking.
fn planners(asked: &[Asked]) -> impl Iterator<Item = &'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for row in asked.iter().flat_map(|asked| &asked.rows) {
        if !names.contains(&row.planner) {
            names.push(row.planner);
        }
    }
    names.into_iter()
}

/// Prints the overhead of every planner, a line for each trace and limit, beside the one that no plan can go below.
fn overheads(asked: &[Asked]) -> Result<()> {
    let percent = |overhead: f64| format!("{:+.2} %", 100.0 * overhead);
    let mut head = ["trace", "memory", "bound"].map(str::to_owned).to_vec();
    head.extend(planners(asked).map(str::to_owned));
    let mut lines = Vec::new();
    for Asked { task, rows, .. } in asked {
        for rows in rows.chunk_by(|a, b| a.limit_bytes == b.limit_bytes) {
            let bound = PlanReport::overhead(rows[0].lower_bound_ns, task.costs.total());
            let mut line =
                vec![task.trace.name().to_owned(), format!("{:.0} %", 100.0 * rows[0].share), percent(bound)];
            line.extend(head[3..].iter().map(|name| {
                let row = rows.iter().find(|row| row.planner == name);
                row.map_or_else(String::new, |row| {
                    row.overhead.map_or_else(|| row.stop_reason.to_owned(), percent)
                })
            }));
            lines.push(line);
        }
    }
    printer::grid(&head, &lines)?;
    Ok(())
}

/// The comparison as one object.
#[derive(Serialize)]
struct Compared<'a> {
    trace: &'a str,
    machine: &'a str,
    /// Largest live load when everything stays, where the limits bound the load; else the height of the arena, by the baseline's packer.
    natural_peak_bytes: Bytes,
    unlimited_iteration_ns: Nanos,
    rows: &'a [Row],
}

/// As a table, with so many decimals of a limit's share.
fn print(task: &Task, natural: String, rows: &[Row], decimals: usize) -> Result<()> {
    printer::pairs([
        ("trace", task.trace.name().to_owned()),
        ("machine", task.machine.name.clone()),
        ("natural peak", natural),
        ("op times", task.costs.total().to_string()),
    ])?;
    printer::blank()?;
    let head = [
        "memory",
        "planner",
        "peak",
        "iteration",
        "overhead",
        "× bound",
        "traffic",
        "recomputed",
        "planning",
    ];
    let cells = rows.iter().map(|row| {
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "–".to_owned());
        [
            format!("{:.decimals$} %", 100.0 * row.share),
            row.planner.to_owned(),
            or_dash(row.peak_bytes.map(|bytes| bytes.to_string())),
            row.iteration_ns.map_or_else(|| row.stop_reason.to_owned(), |time| time.to_string()),
            or_dash(row.overhead.map(printer::percent)),
            or_dash(row.ratio_to_bound.map(|ratio| format!("{ratio:.3}"))),
            or_dash(row.traffic_bytes.map(|bytes| bytes.to_string())),
            or_dash(row.recomputed_ops.map(|ops| ops.to_string())),
            row.planning_ns.to_string(),
        ]
    });
    printer::table(&head, cells)?;
    Ok(())
}
