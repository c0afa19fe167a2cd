//! `elbowroom pack --bank`: buffers in several memories.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use elbowroom::ir::search::{Budget, StopReason};
use elbowroom::ir::{BufferId, Bytes, Id, Nanos, Table};
use elbowroom::pack::csv::{self, Buffers};
use elbowroom::pack::{Bank, BankedPlacement, BankedProblem, pack_banks, validate_banks};
use serde::Serialize;

use super::{SHOWN, buffers, name};
use crate::args::PackArgs;
use crate::printer::{self, counted, grouped, row};
use crate::progress::Progress;
use crate::values::BankSpec;
use crate::{Answer, files, signals};

/// A bank of the report.
#[derive(Serialize)]
struct PackedBank {
    bank: String,
    capacity_bytes: Option<Bytes>,
    cost: u64,
    buffers: usize,
    arena_bytes: Bytes,
    traffic_bytes: Bytes,
}

#[derive(Serialize)]
struct PackedBanks {
    file: String,
    buffers: usize,
    banks: Vec<PackedBank>,
    /// Traffic times the cost of its bank.
    traffic_cost: u64,
    /// Ids of the buffers that fit in no bank.
    spilled: Vec<String>,
    spilled_bytes: Bytes,
    spilled_traffic_bytes: Bytes,
    proved_optimal: bool,
    stop_reason: &'static str,
    evaluations: u64,
    packing_ns: Nanos,
    total_ns: Nanos,
}

/// The position of a column that packing one arena does not use.
fn column(table: &Buffers, title: &str) -> Option<usize> {
    table.other_columns.iter().position(|other| other.eq_ignore_ascii_case(title))
}

/// The fields of a column, row by row.
fn fields(table: &Buffers, column: usize) -> impl Iterator<Item = &str> {
    table.other_fields.iter().skip(column).step_by(table.other_columns.len()).map(String::as_str)
}

