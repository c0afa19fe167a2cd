//! What a planner is asked, and the trait by which all planners answer.

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::packing::Packer;
use crate::schedule::Schedule;
use crate::search::{Budget, Observer, Outcome};
use crate::trace::{Op, Trace};
use crate::{Bytes, Nanos, OpId, Table};

/// Where durations came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CostSource {
    /// Measured on this machine by running the ops.
    Measured,
    /// Recorded elsewhere, with the trace.
    Recorded,
    /// Estimated from work and the machine's data sheet.
    Roofline,
}

/// A duration for every op of a trace. Lies beside the trace; legality never depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// Duration of each op.
    pub nanos: Table<OpId, Nanos>,
    /// Where the durations came from.
    pub source: CostSource,
}

impl Costs {
    /// Asks a model for every op of a trace.
    pub fn estimate(trace: &Trace, model: &dyn CostModel) -> Self {
        Self { nanos: trace.ops().values().map(|op| model.duration(op)).collect(), source: model.source() }
    }

    /// Sum over all ops: the iteration time of an unlimited device.
    pub fn total(&self) -> Nanos {
        self.nanos.values().sum()
    }
}

/// Durations for ops.
pub trait CostModel {
    /// How long the op takes.
    fn duration(&self, op: &Op) -> Nanos;
    /// Where its durations come from.
    fn source(&self) -> CostSource;
}

/// What a planner may decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freedom {
    /// Values may go to the host and come back.
    pub offload: bool,
    /// Ops may be run again.
    pub recompute: bool,
    /// Ops may run first in another order than the trace's, wherever every read still finds its value.
    #[serde(default)]
    pub reorder: bool,
}

impl Freedom {
    /// Values may leave in both ways; the trace's order stays.
    pub const ALL: Self = Self { offload: true, recompute: true, reorder: false };
}

/// What a planner is asked: a schedule whose load stays under a limit, as short as can be.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The iteration.
    pub trace: &'a Trace,
    /// Durations of its ops.
    pub costs: &'a Costs,
    /// The hardware. Its `memory` is what a placement must fit; a planner looks at `load_limit`.
    pub machine: &'a Machine,
    /// Largest load that the schedule may reach, each buffer counted at its size rounded up to the machine's alignment. Lower than
    /// the machine's memory when the pipeline found a placement too high and asks again.
    pub load_limit: Bytes,
    /// What may be decided.
    pub freedom: Freedom,
    /// A way to place, for planners that want to look further than the load.
    pub packer: Option<&'a dyn Packer>,
}

/// A way to decide when values stay, leave, come back or are computed again.
pub trait Scheduler: Sync {
    /// The name by which users choose it.
    fn name(&self) -> &'static str;

    /// A schedule whose load stays within the request's limit, or why there is none. Its waits order all conflicting accesses for
    /// every placement, so that it can be simulated before it is placed.
    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule>;

    /// The same, by planners that can start from other schedules for the same trace and machine, whatever these need. Others pay them no
    /// heed.
    fn schedule_from(
        &self,
        request: &Request<'_>,
        _known: &[&Schedule],
        budget: &Budget,
        observer: &dyn Observer,
    ) -> Outcome<Schedule> {
        self.schedule(request, budget, observer)
    }

    /// The planners that this one is never behind on a trace: whoever places its schedules asks them too where the first does not fit.
    fn peers(&self, _trace: &Trace) -> Vec<&'static dyn Scheduler> {
        Vec::new()
    }
}
