//! The report of `elbowroom train` as it is printed.

use std::path::Path;

use anyhow::Result;
use elbowroom::graph::op::Algorithm;
use elbowroom::ir::Bytes;
use elbowroom::report::{HostKind, PlanReport, TrainReport};

use crate::commands::plan;
use crate::printer::{self, Row, counted, grouped, row};

/// Prints the report: the result first, then limit, plan, traffic and execution. `save` is the file of the checkpoint, if one was requested.
pub fn print(report: &TrainReport, save: Option<&Path>) -> Result<()> {
    let mut rows = result(report);
    if let Some((path, iterations)) = save.zip(report.saved.saved_iterations) {
        rows.push(row("checkpoint", counted(iterations, "iteration"), format!("in {}", path.display())));
    }
    if report.losses.is_empty() {
        rows.splice(0..0, computed(report));
    }
    printer::section("Result", &rows)?;
    let mut limit = plan::limit(&report.plan);
    limit.extend(resident(report));
    printer::section("Limit", &limit)?;
    if report.execution.planned_iterations > 0 {
        printer::section("Plan", &predicted(&report.plan))?;
        printer::section("Search", &plan::search(&report.plan))?;
    }
    printer::section("Traffic in the last iteration", &traffic(report))?;
    printer::section("Execution", &execution(report))?;
    printer::section("Process", &[row("threads", report.threads, "")])?;
    Ok(())
}

/// What forward iterations computed.
fn computed(report: &TrainReport) -> Vec<Row> {
    let iterations = report.execution.planned_iterations + report.execution.dynamic_iterations;
    let iterations = counted(iterations, "iteration");
    let Some(&samples) = report.eval_samples.first() else {
        return vec![row("computed", iterations, "the forward part; without labels there is no loss")];
    };
    let mut rows =
        vec![row("computed", counted(samples, "sample"), format!("the forward part, {iterations}"))];
    rows.extend(evaluated(report));
    rows
}

/// The last evaluation: mean loss, accuracy, and the perplexity of language models.
pub fn evaluated(report: &TrainReport) -> Vec<Row> {
    let last = (report.eval_loss.last(), report.eval_accuracy.last(), report.eval_labels.last());
    let (Some(loss), Some(accuracy), Some(&labels)) = last else { return Vec::new() };
    let mut rows = vec![
        row("loss", format!("{loss:.6}"), "mean over all labels"),
        row("accuracy", format!("{:.2} %", 100.0 * accuracy), format!("of {}", counted(labels, "label"))),
    ];
    rows.extend(
        report.eval_perplexity.last().map(|perplexity| row("perplexity", format!("{perplexity:.3}"), "")),
    );
    rows
}

/// Resident memory next to the limit.
fn resident(report: &TrainReport) -> Option<Row> {
    let bytes = report.peak_resident_bytes?;
    let above = bytes.saturating_sub(report.plan.limit_bytes);
    let copies = report.host_reserved_bytes;
    let host = match report.host_kind {
        HostKind::Memory => format!("; host copies are in memory, as asked for: {copies} reserved"),
        HostKind::FolderInMemory => format!(
            "; host copies are in {}, which is memory: {copies} reserved, not counted here",
            report.host
        ),
        _ => String::new(),
    };
    let note = format!("peak of the whole process, program code included: the limit and {above}{host}");
    Some(row("resident memory", bytes, note))
}

/// What the run measured.
fn result(report: &TrainReport) -> Vec<Row> {
    let peak = report.measured_peak_bytes;
    let exact = if report.execution.planned_iterations == 0 {
        "no plan to compare with"
    } else if peak == report.plan.predicted_peak_bytes {
        "exactly as planned"
    } else {
        "NOT as planned"
    };
    let above =
        if report.arena_above_intact { "no byte above was written" } else { "bytes above were WRITTEN" };
    let baseline = match report.measured_unlimited_iteration_ns {
        Some(time) => format!("{time} of the run without a limit"),
        None => "the sum of the measured op times".to_owned(),
    };
    let overhead = printer::percent(report.measured_overhead);
    let mut rows = vec![
        row("measured peak", peak, format!("{} bytes, {exact}; {above}", grouped(peak.get()))),
        row(
            "iteration time",
            report.measured_iteration_ns,
            format!("measured median; {overhead} against {baseline}"),
        ),
        row(
            "throughput",
            format!("{:.1}", report.samples_per_second),
            format!("samples/s in batches of {}", report.batch),
        ),
    ];
    if let Some(verified) = report.verified {
        let results = if report.losses.is_empty() { "results" } else { "losses and all parameters" };
        rows.push(if verified {
            row("verified", "bit-exact", format!("{results} equal those of the run without a limit"))
        } else {
            row("verified", "NOT EQUAL", format!("{results} differ from those of the run without a limit"))
        });
    }
    rows
}

