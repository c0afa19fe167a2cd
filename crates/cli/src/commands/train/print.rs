//! The report of `elbowroom train` as it is printed.

use anyhow::Result;
use elbowroom::graph::op::Algorithm;
use elbowroom::ir::Bytes;
use elbowroom::report::{Execution, TrainReport};
use serde::Serialize;

use crate::commands::plan;
use crate::printer;

/// The report of the library, with what only the process knows.
#[derive(Serialize)]
pub struct Trained {
    /// What the library reports.
    #[serde(flatten)]
    pub report: TrainReport,
    /// Most bytes of memory that the whole process has had resident, code and kernels' threads included; `null` where the system does
    /// not say. An unlimited run made for comparison counts as well.
    pub peak_resident_bytes: Option<Bytes>,
}

/// How many iterations ran by plans, and by how many.
fn ran(execution: &Execution) -> String {
    let Execution {
        planned_iterations, dynamic_iterations, structures, plans_made, switch_moved_bytes, ..
    } = execution;
    let counted = |number: u64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!(
        "{planned_iterations} by plan, {dynamic_iterations} on demand; {}, {}; {switch_moved_bytes} moved between plans",
        counted(*structures, "trace"),
        counted(*plans_made, "plan"),
    )
}

/// What the iterations without a plan took.
fn on_demand(execution: &Execution) -> String {
    let time = execution.dynamic_iteration_ns.unwrap_or_default();
    format!(
        "{time} each, peak {}; {} dropped, {} sent to the host, {} ops recomputed, {} compactions of {}",
        execution.dynamic_peak_bytes,
        execution.dynamic_evictions,
        execution.dynamic_offloads,
        execution.dynamic_recomputed_ops,
        execution.compactions,
        execution.compacted_bytes,
    )
}

/// Prints the report as tables.
pub fn print(Trained { report, peak_resident_bytes }: &Trained) -> Result<()> {
    let losses = report.losses.iter().enumerate();
    let rows = losses.map(|(i, loss)| {
        (format!("iteration {}", report.first_iteration + i as u64), format!("loss {loss:.6}"))
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        printer::pairs(rows.iter().map(|(name, value)| (name.as_str(), value.clone())))?;
        printer::blank()?;
    }
    plan::print(&report.plan)?;
    printer::blank()?;
    let peak = report.measured_peak_bytes;
    let execution = &report.execution;
    let exact = if execution.planned_iterations == 0 {
        "without a plan"
    } else if peak == report.plan.predicted_peak_bytes {
        "as predicted, to the byte"
    } else {
        "not as predicted"
    };
    let above =
        if report.arena_above_intact { "nothing written above it" } else { "bytes above it were written" };
    let against = match report.measured_unlimited_iteration_ns {
        Some(time) => format!("{} against {time} unlimited", printer::percent(report.measured_overhead)),
        None => format!("{} against the sum of its op times", printer::percent(report.measured_overhead)),
    };
    let mut rows = vec![
        ("measured peak", format!("{peak} ({} bytes): {exact}, {above}", peak.get())),
        ("measured iteration", format!("{} ({against})", report.measured_iteration_ns)),
        ("throughput", format!("{:.1} samples/s in batches of {}", report.samples_per_second, report.batch)),
        (
            "measured traffic",
            format!(
                "{} to the host ({}), {} back",
                report.measured_to_host_bytes, report.host, report.measured_to_device_bytes
            ),
        ),
        (
            "host tier",
            format!(
                "{:.2} GB/s there, {:.2} GB/s back, when training began",
                report.to_host_rate as f64 / 1e9,
                report.to_device_rate as f64 / 1e9
            ),
        ),
        ("recomputed", format!("{} ops in each iteration", report.measured_recomputed_ops)),
        ("threads", report.threads.to_string()),
        ("iterations", ran(execution)),
    ];
    // Where all are computed in the usual way there is nothing to say.
    if report.algorithms.keys().any(|&algorithm| algorithm != Algorithm::default().name()) {
        let counts = report.algorithms.iter().map(|(name, count)| format!("{count} {name}"));
        rows.push(("algorithms", counts.collect::<Vec<_>>().join(", ")));
    }
    if execution.dynamic_iterations > 0 {
        rows.push(("on demand", on_demand(execution)));
    }
    if let Some(bytes) = peak_resident_bytes {
        rows.push(("process", format!("{bytes} resident at most")));
    }
    if let Some(verified) = report.verified {
        let results = if report.losses.is_empty() { "results" } else { "losses and all parameters" };
        let equal = format!("{results} equal the unlimited run's, to the bit");
        rows.push(("verified", if verified { equal } else { "NOT equal to the unlimited run".to_owned() }));
    }
    printer::pairs(rows)?;
    Ok(())
}
