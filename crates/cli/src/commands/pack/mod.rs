//! `elbowroom pack`: buffers with known lifetimes, placed into one arena.

mod banks;
mod minimalloc;
mod previous;

use std::any::Any;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use elbowroom::ir::packing::{Packer, Placement, Problem};
use elbowroom::ir::search::{Budget, Infeasible, Observer, StopReason};
use elbowroom::ir::{BufferId, Bytes, Id, Nanos};
use elbowroom::pack::csv::{self, Buffers};
use elbowroom::pack::{Missed, PlacementError};
use elbowroom::{pack, pipeline, registry};
use serde::Serialize;

use self::previous::{Changes, Previous};
use crate::args::{MachineArgs, PackArgs};
use crate::commands::trace::{task, trace_content};
use crate::printer::{self, Table, TimeUnit, counted, grouped, row};
use crate::progress::Progress;
use crate::{Answer, say};
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
    /// Arena size of the best placement, even if that does not fit the capacity. `null` if fixed buffers overlap.
    height_bytes: Option<Bytes>,
    /// Largest sum of the buffers alive at one time: a lower bound on the arena size.
    peak_live_bytes: Bytes,
    /// Arena size ÷ peak live memory − 1.
    fragmentation: Option<f64>,
    proved_optimal: bool,
    stop_reason: &'static str,
    /// What the packer reports of its search: with `mip`, how many components the solver solved.
    #[serde(skip_serializing_if = "Option::is_none")]
    found_by: Option<String>,
    /// With an earlier placement: the difference from it.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    changes: Option<Changes>,
    evaluations: u64,
    packing_ns: Nanos,
    /// From reading the file to the placement, checked and written.
    total_ns: Nanos,
}

/// Several files or packers as one object.
#[derive(Serialize)]
struct Rows<'a> {
    rows: &'a [Packed],
}

/// Passes events on, and keeps the best placement where none fits the capacity.
struct Keeper<'a> {
    progress: &'a Progress,
    missed: Mutex<Option<Placement>>,
}

impl Observer for Keeper<'_> {
    fn improved(&self, cost: u64, bound: u64) {
        self.progress.improved(cost, bound);
    }
    fn progress(&self, evaluations: u64) {
        self.progress.progress(evaluations);
    }
    fn note(&self, note: &dyn Any) {
        match note.downcast_ref::<Missed>() {
            Some(Missed(placement)) => {
                *self.missed.lock().unwrap_or_else(PoisonError::into_inner) = Some(placement.clone());
            }
            None => self.progress.note(note),
        }
    }
    fn origin(&self, origin: &str) {
        Observer::origin(self.progress, origin);
    }
    fn interrupted(&self) -> bool {
        self.progress.interrupted()
    }
}

/// What a packer made of one file.
struct Found {
    packed: Packed,
    stop: StopReason,
    /// The lowest placement, which may be above the capacity.
    placement: Option<Placement>,
}

