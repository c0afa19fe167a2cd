//! `elbowroom pack`: buffers with known lifetimes, placed into one arena.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use elbowroom::ir::packing::{Packer, Placement, Problem};
use elbowroom::ir::search::{Budget, Infeasible, Outcome, StopReason};
use elbowroom::ir::{Bytes, Id, Nanos};
use elbowroom::pack::csv::{self, Buffers};
use elbowroom::{pack, pipeline, registry};
use serde::Serialize;

use crate::Answer;
use crate::args::{MachineArgs, PackArgs};
use crate::commands::trace::{task, trace_content};
use crate::printer::{self, Table, TimeUnit, counted, grouped, row};
use crate::progress::Progress;
use crate::{files, settings, signals};

/// Buffers of an infeasible set shown by name; the rest are counted.
const SHOWN: usize = 8;

#[derive(Serialize)]
struct Packed {
    file: String,
    packer: &'static str,
    buffers: usize,
    capacity_bytes: Option<Bytes>,
    /// `null` if nothing fits the capacity.
    arena_bytes: Option<Bytes>,
    /// Largest sum of the buffers alive at one time: a lower bound on the arena size.
    peak_live_bytes: Bytes,
    /// Arena size ÷ peak live memory − 1.
    fragmentation: Option<f64>,
    proved_optimal: bool,
    stop_reason: &'static str,
    /// What the packer reports of its search: with `mip`, how many components the solver solved.
    #[serde(skip_serializing_if = "Option::is_none")]
    found_by: Option<String>,
    evaluations: u64,
    packing_ns: Nanos,
}

/// Several files or packers as one object.
#[derive(Serialize)]
struct Rows<'a> {
    rows: &'a [Packed],
}

/// Runs the command.
pub fn run(args: &PackArgs) -> Result<Answer> {
    let packers: Vec<&dyn Packer> =
        args.packer.iter().map(|name| registry::packer(name)).collect::<Result<_, _>>()?;
    let several = args.files.len() * packers.len() > 1;
    if several && args.output.is_some() {
        bail!("-o writes one placement, but there are several; name one file and one packer");
    }
    let budget = settings::budget(&args.search)?;
    signals::catch();
    let table = if several && !args.json { Some(begin_table(args)?) } else { None };
    let mut rows = Vec::new();
    let mut refusals = Vec::new();
    for file in &args.files {
        let mut buffers = buffers(file)?;
        buffers.problem.capacity = args.capacity.or(buffers.problem.capacity);
        for &packer in &packers {
            let (packed, outcome) = pack(file, &buffers.problem, packer, &budget)?;
            table.as_ref().map_or(Ok(()), |table| table.print(&cells(&packed)))?;
            rows.push(packed);
            match (&outcome.best, &args.output) {
                (Some(placement), Some(path)) => files::write(Some(path), &csv::write(&buffers, placement))?,
                (Some(_), None) => {}
                (None, _) if several => {
                    let why = refusal(&buffers, &outcome.stop);
                    refusals.push(format!("{} with {}: {why}", file.display(), packer.name()));
                }
                (None, _) => refusals.push(refusal(&buffers, &outcome.stop)),
            }
        }
    }
    match (several, args.json) {
        (false, true) => printer::json(&rows[0])?,
        (false, false) => print(&rows[0])?,
        (true, true) => printer::json(&Rows { rows: &rows })?,
        (true, false) => {}
    }
    Ok(if refusals.is_empty() { Answer::Yes } else { Answer::No(refusals.join("\n")) })
}

/// The buffers of a table, or of a trace whose tensors all stay on the device.
fn buffers(path: &Path) -> Result<Buffers> {
    let bytes = files::content(path, "a table of buffers or a trace")?;
    if !files::is_table(&bytes) {
        let task = task(trace_content(path, &bytes)?, &MachineArgs::default())?;
        let problem = pipeline::natural_problem(&task, &Progress::new("tracing lifetimes"))?;
        let names = problem.blocks.ids().map(|id| id.to_string()).collect();
        return Ok(Buffers { problem, names });
    }
    let text = files::text(path, &bytes, "a table of buffers (CSV) or a trace")?;
    csv::read(text).with_context(|| format!("{} is not a usable table of buffers", path.display()))
}

/// Packs one problem with one packer.
fn pack(
    file: &Path,
    problem: &Problem,
    packer: &dyn Packer,
    budget: &Budget,
) -> Result<(Packed, Outcome<Placement>)> {
    let peak_live = problem.peak_live();
    let progress = Progress::new(format!("placing {} buffers with {}", problem.blocks.len(), packer.name()));
    let started = Instant::now();
    let outcome = packer.pack(problem, budget, &progress);
    let nanos = Nanos::from(started.elapsed());
    let found_by = progress.origin();
    drop(progress);
    if let Some(placement) = &outcome.best {
        // The judge shares no code with the packers.
        pack::validate(problem, placement)
            .context("the placement is wrong, which is a fault in elbowroom")?;
    }
    let height = outcome.best.as_ref().map(|placement| placement.height);
    let packed = Packed {
        file: name(file),
        packer: packer.name(),
        buffers: problem.blocks.len(),
        capacity_bytes: problem.capacity,
        arena_bytes: height,
        peak_live_bytes: peak_live,
        fragmentation: height.filter(|_| !peak_live.is_zero()).map(|height| height.ratio(peak_live) - 1.0),
        proved_optimal: outcome.stop == StopReason::Optimal || height == Some(peak_live),
        stop_reason: outcome.stop.name(),
        found_by,
        evaluations: outcome.evaluations,
        packing_ns: nanos,
    };
    Ok((packed, outcome))
}

