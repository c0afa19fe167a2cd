//! `elbowroom pack`: buffers with known lifetimes, placed into one arena.

use std::time::Instant;

use anyhow::{Context, Result};
use elbowroom::ir::search::{Infeasible, StopReason};
use elbowroom::ir::{Bytes, Id, Nanos};
use elbowroom::pack::csv::{self, Buffers};
use elbowroom::{pack, registry};
use serde::Serialize;

use crate::Answer;
use crate::args::PackArgs;
use crate::progress::{self, Spinner};
use crate::{files, printer, settings};

/// Buffers of an infeasible set shown by name; the rest are counted.
const SHOWN: usize = 8;

#[derive(Serialize)]
struct Packed {
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

/// Runs the command.
pub fn run(args: &PackArgs) -> Result<Answer> {
    let packer = registry::packer(&args.packer)?;
    let text = files::read(&args.file)?;
    let mut buffers = csv::read(&text)
        .with_context(|| format!("{} is not a usable table of buffers", args.file.display()))?;
    drop(text);
    buffers.problem.capacity = args.capacity.or(buffers.problem.capacity);
    let peak_load = buffers.problem.peak_load();
    let budget = settings::budget(&args.search);

    progress::heed_ctrl_c();
    let spinner = Spinner::new(format!("placing {} buffers", buffers.problem.blocks.len()));
    let started = Instant::now();
    let outcome = packer.pack(&buffers.problem, &budget, &spinner);
    let nanos = Nanos::from(started.elapsed());
    drop(spinner);

    if let Some(placement) = &outcome.best {
        // The judge shares no code with the packers.
        pack::validate(&buffers.problem, placement)
            .context("the placement is wrong, which is a fault in elbowroom")?;
        if let Some(path) = &args.output {
            files::write(Some(path), &csv::write(&buffers, placement))?;
        }
    }
    let height = outcome.best.as_ref().map(|placement| placement.height);
    let packed = Packed {
        packer: packer.name(),
        buffers: buffers.problem.blocks.len(),
        capacity_bytes: buffers.problem.capacity,
        height,
        peak_load,
        fragmentation: height.filter(|_| !peak_load.is_zero()).map(|height| height.ratio(peak_load) - 1.0),
        proved_optimal: outcome.stop == StopReason::Optimal || height == Some(peak_load),
        stop_reason: outcome.stop.name(),
        evaluations: outcome.evaluations,
        nanos,
    };
    if args.json {
        printer::json(&packed)?;
    } else {
        print(&packed)?;
    }
    Ok(match outcome.best {
        Some(_) => Answer::Yes,
        None => Answer::No(refusal(&buffers, &outcome.stop)),
    })
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
