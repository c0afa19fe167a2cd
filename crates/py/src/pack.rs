//! Placement of buffers with known lifetimes: `pack.place` of the Python package.

use std::time::Duration;

use elbowroom_ir::packing::{Block, Interval, Problem};
use elbowroom_ir::search::{Budget, Silent, StopReason};
use elbowroom_ir::{Bytes, Table};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::InfeasibleError;

/// The buffers, as columns of equal length: sizes, alignments, fixed offsets and hints in bytes, lifetimes as half-open intervals of positions.
/// Returns the offsets, the arena size, and why the packer stopped.
#[pyfunction]
#[pyo3(signature = (sizes, starts, ends, aligns, fixed, hints, capacity, packer, evaluations, seconds, seed))]
#[expect(clippy::too_many_arguments, reason = "the Python side names them")]
pub(crate) fn place(
    py: Python<'_>,
    sizes: Vec<u64>,
    starts: Vec<u64>,
    ends: Vec<u64>,
    aligns: Vec<u64>,
    fixed: Option<Vec<Option<u64>>>,
    hints: Option<Vec<Option<u64>>>,
    capacity: Option<u64>,
    packer: &str,
    evaluations: Option<u64>,
    seconds: Option<f64>,
    seed: u64,
) -> PyResult<(Vec<u64>, u64, &'static str)> {
    if starts.len() != sizes.len() || ends.len() != sizes.len() || aligns.len() != sizes.len() {
        return Err(PyValueError::new_err("sizes, starts, ends and aligns must have the same length"));
    }
    let optional = |column: Option<Vec<Option<u64>>>, name: &str| match column {
        None => Ok(vec![None; sizes.len()]),
        Some(column) if column.len() == sizes.len() => Ok(column),
        Some(_) => Err(PyValueError::new_err(format!("sizes and {name} must have the same length"))),
    };
    let (fixed, hints) = (optional(fixed, "fixed")?, optional(hints, "hints")?);
    let packer = elbowroom_pack::packer(packer).ok_or_else(|| {
        let known: Vec<&str> = elbowroom_pack::PACKERS.iter().map(|known| known.name()).collect();
        PyValueError::new_err(format!("there is no packer `{packer}`; there are: {}", known.join(", ")))
    })?;
    let rows = sizes.iter().zip(&starts).zip(&ends).zip(&aligns).zip(fixed.iter().zip(&hints));
    let blocks: Table<_, _> = rows
        .map(|((((&size, &start), &end), &align), (&fixed, &hint))| Block {
            size: Bytes(size),
            alive: vec![Interval::new(start, end)],
            align: Bytes(align),
            windows: Vec::new(),
            fixed: fixed.map(Bytes),
            hint: hint.map(Bytes),
        })
        .collect();
    let problem = Problem { blocks, capacity: capacity.map(Bytes) };
    problem.validate().map_err(|error| PyValueError::new_err(error.to_string()))?;
    let time = duration(seconds)?;
    let budget = Budget { evaluations, time, seed, threads: 1 };
    let outcome = py.detach(|| packer.pack(&problem, &budget, &Silent));
    match (outcome.best, outcome.stop) {
        (Some(best), stop) => {
            let offsets = best.offsets.values().map(|offset| offset.get()).collect();
            Ok((offsets, best.height.get(), stop.name()))
        }
        (None, StopReason::Infeasible(_)) => {
            Err(InfeasibleError::new_err("no placement exists within the capacity"))
        }
        (None, _) => Err(InfeasibleError::new_err("no placement was found within the capacity (not proved)")),
    }
}

/// A time budget in seconds.
pub(crate) fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    seconds
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|error| PyValueError::new_err(format!("a time of {seconds} s: {error}")))
        })
        .transpose()
}
