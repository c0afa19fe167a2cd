//! `elbowroom report`: a plan or a trace as one page for the browser.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use elbowroom::{page, sim};

use crate::Answer;
use crate::args::ReportArgs;
use crate::commands::why::{Explained, explain};
use crate::files;
use crate::printer;

/// Runs the command.
pub fn run(args: &ReportArgs) -> Result<Answer> {
    let Explained { task, plan, unconstrained, why } = match explain(&args.peak)? {
        Ok(explained) => explained,
        Err(refusal) => return Ok(refusal),
    };
    let predicted = match &plan {
        Some(plan) => sim::simulate(&task.trace, &task.costs, &task.machine, plan.schedule())?,
        None => unconstrained.predicted.clone(),
    };
    let html = page::html(&task, plan.as_ref(), &unconstrained, &predicted, &why);
    files::write(Some(&args.output), &html)?;
    printer::line(&format!(
        "{}: {}, open it in a browser",
        args.output.display(),
        elbowroom::ir::Bytes(html.len() as u64)
    ))?;
    if args.open {
        open(&args.output)?;
    }
    Ok(Answer::Yes)
}

/// Opens a file with the program that the system has for it.
fn open(path: &Path) -> Result<()> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    command.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().with_context(|| format!("cannot run {program}; open {} yourself", path.display()))?;
    Ok(())
}