/// Prints the head of the table, to which every placement adds a line when it is found.
fn begin_table(args: &PackArgs) -> Result<Table> {
    let head = printer::head([
        ("file", ""),
        ("packer", ""),
        ("buffers", ""),
        ("arena size", "bytes"),
        ("peak live", "bytes"),
        ("fragmentation", "%"),
        ("smallest", ""),
        ("time", "s"),
    ]);
    let file = args.files.iter().map(|path| name(path).chars().count()).max().unwrap_or(0);
    let packer = args.packer.iter().map(|packer| packer.chars().count()).max().unwrap_or(0);
    let table = Table::begin(2, &head, &[file, packer, 7, 12, 12, 0, "not proved".len(), 8])?;
    Ok(table)
}

/// One placement as a line of the table.
fn cells(row: &Packed) -> Vec<String> {
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    vec![
        row.file.clone(),
        row.packer.to_owned(),
        row.buffers.to_string(),
        or_dash(row.arena_bytes.map(|arena| arena.get().to_string())),
        row.peak_live_bytes.get().to_string(),
        or_dash(row.fragmentation.map(|share| format!("{:.3}", 100.0 * share))),
        if row.proved_optimal { "proved" } else { "not proved" }.to_owned(),
        TimeUnit::SECONDS.number(row.packing_ns, 3),
    ]
}

/// The name of a file without its folder.
fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn print(packed: &Packed) -> Result<()> {
    printer::line(&format!("{}: {}", packed.file, counted(packed.buffers as u64, "buffer")))?;
    let exact = |bytes: Bytes| format!("{} bytes", grouped(bytes.get()));
    let mut result = match packed.arena_bytes {
        Some(arena) => {
            let proved = if packed.proved_optimal {
                "proved: no placement is smaller"
            } else {
                "not proved: a smaller placement may exist"
            };
            vec![row("arena size", exact(arena), ""), row("optimality", proved, "")]
        }
        None => vec![row("arena size", "none", "no placement fits the capacity")],
    };
    result.push(row("peak live memory", exact(packed.peak_live_bytes), "lower bound on the arena size"));
    if let Some(share) = packed.fragmentation {
        let share = format!("{:.3} %", 100.0 * share);
        result.push(row("fragmentation", share, "arena size / peak live memory - 1"));
    }
    if let Some(capacity) = packed.capacity_bytes {
        result.push(row("capacity", exact(capacity), ""));
    }
    printer::section("Result", &result)?;
    let mut stopped = printer::stopped(packed.stop_reason).to_owned();
    if let Some(found_by) = &packed.found_by {
        stopped += &format!(", {found_by}");
    }
    printer::section(
        "Search",
        &[
            row("packer", packed.packer, stopped),
            row("time", packed.packing_ns, counted(packed.evaluations, "evaluation")),
        ],
    )?;
    Ok(())
}

/// Why nothing fits, naming the buffers as the file names them.
fn refusal(buffers: &Buffers, stop: &StopReason) -> String {
    match stop {
        StopReason::Infeasible(proof) => match proof.as_ref() {
            Infeasible::Blocks { blocks, needed, limit } => {
                let names: Vec<&str> =
                    blocks.iter().take(SHOWN).map(|block| buffers.names[block.index()].as_str()).collect();
                let rest = blocks.len().saturating_sub(SHOWN);
                let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
                format!(
                    "infeasible: no placement exists within {} bytes, because buffers {}{more} need {} bytes together",
                    limit.get(),
                    names.join(", "),
                    needed.get()
                )
            }
            Infeasible::Op { .. } => "infeasible: no placement exists within the capacity".to_owned(),
        },
        StopReason::GaveUp { best: Some(best) } => format!(
            "no placement found within the capacity (infeasibility not proved); the smallest found needs {} bytes",
            best.get()
        ),
        _ => "no placement found within the capacity (infeasibility not proved)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_names_the_buffers_as_the_file_does() {
        let buffers = csv::read("id,lower,upper,size\nfirst,0,2,60\nsecond,1,3,60\n").unwrap();
        let blocks = buffers.problem.blocks.ids().collect();
        let proof = Infeasible::Blocks { blocks, needed: Bytes(120), limit: Bytes(100) };
        let sentence = refusal(&buffers, &StopReason::Infeasible(Box::new(proof)));
        assert!(sentence.contains("first, second") && sentence.contains("120"), "{sentence}");
    }
}