/// Runs the command.
pub fn run(args: &PackArgs) -> Result<Answer> {
    if let Some(words) = &args.minimalloc {
        return Ok(minimalloc::run(words));
    }
    let packers: Vec<&dyn Packer> =
        args.packer.iter().map(|name| registry::packer(name)).collect::<Result<_, _>>()?;
    let several = args.files.len() * packers.len() > 1;
    if several && args.output.is_some() {
        bail!("-o writes one placement, but there are several; name one file and one packer");
    }
    if args.files.iter().filter(|path| is_standard_input(path)).count() > 1 {
        bail!("- stands for standard input, which can be read only once");
    }
    if args.files.len() > 1 && args.previous.is_some() {
        bail!("--previous belongs to one file, but there are several; name one file");
    }
    let budget = settings::budget(&args.search)?;
    if !args.bank.is_empty() {
        return banks::run(args, &budget);
    }
    let table = if several && !args.json { Some(begin_table(args)?) } else { None };
    let mut rows = Vec::new();
    let mut refusals = Vec::new();
    let mut failures = Vec::new();
    for file in &args.files {
        let started = Instant::now();
        let path = file.clone();
        // Signals are caught from the second file on: what was packed until then is printed.
        let Some(read) = signals::read_unless_interrupted(move || buffers(&path)) else { break };
        let mut buffers = match read {
            Ok(buffers) => buffers,
            // The other files still have results; the exit status is that of an error.
            Err(error) if args.files.len() > 1 => {
                failures.push(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        buffers.problem.capacity = args.capacity.or(buffers.problem.capacity);
        let previous = args.previous.as_deref().map(|path| Previous::read(path, &buffers)).transpose()?;
        signals::catch();
        let reading = started.elapsed();
        for &packer in &packers {
            let started = Instant::now();
            let mut found = pack(file, &buffers, packer, previous.as_ref(), &budget)?;
            let fits = found.packed.arena_bytes.is_some();
            if let (Some(placement), Some(path)) = (&found.placement, &args.output)
                && (fits || args.keep_missed)
            {
                files::write_parts(path, |out| csv::write_to(out, &buffers, placement))?;
            }
            found.packed.total_ns = Nanos::from(reading + started.elapsed());
            table.as_ref().map_or(Ok(()), |table| table.print(&cells(&found.packed)))?;
            if !fits {
                let why = refusal(&buffers, &found.stop);
                let whose = format!("{} with {}: ", found.packed.file, packer.name());
                refusals.push(format!("{}{why}", if several { &whose } else { "" }));
            }
            rows.push(found.packed);
        }
    }
    match (several, args.json) {
        (false, true) => printer::json(&rows[0])?,
        (false, false) => print(&rows[0])?,
        (true, true) => printer::json(&Rows { rows: &rows })?,
        (true, false) => {}
    }
    // Each sentence has a line of its own; that of the answer is the last.
    let failed = failures.pop();
    failures.iter().for_each(|failure| say(&crate::one_sentence(failure)));
    let last = if failed.is_none() { refusals.pop() } else { None };
    refusals.iter().for_each(|refusal| say(refusal));
    match failed {
        Some(error) => Err(error),
        None => Ok(last.map_or(Answer::Yes, Answer::No)),
    }
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// The buffers of a table, or of a trace whose tensors all stay on the device.
fn buffers(path: &Path) -> Result<Buffers> {
    let (path, bytes) = if is_standard_input(path) {
        (Path::new("standard input"), files::standard_input()?)
    } else {
        (path, files::content(path, "a table of buffers or a trace")?)
    };
    if !files::is_table(&bytes) {
        let task = task(path, trace_content(path, &bytes)?, &MachineArgs::default())?;
        let problem = pipeline::natural_problem(&task, &Progress::new("tracing lifetimes"))?;
        let names = problem.blocks.ids().map(|id| id.to_string()).collect();
        return Ok(Buffers::new(names, problem));
    }
    let text = files::text(path, &bytes, "a table of buffers (CSV) or a trace")?;
    csv::read(text).with_context(|| format!("{} is not a usable table of buffers", path.display()))
}

/// Packs one problem with one packer, or around the offsets of an earlier placement.
fn pack(
    file: &Path,
    buffers: &Buffers,
    packer: &dyn Packer,
    previous: Option<&Previous>,
    budget: &Budget,
) -> Result<Found> {
    let problem = &buffers.problem;
    let peak_live = problem.peak_live();
    let progress = Progress::new(format!("placing {} buffers with {}", problem.blocks.len(), packer.name()));
    let keeper = Keeper { progress: &progress, missed: Mutex::new(None) };
    let started = Instant::now();
    let mut changes = None;
    let outcome = match previous {
        Some(previous) => pack::repack(problem, &previous.offsets, budget, &keeper).map(|repacked| {
            changes = Some(previous.changes(buffers, &repacked));
            repacked.placement
        }),
        None => packer.pack(problem, budget, &keeper),
    };
    let missed = keeper.missed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let unfinished =
        matches!(outcome.stop, StopReason::Time | StopReason::Interrupted | StopReason::Evaluations);
    let refuted_at_once =
        outcome.best.is_none() && missed.is_none() && problem.capacity.is_some() && !unfinished;
    let anyway = if refuted_at_once {
        // The capacity was refuted without a search.
        packer.pack(&Problem { capacity: None, ..problem.clone() }, budget, &progress).best
    } else {
        missed
    };
    let nanos = Nanos::from(started.elapsed());
    let found_by = progress.origin();
    drop(progress);
    let height = outcome.best.as_ref().map(|placement| placement.height);
    let placement = outcome.best.or(anyway);
    if let Some(placement) = &placement {
        // The judge shares no code with the packers.
        match pack::validate(problem, placement) {
            Err(PlacementError::Capacity { .. }) if height.is_none() => {}
            other => other.context("the placement is wrong, which is a fault in elbowroom")?,
        }
    }
    let packed = Packed {
        file: name(file),
        packer: packer.name(),
        buffers: problem.blocks.len(),
        capacity_bytes: problem.capacity,
        arena_bytes: height,
        height_bytes: placement.as_ref().map(|placement| placement.height),
        peak_live_bytes: peak_live,
        fragmentation: height.filter(|_| !peak_live.is_zero()).map(|height| height.ratio(peak_live) - 1.0),
        proved_optimal: (outcome.stop == StopReason::Optimal && previous.is_none())
            || height == Some(peak_live),
        stop_reason: outcome.stop.name(),
        found_by,
        changes,
        evaluations: outcome.evaluations,
        packing_ns: nanos,
        total_ns: nanos,
    };
    Ok(Found { packed, stop: outcome.stop, placement })
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
        TimeUnit::SECONDS.number(row.total_ns, 3),
    ]
}

/// The name of a file without its folder.
fn name(path: &Path) -> String {
    if is_standard_input(path) {
        return "standard input".to_owned();
    }
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
        None => match packed.height_bytes {
            Some(height) => vec![
                row("arena size", "none", "no placement fits the capacity"),
                row("smallest found", exact(height), "above the capacity"),
            ],
            None => vec![row("arena size", "none", "buffers are fixed at overlapping bytes")],
        },
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
    packed.changes.as_ref().map_or(Ok(()), previous::print)?;
    let mut stopped = printer::stopped(packed.stop_reason).to_owned();
    if let Some(found_by) = &packed.found_by {
        stopped += &format!(", {found_by}");
    }
    printer::section(
        "Search",
        &[
            row("packer", packed.packer, stopped),
            row("time", packed.packing_ns, counted(packed.evaluations, "evaluation")),
            row("time in all", packed.total_ns, "with reading, checking and writing"),
        ],
    )?;
    Ok(())
}

/// Why nothing fits, naming the buffers as the file names them.
fn refusal(buffers: &Buffers, stop: &StopReason) -> String {
    match stop {
        StopReason::Infeasible(proof) => match proof.as_ref() {
            Infeasible::Blocks { blocks, needed, limit } => {
                if let Some(clash) = fixed_clash(buffers, blocks) {
                    return clash;
                }
                let names: Vec<&str> =
                    blocks.iter().take(SHOWN).map(|block| buffers.names[block.index()].as_str()).collect();
                if let ([only], [name]) = (&blocks[..], &names[..])
                    && let Some(fixed) = buffers.problem.blocks[*only].fixed
                {
                    return format!(
                        "infeasible: no placement exists within {} bytes, because buffer {name} is fixed at offset {} and ends at {}",
                        limit.get(),
                        fixed.get(),
                        needed.get()
                    );
                }
                let rest = blocks.len().saturating_sub(SHOWN);
                let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
                let (noun, verb) = if blocks.len() == 1 { ("buffer", "needs") } else { ("buffers", "need") };
                let together = if blocks.len() == 1 { "" } else { " together" };
                format!(
                    "infeasible: no placement exists within {} bytes, because {noun} {}{more} {verb} {} bytes{together}",
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
        StopReason::Time | StopReason::Interrupted | StopReason::Evaluations => unplaced(stop).to_owned(),
        _ => "no placement found within the capacity (infeasibility not proved)".to_owned(),
    }
}

/// Why there is no placement although nothing forbids one.
fn unplaced(stop: &StopReason) -> &'static str {
    match stop {
        StopReason::Interrupted => "interrupted before every buffer was placed",
        StopReason::Time => "the time ended before every buffer was placed; give it more with --time",
        _ => "the evaluations ended before every buffer was placed; give more with --evaluations",
    }
}

/// The sentence for two buffers that are fixed at overlapping bytes.
fn fixed_clash(buffers: &Buffers, blocks: &[BufferId]) -> Option<String> {
    let [a, b] = *blocks else { return None };
    let range = |id: BufferId| {
        let block = &buffers.problem.blocks[id];
        Some((block.fixed?.get(), (block.fixed? + block.size).get()))
    };
    let ((from_a, to_a), (from_b, to_b)) = (range(a)?, range(b)?);
    let meet = buffers.problem.blocks[a].conflicts(&buffers.problem.blocks[b]);
    (meet && from_a.max(from_b) < to_a.min(to_b)).then(|| {
        format!(
            "infeasible at any capacity: buffers {} and {} are alive together and fixed at overlapping offsets, {from_a} to {to_a} and {from_b} to {to_b}",
            buffers.names[a.index()],
            buffers.names[b.index()]
        )
    })
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

    #[test]
    fn overlapping_fixed_buffers_are_named_with_their_bytes() {
        let text = "id,lower,upper,size,offset\nfirst,0,2,60,0\nsecond,1,3,60,50\n";
        let buffers = csv::read(text).unwrap();
        let outcome = pack::Auto.pack(&buffers.problem, &Budget::default(), &elbowroom::ir::search::Silent);
        let sentence = refusal(&buffers, &outcome.stop);
        assert_eq!(
            sentence,
            "infeasible at any capacity: buffers first and second are alive together and fixed at overlapping offsets, 0 to 60 and 50 to 110"
        );
    }
}
