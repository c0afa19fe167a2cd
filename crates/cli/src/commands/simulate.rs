//! `elbowroom simulate`: what an iteration of a plan would take on a machine.

use anyhow::Result;
use elbowroom::choices::Choices;
use elbowroom::ir::check;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline;
use elbowroom::report::PlanReport;
use elbowroom::sim;
use serde::Serialize;

use crate::Answer;
use crate::args::{JudgeArgs, MachineArgs, SimulateArgs};
use crate::commands::check::read_plan;
use crate::commands::explain::{self, Explained};
use crate::commands::export;
use crate::commands::judge::Judge;
use crate::commands::trace::{task, trace_file};
use crate::printer::{self, counted, grouped, row};
use crate::settings;

#[derive(Serialize)]
struct Prediction {
    trace: String,
    machine: String,
    limit_bytes: Bytes,
    arena_bytes: Bytes,
    peak_live_bytes: Bytes,
    iteration_ns: Nanos,
    unlimited_iteration_ns: Nanos,
    durations: &'static str,
    lower_bound_ns: Nanos,
    ratio_to_bound: f64,
    overhead: f64,
    compute_idle_ns: Nanos,
    recompute_ns: Nanos,
    recomputed_ops: usize,
    to_host_bytes: Bytes,
    to_device_bytes: Bytes,
}

/// Runs the command.
pub fn run(args: &SimulateArgs) -> Result<Answer> {
    let trace = trace_file(&args.trace, args.inputs)?;
    let file = read_plan(&args.plan)?;
    // Another machine changes speeds and link. The proof is for the machine of the trace, and the plan's memory is its limit.
    // A plan that was made for the machine that the user names is aligned for that one.
    let named = args.machine.machine.as_deref().and_then(sim::presets::machine);
    let align = match (args.machine.align, &named, &trace.machine) {
        (None, Some(named), Some(traced)) => Some(named.align.min(traced.align)),
        (align, ..) => align,
    };
    let judge_args = JudgeArgs { align, ..JudgeArgs::default() };
    let judge = Judge::new(&judge_args, None, trace.machine.as_ref(), &file.machine)?;
    // A plan for another machine is simulated on that machine, with its durations.
    let traced = trace.machine.as_ref().map(|machine| &machine.name);
    let planned = Some(&file.machine.name).filter(|&name| traced.is_some_and(|traced| traced != name));
    let own = planned.filter(|name| args.machine.machine.is_none() && sim::presets::machine(name).is_some());
    let by_plan =
        MachineArgs { machine: args.machine.machine.clone().or(own.cloned()), ..args.machine.clone() };
    let task = task(&args.trace, trace, &by_plan)?;
    let memory = judge.memory.bytes;
    let is_named = args.machine.machine.is_some() || args.machine.link.is_some();
    let machine = if is_named {
        task.machine.clone().with_memory(memory)
    } else {
        settings::machine(&args.machine, file.machine.clone())?
    };
    let plan = match check::check(task.trace.clone(), judge.machine(&file.machine), file.plan) {
        Ok(plan) => plan,
        Err(illegal) => return Ok(Answer::No(judge.refusal(&args.plan, &illegal))),
    };
    let timeline = sim::simulate(&task.trace, &task.costs, &machine, plan.schedule())?;
    export::write(&plan, &timeline, args.timeline.as_deref(), args.snapshot.as_deref())?;
    let unlimited = task.costs.total();
    let task = pipeline::Task { machine, ..task };
    let bound = pipeline::lower_bound(&task);
    let explanation = args.explain.then(|| Choices::of(&task, plan.schedule(), &timeline));
    let prediction = Prediction {
        trace: task.trace.name().to_owned(),
        machine: task.machine.name.clone(),
        limit_bytes: memory,
        arena_bytes: plan.placement().height,
        peak_live_bytes: timeline.peak_live,
        iteration_ns: timeline.iteration,
        unlimited_iteration_ns: unlimited,
        durations: task.costs.source.name(),
        lower_bound_ns: bound,
        ratio_to_bound: timeline.iteration.ratio(bound),
        overhead: PlanReport::overhead(timeline.iteration, unlimited),
        compute_idle_ns: timeline.compute_idle,
        recompute_ns: timeline.recompute_time,
        recomputed_ops: timeline.recomputed,
        to_host_bytes: timeline.traffic.to_host,
        to_device_bytes: timeline.traffic.to_device,
    };
    if args.json {
        printer::json(&Explained { report: &prediction, explanation: explanation.as_ref() })?;
        return Ok(Answer::Yes);
    }
    print(&prediction)?;
    explanation.as_ref().map_or(Ok(()), explain::print)?;
    Ok(Answer::Yes)
}

/// Prints the prediction: the result first, then what the streams do.
fn print(p: &Prediction) -> Result<()> {
    printer::line(&format!("{} on {}", p.trace, p.machine))?;
    let against =
        format!("{} against {} without a limit", printer::percent(p.overhead), p.unlimited_iteration_ns);
    let share = 100.0 * p.arena_bytes.ratio(p.limit_bytes);
    printer::section(
        "Result",
        &[
            row("iteration time", p.iteration_ns, against),
            row("lower bound on time", p.lower_bound_ns, printer::optimality(p.ratio_to_bound)),
            row(
                "arena size",
                p.arena_bytes,
                format!("{} bytes, {share:.1} % of the limit", grouped(p.arena_bytes.get())),
            ),
            row("limit", p.limit_bytes, "of the plan"),
        ],
    )?;
    let ops = counted(p.recomputed_ops as u64, "op");
    printer::section(
        "Iteration",
        &[
            row("peak live memory", p.peak_live_bytes, "largest sum of buffers alive at one time"),
            row("compute idle", p.compute_idle_ns, "the compute stream waits for copies"),
            row("recomputed", p.recompute_ns, ops),
            row("offloaded", p.to_host_bytes, "copied to the host in one iteration"),
            row("prefetched", p.to_device_bytes, "copied to the device in one iteration"),
        ],
    )?;
    Ok(())
}
