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
use crate::{files, printer};

#[derive(Serialize)]
struct Verdict {
    legal: bool,
    violations: Vec<String>,
    limit_bytes: u64,
    height_bytes: u64,
    peak_load_bytes: Option<u64>,
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
            height_bytes: height.get(),
            peak_load_bytes: result.as_ref().ok().map(|plan| plan.peak_load().get()),
        })?;
    }
    match result {
        Ok(plan) if !args.json => {
            printer::pairs([
                ("legal", "yes, by rules L1 to L10".to_owned()),
                ("limit", limit.to_string()),
                ("height", format!("{height} ({} bytes)", height.get())),
                ("peak load", plan.peak_load().to_string()),
            ])?;
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