/// What the last plan predicts for one iteration.
fn predicted(report: &PlanReport) -> Vec<Row> {
    let mut rows = Vec::new();
    if let Some(arena) = report.arena_bytes {
        rows.push(row("arena size", arena, "predicted"));
    }
    let against = format!("predicted; {} against the sum of the op times", printer::percent(report.overhead));
    rows.push(row("iteration time", report.iteration_ns, against));
    rows.push(plan::bound(report));
    rows.extend(plan::decisions(report));
    rows
}

/// What the last iteration copied and recomputed.
fn traffic(report: &TrainReport) -> Vec<Row> {
    let rate = |rate: u64| format!("{:.2} GB/s measured when training began", rate as f64 / 1e9);
    let recomputed = row("recomputed", counted(report.measured_recomputed_ops as u64, "op"), "");
    let host = match report.host_kind {
        HostKind::None => {
            let none = "no folder on a disk was found, so nothing is offloaded: --host names one";
            return vec![row("offloaded", Bytes::ZERO, none), recomputed];
        }
        HostKind::Memory => "host memory".to_owned(),
        HostKind::FolderInMemory => format!("{} (memory)", report.host),
        _ => report.host.clone(),
    };
    vec![
        row("offloaded", report.measured_to_host_bytes, format!("to {host}; {}", rate(report.to_host_rate))),
        row(
            "prefetched",
            report.measured_to_device_bytes,
            format!("from {host}; {}", rate(report.to_device_rate)),
        ),
        recomputed,
    ]
}

/// Why iterations ran without a plan.
fn unplanned(report: &TrainReport) -> String {
    let underived = report.execution.underived_iterations;
    match &report.underived_reason {
        Some(why) if underived > 0 => {
            let iterations = counted(underived, "iteration");
            format!("without a plan, under the same limit; none was derived for {iterations}: {why}")
        }
        _ => "without a plan, under the same limit".to_owned(),
    }
}

/// How many plans there were.
fn plans(report: &TrainReport) -> String {
    let execution = &report.execution;
    let made = counted(execution.plans_made, "plan");
    match execution.derived_plans {
        0 => format!("{made} made while training"),
        derived => format!(
            "{made} made while training, {derived} derived from the plan of the largest structure for {}",
            counted(execution.derived_iterations, "iteration")
        ),
    }
}

/// How the iterations were executed, with and without a plan.
fn execution(report: &TrainReport) -> Vec<Row> {
    let execution = &report.execution;
    let structures = counted(execution.structures, "structure");
    let mut rows = vec![
        row("planned iterations", execution.planned_iterations, plans(report)),
        row("dynamic iterations", execution.dynamic_iterations, unplanned(report)),
    ];
    if execution.dynamic_iterations > 0 {
        let time = execution.dynamic_iteration_ns.unwrap_or_default();
        rows.extend([
            row("  iteration time", time, "median"),
            row("  peak", execution.dynamic_peak_bytes, ""),
            row("  evicted", execution.dynamic_evictions, "tensors released without a copy"),
            row("  offloaded", execution.dynamic_offloads, "tensors"),
            row("  recomputed", execution.dynamic_recomputed_ops, "ops"),
            row(
                "  compacted",
                execution.compacted_bytes,
                format!("moved in {}", counted(execution.compactions, "compaction")),
            ),
        ]);
    }
    rows.push(row("structures", execution.structures, format!("the network ran in {structures}")));
    if !execution.switch_moved_bytes.is_zero() {
        let note = "persistent tensors moved when a plan began to be followed";
        rows.push(row("plan changes", execution.switch_moved_bytes, note));
    }
    if let Some(largest) = report.tiled_weights.iter().map(|weight| weight.tile_bytes).max() {
        let weights = report.tiled_weights.iter();
        let weights = weights.map(|weight| format!("{} in {}", weight.name, weight.tiles));
        let note = format!("tiles of at most {largest}, each updated right behind its gradient");
        rows.push(row("tiled weights", weights.collect::<Vec<_>>().join(", "), note));
    }
    // If all convolutions use the default algorithm, the row is omitted.
    if report.algorithms.keys().any(|&algorithm| algorithm != Algorithm::default().name()) {
        let counts = report.algorithms.iter().map(|(name, count)| format!("{count} {name}"));
        rows.push(row("convolutions", counts.collect::<Vec<_>>().join(", "), ""));
    }
    rows
}
