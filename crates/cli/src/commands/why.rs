//! `elbowroom why`: what the peak of memory consists of, and what would lower it.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use elbowroom::ir::check::{self, CheckedPlan};
use elbowroom::ir::machine::Machine;
use elbowroom::ir::text::TraceFile;
use elbowroom::pack::csv;
use elbowroom::pipeline::{self, Planned, Task};
use elbowroom::registry;
use elbowroom::run::{self, Run};
use elbowroom::table::Table;
use elbowroom::why::Why;

use crate::Answer;
use crate::args::{JudgeArgs, PeakArgs, WhyArgs};
use crate::commands::check::read_plan;
use crate::commands::judge::Judge;
use crate::commands::trace::{cpu, task, trace_with_inputs};
use crate::printer;
use crate::progress::Progress;
use crate::{files, signals};

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
        printer::text(&why.to_string())?;
    }
    Ok(Answer::Yes)
}

/// Reads a trace and maybe a plan, and explains the peak; the inner error is the answer to an illegal plan.
pub fn explain(args: &PeakArgs) -> Result<Result<Explained, Answer>> {
    let started = Instant::now();
    let bytes = files::content(&args.trace, "a file with a trace, or a table of buffers")?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        bail!(
            "{} is empty; name a trace, a finished training (train --report), or a table of buffers",
            args.trace.display()
        );
    }
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
    let packer = registry::packer(registry::DEFAULT_PACKER)?;
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
    let left = args.time.saturating_sub(started.elapsed());
    let why = Why::within(left, &task, plan.as_ref(), &unconstrained, &progress)?;
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
