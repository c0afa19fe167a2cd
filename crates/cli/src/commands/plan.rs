//! `elbowroom plan`: a traced iteration, planned under a limit.

use anyhow::Result;
use elbowroom::choices::Choices;
use elbowroom::explain::Refusal;
use elbowroom::ir::Bytes;
use elbowroom::ir::text::{File, PlanFile};
use elbowroom::picture;
use elbowroom::pipeline::{self, Method, PlanError, Task};
use elbowroom::report::PlanReport;
use elbowroom::size::MemorySpec;

use crate::Answer;
use crate::args::PlanArgs;
use crate::commands::explain::{self, Explained};
use crate::commands::trace::traced;
use crate::progress::{self, Progress};
use crate::{files, learning, printer, settings};

/// Runs the command.
pub fn run(args: &PlanArgs) -> Result<Answer> {
    let method = settings::method(&args.planner)?;
    let task =
        Task { freedom: settings::freedom(&args.planner.freedom), ..traced(&args.trace, &args.machine)? };
    let progress = Progress::new("planning");
    progress::heed_ctrl_c();
    let natural = pipeline::natural(&task, method.packer, &progress)?.height();

    if let Some(limit) = args.load_limit {
        return by_load(args, &task, &method, limit, natural, &progress);
    }
    let memory = args.memory.unwrap_or(MemorySpec::Share(1.0));
    let planned = match memory.resolve(natural) {
        Some(limit) => pipeline::plan(&task.with_memory(limit), &method, &progress),
        None => pipeline::smallest(&task, &method, natural, &progress),
    };
    let planned = match planned {
        Ok(planned) => planned,
        Err(error) => return refuse(args.json, &task, &method, natural, error, &progress),
    };
    let limited = task.with_memory(planned.plan.machine().memory);
    let report = heard(PlanReport::new(&limited, &method, natural, &planned), &progress);
    learning::save(&args.learned, &progress.learned())?;
    drop(progress);
    if let Some(path) = &args.svg {
        files::write(Some(path), &picture::svg(&planned.plan, &planned.predicted))?;
    }
    if let Some(path) = &args.output {
        let file = PlanFile { machine: limited.machine.clone(), plan: planned.plan.plan().clone() };
        files::write(Some(path), &File::Plan(Box::new(file)).to_string())?;
    }
    let explanation =
        args.explain.then(|| Choices::of(&limited, planned.plan.schedule(), &planned.predicted));
    tell(args, &report, explanation.as_ref())
}

/// A report with what only those who heard the search know.
fn heard(mut report: PlanReport, progress: &Progress) -> PlanReport {
    report.reproduce_with = report.reproduce_with.filter(|_| !progress::interrupted());
    report.found_by = progress.origin();
    report
}

/// Prints what a plan promises, and why it is as it is if that was asked for.
fn tell(args: &PlanArgs, report: &PlanReport, explanation: Option<&Choices>) -> Result<Answer> {
    if args.json {
        printer::json(&Explained { report, explanation })?;
    } else {
        print(report)?;
        explanation.map_or(Ok(()), explain::print)?;
    }
    Ok(Answer::Yes)
}

/// The same with a limit on the load: nothing is placed, nothing can be written to a file.
fn by_load(
    args: &PlanArgs,
    task: &Task,
    method: &Method<'_>,
    limit: MemorySpec,
    natural: Bytes,
    progress: &Progress,
) -> Result<Answer> {
    let Some(limit) = limit.resolve(natural) else {
        anyhow::bail!("--load-limit takes a size or a share; `min` is for --memory");
    };
    let limited = task.with_memory(limit);
    let planned = match pipeline::plan_load(&limited, method, &[], progress) {
        Ok(planned) => planned,
        Err(error) => return refuse(args.json, task, method, natural, error, progress),
    };
    let report = heard(PlanReport::of_load(&limited, method, natural, &planned), progress);
    learning::save(&args.learned, &progress.learned())?;
    let schedule = planned.schedule.schedule();
    let explanation = args.explain.then(|| Choices::of(&limited, schedule, &planned.predicted));
    tell(args, &report, explanation.as_ref())
}

/// Explains why there is no plan, with the smallest limit that works.
pub fn refuse(
    json: bool,
    task: &Task,
    method: &Method<'_>,
    natural: Bytes,
    error: PlanError,
    progress: &Progress,
) -> Result<Answer> {
    progress.say("looking for the smallest limit that works");
    let smallest = pipeline::smallest(task, &method.at_once(), natural, progress)
        .ok()
        .map(|planned| planned.plan.machine().memory);
    match Refusal::new(&task.trace, &error, smallest) {
        Some(refusal) => {
            if json {
                printer::json(&refusal)?;
            }
            Ok(Answer::No(refusal.sentence()))
        }
        None => Err(error.into()),
    }
}

/// What a plan promises, as a table.
pub fn print(report: &PlanReport) -> Result<()> {
    let mut planner = format!("{} ({})", report.planner, report.stop_reason);
    if let Some(found_by) = &report.found_by {
        planner += &format!(", found by {found_by}");
    }
    let mut rows = vec![
        ("trace", report.trace.clone()),
        ("machine", report.machine.clone()),
        ("planner", planner),
        ("natural peak", report.unconstrained_peak_bytes.to_string()),
    ];
    let share = 100.0 * report.limit_bytes.ratio(report.unconstrained_peak_bytes);
    match report.arena_bytes {
        Some(height) => {
            rows.push((
                "limit",
                format!("{} of arena ({share:.1} % of the natural peak)", report.limit_bytes),
            ));
            rows.push(("peak", format!("{height} ({} bytes)", height.get())));
            let least = report.largest_op_bytes;
            rows.push(("smallest limit", format!("{least} or more, because of {}", report.largest_op)));
        }
        None => {
            rows.push(("load limit", format!("{} ({share:.1} % of the natural peak)", report.limit_bytes)))
        }
    }
    rows.extend([
        ("peak load", report.peak_live_bytes.to_string()),
        ("iteration", format!("{} ({})", report.iteration_ns, printer::percent(report.overhead))),
        ("unlimited", report.unlimited_iteration_ns.to_string()),
        ("lower bound", printer::bound(report.lower_bound_ns, report.ratio_to_bound)),
        ("traffic", format!("{} to the host, {} back", report.to_host_bytes, report.to_device_bytes)),
        ("recomputed", format!("{} ops", report.recomputed_ops)),
        ("planning", report.planning_ns.to_string()),
    ]);
    if let Some(again) = &report.reproduce_with {
        rows.push(("again", format!("the same plan with {again}")));
    }
    printer::pairs(rows)?;
    Ok(())
}
