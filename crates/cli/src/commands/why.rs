//! `elbowroom why`: what the peak of memory consists of, and what would lower it.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use elbowroom::ir::Bytes;
use elbowroom::ir::check::{self, CheckedPlan};
use elbowroom::ir::machine::Machine;
use elbowroom::ir::search::Budget;
use elbowroom::ir::text::TraceFile;
use elbowroom::pack::csv;
use elbowroom::pipeline::{self, Method, Planned, Task};
use elbowroom::registry;
use elbowroom::run::{self, Run};
use elbowroom::sched::deadline::Until;
use elbowroom::table::Table;
use elbowroom::why::{Group, Means, Saving, Why};

use crate::Answer;
use crate::args::{JudgeArgs, PeakArgs, WhyArgs};
use crate::commands::check::read_plan;
use crate::commands::judge::Judge;
use crate::commands::limits::{FRUGAL_PLANNER, QUICK_PACKER};
use crate::commands::trace::{cpu, task, trace_with_inputs};
use crate::printer::{self, SizeUnit, counted, row};
use crate::progress::Progress;
use crate::{files, signals};

/// Characters of a group's name that are shown. The end of a line of code is what distinguishes it.
const SHOWN: usize = 48;

/// A trace whose peak is explained.
pub struct Explained {
    /// What is planned.
    pub task: Task,
    /// The plan whose peak it is; without one it is that of the iteration without a limit.
    pub plan: Option<CheckedPlan>,
    /// The iteration without a limit.
    pub unconstrained: Planned,
    /// The explanation.
    pub why: Why,
    /// The training that the plan is from, if the file is one.
    pub run: Option<Run>,
}

/// Runs the command.
pub fn run(args: &WhyArgs) -> Result<Answer> {
    let why = match explain(&args.peak)? {
        Ok(explained) => explained.why,
        Err(refusal) => return Ok(refusal),
    };
    if args.json {
        printer::json(&why)?;
    } else {
        print(&why)?;
    }
    Ok(Answer::Yes)
}

/// Reads a trace and maybe a plan, and explains the peak; the inner error is the answer to an illegal plan.
pub fn explain(args: &PeakArgs) -> Result<Result<Explained, Answer>> {
    let end = Instant::now().checked_add(args.time);
    let bytes = files::content(&args.trace, "a file with a trace, or a table of buffers")?;
    let table = files::is_table(&bytes).then(|| table(args, &bytes)).transpose()?;
    let run = run_of(args, &bytes)?;
    let file = match (&table, &run) {
        (_, Some(run)) => run.trace.clone(),
        (Some(Table { imported, align, .. }), None) => TraceFile {
            trace: imported.trace.clone(),
            costs: Some(imported.costs.clone()),
            machine: Some(Machine { align: *align, ..cpu()? }),
        },
        (None, None) => trace_with_inputs(&args.trace, &bytes, args.inputs)?,
    };
    let own_machine = file.machine.clone();
    let task = task(&args.trace, file, &args.machine)?;
    let plan_file = match (&run, &args.plan) {
        (Some(run), _) => Some((&args.trace, run.plan.clone())),
        (None, Some(path)) => Some((path, read_plan(path)?)),
        (None, None) => None,
    };
    let mut plan = match plan_file {
        None => None,
        Some((path, file)) => {
            let judge = Judge::new(&JudgeArgs::default(), None, own_machine.as_ref(), &file.machine)?;
            match check::check(task.trace.clone(), judge.machine(&file.machine), file.plan) {
                Ok(plan) => Some(plan),
                Err(illegal) => return Ok(Err(Answer::No(judge.refusal(path, &illegal)))),
            }
        }
    };
    let progress = Progress::new("explaining the peak");
    signals::catch();
    let budget = Budget { time: Some(args.time), ..Budget::default() };
    let packer = registry::packer(registry::DEFAULT_PACKER)?;
    let quick = registry::packer(QUICK_PACKER)?;
    let planner = registry::planner(registry::DEFAULT_PLANNER)?;
    let method = Method::new(planner, packer, budget.clone()).at_once_within_time();
    let smallest = Method::new(registry::planner(FRUGAL_PLANNER)?, quick, budget).at_once_within_time();
    let unconstrained = pipeline::unconstrained(&task, packer, &progress)?;
    if let Some(table) = table {
        plan = match table.placed(&task, &unconstrained) {
            Ok(placed) => placed,
            Err(illegal) => {
                let file = args.trace.display();
                return Ok(Err(Answer::No(format!(
                    "the offsets in {file} are no legal placement: {illegal}"
                ))));
            }
        };
    }
    let means = Means { method: &method, smallest: &smallest };
    let why = Why::of(&task, plan.as_ref(), &unconstrained, &means, &Until::new(&progress, end));
    Ok(Ok(Explained { task, plan, unconstrained, why, run }))
}

/// The finished training in a file that holds one.
fn run_of(args: &PeakArgs, bytes: &[u8]) -> Result<Option<Run>> {
    let Some(text) = std::str::from_utf8(bytes).ok().filter(|text| run::is_run(text)) else {
        return Ok(None);
    };
    let name = args.trace.display();
    if let Some(plan) = &args.plan {
        bail!("{name} is a finished training, which has its plan in it; leave out {}", plan.display());
    }
    let run = Run::parse(text).with_context(|| {
        format!(
            "{name} is no finished training that this version can read; write it again with train --report"
        )
    })?;
    Ok(Some(run))
}