/// The problem of a table: its column `bank` lists the banks in which a buffer may lie, its column `traffic` the bytes read and written.
fn problem(table: &Buffers, specs: &[BankSpec]) -> Result<BankedProblem> {
    let banks: Vec<Bank> = (1..)
        .zip(specs)
        .map(|(number, spec)| Bank {
            name: spec.name.clone(),
            capacity: spec.capacity,
            cost: spec.cost.unwrap_or(number),
        })
        .collect();
    if let Some((at, bank)) =
        banks.iter().enumerate().find(|(at, bank)| banks[..*at].iter().any(|other| other.name == bank.name))
    {
        bail!("--bank names `{}` twice (number {}); give each bank a name of its own", bank.name, at + 1);
    }
    let blocks = &table.problem.blocks;
    let known = || banks.iter().map(|bank| bank.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut allowed = vec![Vec::new(); blocks.len()];
    if let Some(column) = column(table, "bank") {
        for ((list, field), buffer) in allowed.iter_mut().zip(fields(table, column)).zip(&table.names) {
            for wanted in field.split_whitespace() {
                let Some(bank) = banks.iter().position(|bank| bank.name == wanted) else {
                    bail!(
                        "buffer {buffer} names the bank `{wanted}`, which no --bank declares; there are: {}",
                        known()
                    );
                };
                list.push(bank as u32);
            }
        }
    }
    let mut traffic: Vec<Bytes> = blocks.values().map(|block| block.size).collect();
    if let Some(column) = column(table, "traffic") {
        for ((traffic, field), buffer) in traffic.iter_mut().zip(fields(table, column)).zip(&table.names) {
            if !field.is_empty() {
                let Ok(bytes) = field.parse() else {
                    bail!("the traffic `{field}` of buffer {buffer} is not a whole number of bytes");
                };
                *traffic = Bytes(bytes);
            }
        }
    }
    let problem =
        BankedProblem { blocks: blocks.clone(), banks, allowed: allowed.into(), traffic: traffic.into() };
    problem.validate()?;
    Ok(problem)
}

/// Runs `pack` with banks.
pub(super) fn run(args: &PackArgs, budget: &Budget) -> Result<Answer> {
    let [file] = &args.files[..] else {
        bail!("--bank places the buffers of one file, but there are several; name one file");
    };
    let started = Instant::now();
    let mut table = buffers(file)?;
    signals::catch();
    let problem = problem(&table, &args.bank)
        .with_context(|| format!("{} cannot be placed in these banks", name(file)))?;
    let progress = Progress::new(format!("placing {} buffers in banks", problem.blocks.len()));
    let packing = Instant::now();
    let outcome = pack_banks(&problem, budget, &progress);
    let packing_ns = Nanos::from(packing.elapsed());
    drop(progress);
    let Some(placement) = outcome.best else {
        return Ok(Answer::No(super::unplaced(&outcome.stop).to_owned()));
    };
    // The judge shares no code with the packers.
    validate_banks(&problem, &placement).context("the placement is wrong, which is a fault in elbowroom")?;
    let fits = placement.spilled.is_empty();
    if let Some(path) = &args.output
        && (fits || args.keep_missed)
    {
        write(path, &mut table, &problem, &placement)?;
    }
    let packed = PackedBanks {
        file: name(file),
        buffers: problem.blocks.len(),
        banks: report(&problem, &placement),
        traffic_cost: placement.cost,
        spilled: placement.spilled.iter().map(|id| table.names[id.index()].clone()).collect(),
        spilled_bytes: placement.spilled_bytes,
        spilled_traffic_bytes: placement.spilled_traffic,
        proved_optimal: outcome.stop == StopReason::Optimal,
        stop_reason: outcome.stop.name(),
        evaluations: outcome.evaluations,
        packing_ns,
        total_ns: Nanos::from(started.elapsed()),
    };
    if args.json {
        printer::json(&packed)?
    } else {
        print(&packed)?
    }
    Ok(if fits { Answer::Yes } else { Answer::No(refusal(&packed)) })
}

fn report(problem: &BankedProblem, placement: &BankedPlacement) -> Vec<PackedBank> {
    let one = |(number, bank): (u32, &Bank)| {
        let members = || placement.banks.iter().filter(move |(_, b)| **b == Some(number)).map(|(id, _)| id);
        PackedBank {
            bank: bank.name.clone(),
            capacity_bytes: bank.capacity,
            cost: bank.cost,
            buffers: members().count(),
            arena_bytes: placement.heights[number as usize],
            traffic_bytes: members().map(|id| problem.traffic[id]).sum(),
        }
    };
    (0..).zip(&problem.banks).map(one).collect()
}

/// Writes the table with the bank and the offset of every buffer; those of a spilled buffer are empty.
fn write(
    path: &Path,
    table: &mut Buffers,
    problem: &BankedProblem,
    placement: &BankedPlacement,
) -> Result<()> {
    let at = match column(table, "bank") {
        Some(at) => at,
        None => {
            let before = table.other_columns.len();
            table.other_columns.push("bank".to_owned());
            let mut old = std::mem::take(&mut table.other_fields).into_iter();
            for _ in problem.blocks.ids() {
                table.other_fields.extend(old.by_ref().take(before));
                table.other_fields.push(String::new());
            }
            before
        }
    };
    let columns = table.other_columns.len();
    let mut offsets: Table<BufferId, Option<Bytes>> = vec![None; problem.blocks.len()].into();
    for (id, bank) in placement.banks.iter() {
        let field = &mut table.other_fields[id.index() * columns + at];
        field.clear();
        if let Some(bank) = bank {
            field.push_str(&problem.banks[*bank as usize].name);
            offsets[id] = Some(placement.offsets[id]);
        }
    }
    files::write_parts(path, |out| csv::write_offsets_to(out, table, |id| offsets[id]))
}

fn exact(bytes: Bytes) -> String {
    format!("{} bytes", grouped(bytes.get()))
}

fn print(packed: &PackedBanks) -> Result<()> {
    printer::line(&format!("{}: {}", packed.file, counted(packed.buffers as u64, "buffer")))?;
    let bank = |bank: &PackedBank| {
        let limit =
            bank.capacity_bytes.map_or("without a limit".to_owned(), |most| format!("of {}", exact(most)));
        let traffic = format!(
            "{limit}, {}, traffic {}",
            counted(bank.buffers as u64, "buffer"),
            exact(bank.traffic_bytes)
        );
        row(&bank.bank, exact(bank.arena_bytes), traffic)
    };
    let banks: Vec<_> = packed.banks.iter().map(bank).collect();
    printer::section("Banks", &banks)?;
    let proved =
        if packed.proved_optimal { "proved: none is less" } else { "not proved: less may be possible" };
    printer::section(
        "Result",
        &[
            row("spilled", counted(packed.spilled.len() as u64, "buffer"), exact(packed.spilled_bytes)),
            row("traffic outside", exact(packed.spilled_traffic_bytes), "of spilled buffers"),
            row("cost", grouped(packed.traffic_cost), "traffic x cost of its bank"),
            row("optimality", proved, ""),
        ],
    )?;
    printer::section(
        "Search",
        &[
            row("time", packed.packing_ns, counted(packed.evaluations, "evaluation")),
            row("time in all", packed.total_ns, "with reading, checking and writing"),
        ],
    )?;
    Ok(())
}

/// Which buffers lie in no bank.
fn refusal(packed: &PackedBanks) -> String {
    let shown: Vec<&str> = packed.spilled.iter().take(SHOWN).map(String::as_str).collect();
    let rest = packed.spilled.len().saturating_sub(SHOWN);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let least = if packed.proved_optimal { "proved" } else { "not proved" };
    format!(
        "the banks do not hold all buffers; the least traffic outside ({least}) is {} bytes with {}{more} ({} bytes) elsewhere",
        packed.spilled_traffic_bytes.get(),
        shown.join(", "),
        packed.spilled_bytes.get()
    )
}
