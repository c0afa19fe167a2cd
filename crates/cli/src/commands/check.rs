//! `elbowroom check`: a proof that a plan is legal, or the rules that it breaks.

use std::path::Path;

use anyhow::{Context, Result, bail};
use elbowroom::ir::Bytes;
use elbowroom::ir::check;
use elbowroom::ir::machine::Machine;
use elbowroom::ir::search::Silent;
use elbowroom::ir::text::PlanFile;
use elbowroom::pipeline::{self, Task};
use elbowroom::registry;
use elbowroom::size::MemorySpec;
use serde::Serialize;

use crate::Answer;
use crate::args::{CheckArgs, MachineArgs};
use crate::commands::judge::{By, Judge, Judged};
use crate::commands::trace::{task, trace_file};
use crate::files;
use crate::printer::{self, Row, grouped, row};

#[derive(Serialize)]
struct Verdict {
    legal: bool,
    violations: Vec<String>,
    limit_bytes: Bytes,
    limit_by: By,
    align_bytes: Bytes,
    align_by: By,
    host_limit_bytes: Bytes,
    host_limit_by: By,
    by_own_machine: bool,
    arena_bytes: Bytes,
    peak_live_bytes: Option<Bytes>,
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<Answer> {
    let trace = trace_file(&args.trace, args.inputs)?;
    let file = read_plan(&args.plan)?;
    let own_machine = trace.machine.clone();
    let task = task(&args.trace, trace, &MachineArgs::default())?;
    let judge = |memory| Judge::new(&args.judge, memory, own_machine.as_ref(), &file.machine);
    let memory = match args.judge.memory {
        None => None,
        Some(MemorySpec::Absolute(bytes)) => Some(bytes),
        Some(MemorySpec::Smallest) => {
            bail!(
                "check --memory takes a size or a share, like 600MiB or 50%; `min` takes a search: see `plan`"
            )
        }
        Some(share) => share.resolve(unconstrained_peak(&task, judge(None)?.align.bytes)?),
    };
    let judge = judge(memory)?;
    let height = file.plan.placement.height;
    let result = check::check(task.trace, judge.machine(&file.machine), file.plan);
    if args.json {
        let violations = match &result {
            Ok(_) => Vec::new(),
            Err(illegal) => illegal.violations.iter().map(ToString::to_string).collect(),
        };
        printer::json(&Verdict {
            legal: result.is_ok(),
            violations,
            limit_bytes: judge.memory.bytes,
            limit_by: judge.memory.by,
            align_bytes: judge.align.bytes,
            align_by: judge.align.by,
            host_limit_bytes: judge.host_memory.bytes,
            host_limit_by: judge.host_memory.by,
            by_own_machine: !judge.caveat().is_empty(),
            arena_bytes: height,
            peak_live_bytes: result.as_ref().ok().map(check::CheckedPlan::peak_live),
        })?;
    }
    match result {
        Ok(plan) if !args.json => {
            let (plan_name, trace_name) = (args.plan.display(), args.trace.display());
            printer::line(&format!("{plan_name} is legal for {trace_name}{}", judge.caveat()))?;
            let judged =
                |name: &str, figure: &Judged| -> Row { row(name, figure.bytes, judge.source(figure)) };
            printer::section(
                "Proof",
                &[
                    row("rules", "L1 to L10", "all hold"),
                    row("arena size", height, format!("{} bytes", grouped(height.get()))),
                    judged("limit", &judge.memory),
                    judged("alignment", &judge.align),
                    judged("host memory", &judge.host_memory),
                    row("peak live memory", plan.peak_live(), "largest sum of buffers alive at one time"),
                ],
            )?;
            Ok(Answer::Yes)
        }
        Ok(_) => Ok(Answer::Yes),
        Err(illegal) => Ok(Answer::No(judge.refusal(&args.plan, &illegal))),
    }
}

/// The unconstrained peak as `plan` finds it, so that the same share is the same limit.
fn unconstrained_peak(task: &Task, align: Bytes) -> Result<Bytes> {
    let task = Task { machine: Machine { align, ..task.machine.clone() }, ..task.clone() };
    let packer = registry::packer(registry::DEFAULT_PACKER)?;
    Ok(pipeline::unconstrained(&task, packer, &Silent)?.height())
}

/// A plan from a file, not yet proved.
pub fn read_plan(path: &Path) -> Result<PlanFile> {
    files::parse(path)?.into_plan().with_context(|| format!("cannot use {}", path.display()))
}
