//! The last step of every importer: checks the parts, bounds the sums, and computes the peak.

use elbowroom_ir::planning::{CostSource, Costs};
use elbowroom_ir::trace::{LONGEST_NAME, Trace, TraceData};
use elbowroom_ir::{Bytes, Nanos};

use crate::error::ImportError;
use crate::notes::Notes;
use crate::{Imported, Source, peak};

/// Upper bound of the sums of durations, operations and moved bytes, so that no reader of the trace overflows.
const LIMIT: u64 = 1 << 60;

/// What the reader of a format produces.
pub struct ImportDraft {
    /// The trace's parts.
    pub data: TraceData,
    /// A duration for every op.
    pub nanos: Vec<Nanos>,
    /// Origin of the durations.
    pub costs_from: CostSource,
    /// Everything but the peak.
    pub notes: Notes,
}

/// Turns a draft into an imported iteration.
///
/// # Errors
/// The parts do not form a trace, or a sum is too large.
pub fn finish(source: &Source<'_>, draft: ImportDraft) -> Result<Imported, ImportError> {
    let ImportDraft { mut data, nanos, costs_from, mut notes } = draft;
    let shortened = shorten_names(&mut data);
    if shortened > 0 {
        notes.remarks.push(format!(
            "{shortened} names or kinds of ops were longer than {LONGEST_NAME} bytes and have lost their ends, because no trace holds them."
        ));
    }
    bounded(source, "durations", nanos.iter().map(|n| n.get()))?;
    bounded(source, "floating-point operations", data.ops.values().map(|op| op.work.flops))?;
    bounded(source, "bytes read and written", data.ops.values().map(|op| op.work.moved.get()))?;
    let trace = Trace::new(data)
        .map_err(|error| ImportError::Trace { file: source.file.to_owned(), source: error })?;
    notes.peak = peak::peak_memory(&trace);
    if let Some(recorded) = notes.recorded_peak.filter(|&recorded| recorded > notes.peak + Bytes(1 << 20)) {
        let peak = notes.peak;
        notes.remarks.push(format!(
            "The recorded program reached {recorded} because it freed tensors later than their last use; the trace reaches {peak}."
        ));
    }
    Ok(Imported { trace, costs: Costs { nanos: nanos.into(), source: costs_from }, notes })
}

/// Shortens names and kinds that no trace can hold, and counts them.
fn shorten_names(data: &mut TraceData) -> usize {
    const END: &str = "...";
    let tensors = data.tensors.iter_mut().map(|(_, tensor)| &mut tensor.name);
    let ops = data.ops.iter_mut().flat_map(|(_, op)| [&mut op.name, &mut op.kind]);
    let names = std::iter::once(&mut data.name).chain(tensors).chain(ops);
    let mut shortened = 0;
    for name in names.filter(|name| name.len() > LONGEST_NAME) {
        let end = (0..=LONGEST_NAME - END.len()).rev().find(|&at| name.is_char_boundary(at));
        name.truncate(end.unwrap_or_default());
        name.push_str(END);
        shortened += 1;
    }
    shortened
}

fn bounded(source: &Source<'_>, what: &str, numbers: impl Iterator<Item = u64>) -> Result<(), ImportError> {
    let mut sum = 0u64;
    for number in numbers {
        sum = sum.saturating_add(number);
    }
    if sum < LIMIT { Ok(()) } else { Err(source.wrong(format!("the {what} add up to 2^60 or more"))) }
}

/// A duration in units of `nanos_per_unit` nanoseconds, rounded to whole nanoseconds; `None` unless it is a number from 0 to 2^60.
pub fn duration(number: f64, nanos_per_unit: f64) -> Option<Nanos> {
    let nanos = (number * nanos_per_unit).round();
    (0.0..LIMIT as f64).contains(&nanos).then_some(Nanos(nanos as u64))
}
