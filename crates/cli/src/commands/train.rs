//! `elbowroom train`: the whole road.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use elbowroom::engine::{HostOptions, HostPlace};
use elbowroom::ir::Bytes;
use elbowroom::ir::machine::Channel;
use elbowroom::report::TrainReport;
use elbowroom::train::{Saving, TrainError, Training};
use elbowroom::{sim, train};
use serde::Serialize;

use crate::Answer;
use crate::args::TrainArgs;
use crate::commands::plan;
use crate::commands::trace::network;
use crate::progress::{self, TrainProgress};
use crate::{printer, settings};

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<Answer> {
    let threads = settings::threads(&args.planner.search);
    let mut machine = sim::presets::machine("cpu").context("the preset cpu exists")?;
    let link = args.host_rate.map(|rate| (Channel::with_rate(rate.0), Channel::with_rate(rate.0)));
    if let Some((to_host, to_device)) = link {
        (machine.to_host, machine.to_device) = (to_host, to_device);
    }
    let place = match args.host.as_str() {
        "memory" => HostPlace::Memory,
        folder => HostPlace::Folder(PathBuf::from(folder)),
    };
    let training = Training {
        graph: Arc::new(network(&args.network)?),
        memory: args.memory,
        machine,
        method: settings::method(&args.planner)?,
        freedom: settings::freedom(&args.planner.freedom),
        iterations: args.iterations,
        data: args.data.clone(),
        host: HostOptions { place, link },
        seed: args.planner.search.seed,
        threads,
        verify: args.verify,
        save: args.save.clone().map(|path| Saving { path, every: args.save_every }),
        resume: args.resume.clone(),
    };
    progress::heed_ctrl_c();
    let observer = TrainProgress::new();
    let outcome = train::train(&training, &observer);
    drop(observer);
    let report = match outcome {
        Ok(report) => report,
        Err(TrainError::Refused(refusal)) => {
            if args.json {
                printer::json(&refusal)?;
            }
            return Ok(Answer::No(refusal.sentence()));
        }
        Err(error) => return Err(error.into()),
    };
    let trained = Trained { report, peak_resident_bytes: peak_resident() };
    if args.json {
        printer::json(&trained)?
    } else {
        print(&trained)?
    };
    Ok(match trained.report.verified {
        Some(false) => {
            Answer::No("the limited run differs from the unlimited one, which is a fault in elbowroom".into())
        }
        _ => Answer::Yes,
    })
}

/// The report of the library, with what only the process knows.
#[derive(Serialize)]
struct Trained {
    #[serde(flatten)]
    report: TrainReport,
    /// Most bytes of memory that the whole process has had resident, code and kernels' threads included; `null` where the system does
    /// not say. An unlimited run made for comparison counts as well.
    peak_resident_bytes: Option<Bytes>,
}

/// `VmHWM` of this process.
fn peak_resident() -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}

fn print(Trained { report, peak_resident_bytes }: &Trained) -> Result<()> {
    let losses = report.losses.iter().enumerate();
    let rows = losses.map(|(i, loss)| {
        (format!("iteration {}", report.first_iteration + i as u64), format!("loss {loss:.6}"))
    });
    let rows: Vec<_> = rows.collect();
    printer::pairs(rows.iter().map(|(name, value)| (name.as_str(), value.clone())))?;
    printer::blank()?;
    plan::print(&report.plan)?;
    printer::blank()?;
    let peak = report.measured_peak_bytes;
    let exact = if peak == report.plan.predicted_peak_bytes {
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
        (
            "measured traffic",
            format!(
                "{} to the host ({}), {} back",
                report.measured_to_host_bytes, report.host, report.measured_to_device_bytes
            ),
        ),
        ("recomputed", format!("{} ops in each iteration", report.measured_recomputed_ops)),
        ("threads", report.threads.to_string()),
    ];
    if let Some(bytes) = peak_resident_bytes {
        rows.push(("process", format!("{bytes} resident at most")));
    }
    if let Some(verified) = report.verified {
        let equal = "losses and all parameters equal the unlimited run's, to the bit";
        rows.push((
            "verified",
            if verified { equal.to_owned() } else { "NOT equal to the unlimited run".to_owned() },
        ));
    }
    printer::pairs(rows)?;
    Ok(())
}
