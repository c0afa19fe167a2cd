//! A table of buffers as a history of allocations, so that a packing problem and its placement are explained and shown as a trace and its plan
//! are.

use std::collections::BTreeSet;
use std::sync::Arc;

use elbowroom_import::snapshot::{Allocation, Snapshot};
use elbowroom_import::{ImportError, Imported};
use elbowroom_ir::check::{self, CheckedPlan, Illegal};
use elbowroom_ir::packing::Placement;
use elbowroom_ir::plan::Plan;
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_pack::csv::Buffers;
use elbowroom_sim::liveness;

use crate::pipeline::{Planned, Task};

/// Why a table cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// There is nothing to show.
    #[error("{file} has no buffers")]
    Empty {
        /// The file.
        file: String,
    },
    /// A buffer that is not alive all the time is none of a trace.
    #[error(
        "{file}: buffer {name} has gaps, which a history of allocations cannot state; write one line for each of its lifetimes, under names of their own"
    )]
    Gaps {
        /// The file.
        file: String,
        /// The buffer.
        name: String,
    },
    /// Its sizes are too large for a trace.
    #[error(transparent)]
    Trace(#[from] ImportError),
}

/// A table of buffers as an iteration.
#[derive(Debug)]
pub struct Table {
    /// The allocations and frees, at positions one microsecond apart.
    pub imported: Imported,
    /// The largest alignment of a buffer.
    pub align: Bytes,
    /// The offset of every buffer of at least one byte, if the table states all of them.
    offsets: Option<Vec<Bytes>>,
}

impl Table {
    /// The history of a table that was read from a file.
    ///
    /// # Errors
    ///
    /// A [`TableError`] if the table has no buffers, or some with gaps, or if its sizes add up to more than a trace holds.
    pub fn new(buffers: &Buffers, file: &str) -> Result<Self, TableError> {
        let rows = || buffers.names.iter().zip(buffers.problem.blocks.values());
        if let Some((name, _)) = rows().find(|(_, block)| block.alive.len() > 1) {
            return Err(TableError::Gaps { file: file.to_owned(), name: name.clone() });
        }
        let alive: Vec<_> = rows()
            .filter(|(_, block)| !block.size.is_zero())
            .filter_map(|(name, block)| Some((name, block, *block.alive.first()?)))
            .collect();
        if alive.is_empty() {
            return Err(TableError::Empty { file: file.to_owned() });
        }
        // What ends at a position is freed before what begins there is allocated.
        let ends = alive.iter().map(|(.., interval)| (interval.end, false));
        let starts = alive.iter().map(|(.., interval)| (interval.start, true));
        let events: Vec<(u64, bool)> = ends.chain(starts).collect::<BTreeSet<_>>().into_iter().collect();
        let event = |key: (u64, bool)| events.binary_search(&key).ok();
        let (mut times, mut now, mut last) = (Vec::with_capacity(events.len()), 0, None);
        for &(position, _) in &events {
            now += u64::from(last.replace(position).is_some_and(|last| last != position));
            times.push(Nanos(1_000 * now));
        }
        let allocations = alive.iter().map(|(name, block, interval)| Allocation {
            bytes: block.size,
            place: shown(name),
            from: event((interval.start, true)),
            to: event((interval.end, false)),
        });
        let history = Snapshot { allocations: allocations.collect(), times, reserved: Bytes::ZERO };
        Ok(Self {
            imported: history.imported(file)?,
            align: alive.iter().map(|(_, block, _)| block.align).max().unwrap_or(Bytes(1)),
            offsets: alive.iter().map(|(_, block, _)| block.fixed).collect(),
        })
    }

    /// The placement that the table states, as a plan of the task; `None` if it leaves offsets open. `kept` is the
    /// [unconstrained](crate::pipeline::unconstrained) plan, whose offsets are replaced.
    ///
    /// # Errors
    ///
    /// [`Illegal`] if two buffers share bytes while both are alive.
    pub fn placed(&self, task: &Task, kept: &Planned) -> Result<Option<CheckedPlan>, Illegal> {
        let Some(offsets) = &self.offsets else { return Ok(None) };
        let mut plan: Plan = kept.plan.plan().clone();
        for launch in plan.schedule.steps.values().filter_map(|step| step.action.launch()) {
            let tensors = &task.trace.ops()[launch.op].outputs;
            for (&tensor, &buffer) in tensors.iter().zip(&launch.writes) {
                plan.placement.offsets[buffer] = offsets[elbowroom_ir::Id::index(tensor)];
            }
        }
        let height = liveness::height(&plan.schedule, &plan.placement.offsets);
        plan.placement = Placement { height, ..plan.placement };
        let machine = task.with_memory(height.align_up(task.machine.align)).machine;
        check::check(Arc::clone(&task.trace), machine, plan).map(Some)
    }
}

/// The name of a buffer in sentences, where a number alone would be taken for a position.
fn shown(name: &str) -> String {
    match name.parse::<u64>() {
        Ok(_) => format!("buffer {name}"),
        Err(_) => name.to_owned(),
    }
}
