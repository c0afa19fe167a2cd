//! `elbowroom report`: a plan, a trace or a finished training as one page for the browser.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use elbowroom::ir::Bytes;
use elbowroom::page::{self, Figures, Subject};
use elbowroom::sim;
use serde::Serialize;

use crate::Answer;
use crate::args::ReportArgs;
use crate::commands::why::{Explained, explain};
use crate::files;
use crate::printer;

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<Answer> {
    let Explained { task, plan, unconstrained, why, run } = match explain(&args.peak)? {
        Ok(explained) => explained,
        Err(refusal) => return Ok(refusal),
    };
    let predicted = match &plan {
        Some(plan) => sim::simulate(&task.trace, &task.costs, &task.machine, plan.schedule())?,
        None => unconstrained.predicted.clone(),
    };
    let (plan, run) = (plan.as_ref(), run.as_ref());
    let page::Report { html, figures, .. } = page::report(&Subject {
        task: &task,
        plan,
        unconstrained: &unconstrained,
        predicted: &predicted,
        why: &why,
        run,
    });
    files::write(Some(&args.output), &html)?;
    let size = Bytes(html.len() as u64);
    if args.json {
        printer::json(&Written { figures, page: args.output.display().to_string(), page_bytes: size })?;
    } else {
        printer::line(&format!("{}: {size}, open it in a browser", args.output.display()))?;
    }
    if args.open {
        open(&args.output)?;
    }
    Ok(Answer::Yes)
}

/// What was written, as one object.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    figures: Figures<'a>,
    page: String,
    page_bytes: Bytes,
}

/// Opens a file with the program that the system has for it.
fn open(path: &Path) -> Result<()> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().with_context(|| format!("cannot run {program}; open {} yourself", path.display()))?;
    Ok(())
}
