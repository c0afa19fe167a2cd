//! `elbowroom check`: a proof that a plan is legal, or the rules that it breaks.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use elbowroom::ir::check::{self, CheckedPlan};
use elbowroom::ir::text::PlanFile;
use elbowroom::ir::trace::Trace;
use serde::Serialize;

use crate::Answer;
use crate::args::{CheckArgs, MachineArgs};
use crate::commands::trace::traced;
use crate::files;
use crate::printer::{self, grouped, row};

#[derive(Serialize)]
struct Verdict {
    legal: bool,
    violations: Vec<String>,
    limit_bytes: u64,
    arena_bytes: u64,
    peak_live_bytes: Option<u64>,
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> Result<Answer> {
    let task = traced(&args.trace, &MachineArgs::default())?;
    let file = read_plan(&args.plan)?;
    let (limit, height) = (file.machine.memory, file.plan.placement.height);
    let result = prove(task.trace, file);
    if args.json {
        let violations = match &result {
            Ok(_) => Vec::new(),
            Err(illegal) => illegal.violations.iter().map(ToString::to_string).collect(),
        };
        printer::json(&Verdict {
            legal: result.is_ok(),
            violations,
            limit_bytes: limit.get(),
            arena_bytes: height.get(),
            peak_live_bytes: result.as_ref().ok().map(|plan| plan.peak_live().get()),
        })?;
    }
    match result {
        Ok(plan) if !args.json => {
            printer::line(&format!("{} is legal for {}", args.plan.display(), args.trace.display()))?;
            printer::section(
                "Proof",
                &[
                    row("rules", "L1 to L10", "all hold"),
                    row("arena size", height, format!("{} bytes", grouped(height.get()))),
                    row("limit", limit, ""),
                    row("peak live memory", plan.peak_live(), "largest sum of buffers alive at one time"),
                ],
            )?;
            Ok(Answer::Yes)
        }
        Ok(_) => Ok(Answer::Yes),
        Err(illegal) => Ok(Answer::No(format!("{} is not legal: {illegal}", args.plan.display()))),
    }
}

/// A plan from a file, not yet believed.
pub fn read_plan(path: &Path) -> Result<PlanFile> {
    files::parse(path)?.into_plan().with_context(|| format!("cannot use {}", path.display()))
}

/// Proves a plan for a trace, on the machine it was made for.
pub fn prove(trace: Arc<Trace>, file: PlanFile) -> Result<CheckedPlan, check::Illegal> {
    check::check(trace, file.machine, file.plan)
}
