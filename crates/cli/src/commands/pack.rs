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
use crate::commands::trace::traced;
use crate::progress::{self, Progress};
use crate::{files, printer, settings};

/// Buffers of an infeasible set shown by name; the rest are counted.
const SHOWN: usize = 8;

#[derive(Serialize)]
struct Packed {
    file: String,
    packer: &'static str,
    buffers: usize,
    capacity_bytes: Option<Bytes>,
    /// `null` if nothing fits the capacity.
    height: Option<Bytes>,
    peak_load: Bytes,
    fragmentation: Option<f64>,
    proved_optimal: bool,
    stop_reason: &'static str,
    evaluations: u64,
    nanos: Nanos,
}

/// Several files or packers as one object.
#[derive(Serialize)]
struct Table<'a> {
    rows: &'a [Packed],
}

/// Runs the command.
pub fn run(args: &PackArgs) -> Result<Answer> {
    let packers: Vec<&dyn Packer> =
        args.packer.iter().map(|name| registry::packer(name)).collect::<Result<_, _>>()?;
    let several = args.files.len() * packers.len() > 1;
    if several && args.output.is_some() {
        bail!("-o takes one placement; name one file and one packer");
    }
    let budget = settings::budget(&args.search)?;
    progress::heed_ctrl_c();
    let mut rows = Vec::new();
    let mut refusals = Vec::new();
    for file in &args.files {
        let mut buffers = buffers(file)?;
        buffers.problem.capacity = args.capacity.or(buffers.problem.capacity);
        for &packer in &packers {
            let (packed, outcome) = pack(file, &buffers.problem, packer, &budget)?;
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
        (true, true) => printer::json(&Table { rows: &rows })?,
        (true, false) => table(&rows)?,
    }
    Ok(if refusals.is_empty() { Answer::Yes } else { Answer::No(refusals.join("\n")) })
}

/// The buffers of a table, or of a trace when everything stays.
fn buffers(path: &Path) -> Result<Buffers> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !is_table(&bytes) {
        let task = traced(path, &MachineArgs::default())?;
        let problem = pipeline::natural_problem(&task, &Progress::new("tracing lifetimes"))?;
        let names = problem.blocks.ids().map(|id| id.to_string()).collect();
        return Ok(Buffers { problem, names });
    }
    let text = String::from_utf8(bytes).with_context(|| format!("{} is not a text file", path.display()))?;
    csv::read(&text).with_context(|| format!("{} is not a usable table of buffers", path.display()))
}

/// Whether the first line is the head of a table: nothing else that is read begins with plain words between commas.
fn is_table(bytes: &[u8]) -> bool {
    let head = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b", _-\"\r\t".contains(&byte);
    bytes.is_empty() || (head.contains(&b',') && head.iter().all(plain))
}

/// Places one problem with one packer.
fn pack(
    file: &Path,
    problem: &Problem,
    packer: &dyn Packer,
    budget: &Budget,
) -> Result<(Packed, Outcome<Placement>)> {
    let peak_load = problem.peak_load();
    let progress = Progress::new(format!("placing {} buffers with {}", problem.blocks.len(), packer.name()));
    let started = Instant::now();
    let outcome = packer.pack(problem, budget, &progress);
    let nanos = Nanos::from(started.elapsed());
    drop(progress);
    if let Some(placement) = &outcome.best {
        // The judge shares no code with the packers.
        pack::validate(problem, placement)
            .context("the placement is wrong, which is a fault in elbowroom")?;
    }
    let height = outcome.best.as_ref().map(|placement| placement.height);
    let packed = Packed {
        file: file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        packer: packer.name(),
        buffers: problem.blocks.len(),
        capacity_bytes: problem.capacity,
        height,
        peak_load,
        fragmentation: height.filter(|_| !peak_load.is_zero()).map(|height| height.ratio(peak_load) - 1.0),
        proved_optimal: outcome.stop == StopReason::Optimal || height == Some(peak_load),
        stop_reason: outcome.stop.name(),
        evaluations: outcome.evaluations,
        nanos,
    };
    Ok((packed, outcome))
}

/// File by file and packer by packer. What is not proved optimal is open.
fn table(rows: &[Packed]) -> Result<()> {
    let head = ["file", "packer", "buffers", "peak load", "height", "fragmentation", "time", "optimal"];
    let cells = rows.iter().map(|row| {
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "–".to_owned());
        [
            row.file.clone(),
            row.packer.to_owned(),
            row.buffers.to_string(),
            row.peak_load.get().to_string(),
            or_dash(row.height.map(|height| height.get().to_string())),
            or_dash(row.fragmentation.map(|share| format!("{:.3} %", 100.0 * share))),
            row.nanos.to_string(),
            if row.proved_optimal { "proved" } else { "open" }.to_owned(),
        ]
    });
    printer::table(&head, cells)?;
    Ok(())
}

fn print(packed: &Packed) -> Result<()> {
    let height = match (packed.height, packed.fragmentation) {
        (Some(height), Some(fragmentation)) => {
            format!("{} bytes ({height}, fragmentation {:.3} %)", height.get(), 100.0 * fragmentation)
        }
        (Some(height), None) => format!("{} bytes", height.get()),
        (None, _) => "nothing fits".to_owned(),
    };
    let proved = if packed.proved_optimal { "proved optimal" } else { "not proved optimal" };
    printer::pairs([
        ("packer", packed.packer.to_owned()),
        ("buffers", packed.buffers.to_string()),
        ("peak load", format!("{} bytes", packed.peak_load.get())),
        ("height", height),
        ("stopped", format!("{} after {} evaluations, {proved}", packed.stop_reason, packed.evaluations)),
        ("time", packed.nanos.to_string()),
    ])?;
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
                    "no placement can exist within {} bytes: buffers {}{more} cannot be placed together in less than {}",
                    limit.get(),
                    names.join(", "),
                    needed.get()
                )
            }
            Infeasible::Op { .. } => "no placement can exist within the capacity".to_owned(),
        },
        StopReason::GaveUp { best: Some(best) } => format!(
            "no placement was found within the capacity; the lowest found needs {} bytes, and that less is impossible is not proved",
            best.get()
        ),
        _ => "no placement was found within the capacity; that none exists is not proved".to_owned(),
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