/// A table of buffers, for which there is no plan but its own offsets.
fn table(args: &PeakArgs, bytes: &[u8]) -> Result<Table> {
    let name = args.trace.display().to_string();
    if let Some(plan) = &args.plan {
        bail!("{name} is a table of buffers, and {} is for a trace; give the table alone", plan.display());
    }
    let text = files::text(&args.trace, bytes, "a table of buffers")?;
    let buffers = csv::read(text).with_context(|| format!("cannot read {name}"))?;
    Ok(Table::new(&buffers, &name)?)
}

/// Prints the peak in words, then its groups, then the suggestions.
fn print(why: &Why) -> Result<()> {
    let of = if why.planned { "the plan" } else { "the iteration without a limit" };
    printer::line(&format!("{} on {}: the peak of {of}", why.trace, why.machine))?;
    let peak = &why.peak;
    let phase = format!("{:?}", peak.phase).to_lowercase();
    let place = if why.allocations_only {
        format!("at event {}, {}", peak.number, peak.op)
    } else {
        format!("during op {}, {} ({phase})", peak.number, peak.op)
    };
    let kinds: Vec<String> =
        why.kinds.iter().map(|share| format!("{} {}", share.kind.name(), share.bytes)).collect();
    let mut rows = vec![
        row("peak live memory", why.peak_live_bytes, place),
        row(
            "of it",
            kinds.first().cloned().unwrap_or_default(),
            kinds.get(1..).unwrap_or_default().join(", "),
        ),
    ];
    if !why.allocations_only {
        rows.push(row("in use", why.in_use_bytes, "read or written by the op at the peak: it cannot leave"));
    }
    rows.push(row("arena size", why.arena_bytes, format!("{} fragmentation", why.fragmentation_bytes)));
    if !why.allocations_only {
        rows.push(row("lower bound on limit", why.floor_bytes, format!("decided by op {}", why.floor_op)));
    }
    if let Some(limit) = why.smallest_limit_bytes {
        rows.push(row("smallest limit found", limit, "smaller ones may work too"));
    }
    if let Some(saving) = &why.prompt_updates {
        let note = format!("less if each update runs right behind its gradient ({})", saving.peak_bytes);
        rows.push(row("order of updates", saving.saved_bytes, note));
    }
    if why.unevaluated_groups > 0 {
        let note = "whose savings were not evaluated: --time ended";
        rows.push(row("groups left out", why.unevaluated_groups, note));
    }
    printer::section("Peak", &rows)?;
    groups(why)?;
    suggestions(why)
}

/// Prints the groups as a table.
fn groups(why: &Why) -> Result<()> {
    let sizes = SizeUnit::for_size(why.peak_live_bytes);
    printer::line("")?;
    printer::line("Groups of tensors, most bytes at the peak first")?;
    printer::line(
        "  without: how far the peak falls if nothing of the group existed; then another moment is the peak",
    )?;
    let treated = !why.planned && !why.allocations_only;
    if treated {
        printer::line(
            "  offload, recompute: how far it falls if this is done to what is idle there, and the overhead",
        )?;
    }
    let saved = |group: &Group| sizes.number(why.peak_live_bytes.saturating_sub(group.peak_without_bytes));
    let saving = |saving: &Option<Saving>| match saving {
        Some(saving) => [sizes.number(saving.saved_bytes), printer::percent(saving.overhead)],
        None => ["-".to_owned(), String::new()],
    };
    let line = |group: &Group| {
        let mut cells = vec![
            group.kind.name().to_owned(),
            shortened(&group.module),
            sizes.number(group.bytes),
            group.tensors.to_string(),
            saved(group),
        ];
        if treated {
            cells.extend(saving(&group.offload));
            cells.extend(saving(&group.recompute));
        }
        cells
    };
    let mut head = printer::head([
        ("kind", ""),
        ("module", ""),
        ("at peak", sizes.name),
        ("tensors", ""),
        ("without", sizes.name),
    ]);
    if treated {
        let columns = printer::head([("offload", sizes.name), ("", ""), ("recompute", sizes.name), ("", "")]);
        head.iter_mut().zip(columns).for_each(|(line, more)| line.extend(more));
    }
    let mut rows: Vec<Vec<String>> = why.groups.iter().map(line).collect();
    if !why.other_bytes.is_zero() {
        let mut rest = vec!["others".to_owned(), String::new(), sizes.number(why.other_bytes)];
        rest.resize(head[0].len(), String::new());
        rows.push(rest);
    }
    printer::table(2, &head, &rows)?;
    let elsewhere =
        |group: &&Group| group.peak_without_bytes == why.peak_live_bytes && group.most_bytes > Bytes::ZERO;
    for group in why.groups.iter().filter(elsewhere) {
        printer::line(&format!(
            "Offloading {} {} saves 0 bytes of the peak: its {} are alive at another time.",
            group.kind.name(),
            group.module,
            group.most_bytes
        ))?;
    }
    Ok(())
}

/// Prints the suggestions as a list.
fn suggestions(why: &Why) -> Result<()> {
    if why.suggestions.is_empty() {
        return Ok(());
    }
    printer::line("")?;
    printer::line(&format!("What lowers it ({})", counted(why.suggestions.len() as u64, "suggestion")))?;
    for suggestion in &why.suggestions {
        printer::line(&format!("  - {}", suggestion.text))?;
    }
    Ok(())
}

/// A name without its beginning if it is too long.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= SHOWN {
        return name.to_owned();
    }
    let end: String = name.chars().skip(count + 1 - SHOWN).collect();
    format!("…{end}")
}
