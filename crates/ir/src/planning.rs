//! The request to a planner, and the trait that all planners implement.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::packing::Packer;
use crate::schedule::Schedule;
use crate::search::{Budget, Observer, Outcome};
use crate::trace::{Op, Trace};
use crate::{Bytes, Nanos, OpId, Table, TensorId};

/// Origin of durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CostSource {
    /// Measured on this machine by running the ops.
    Measured,
    /// Recorded elsewhere, with the trace.
    Recorded,
    /// Estimated elsewhere and stated with the trace, from data types and data sheets that it does not contain.
    Captured,
    /// Estimated from the op's work and the machine's data sheet.
    Roofline,
}

impl CostSource {
    /// The word for it in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Recorded => "recorded",
            Self::Captured => "captured",
            Self::Roofline => "roofline",
        }
    }
}

/// A duration for every op of a trace. Kept apart from the trace; legality never depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// Duration of each op.
    pub nanos: Table<OpId, Nanos>,
    /// Origin of the durations.
    pub source: CostSource,
}

impl Costs {
    /// Estimates every op of a trace with a model.
    pub fn estimate(trace: &Trace, model: &dyn CostModel) -> Self {
        Self { nanos: trace.ops().values().map(|op| model.duration(op)).collect(), source: model.source() }
    }

    /// Sum over all ops: the iteration time without a limit.
    pub fn total(&self) -> Nanos {
        self.nanos.values().sum()
    }
}

/// A model of the durations of ops.
pub trait CostModel {
    /// Duration of the op.
    fn duration(&self, op: &Op) -> Nanos;
    /// Origin of its durations.
    fn source(&self) -> CostSource;
}

/// What a planner may decide. Passed on to planners that support only part of it; they use what they support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freedom {
    /// Whether tensors may be offloaded and prefetched.
    pub offload: bool,
    /// Whether ops may be recomputed.
    pub recompute: bool,
    /// Whether first runs of ops may take another order than the trace's, subject to data dependencies.
    #[serde(default)]
    pub reorder: bool,
}

impl Freedom {
    /// Offload and recompute, in the trace's order of first runs.
    pub const ALL: Self = Self { offload: true, recompute: true, reorder: false };
}

/// Decisions that the user has made about a trace, which no plan may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Tensors that are on the device from when they are made, or from the beginning of the iteration, to their last use. No op that makes
    /// one may be recomputed in the trace of the request.
    pub kept: BTreeSet<TensorId>,
    /// Persistent tensors that are on the host between iterations, by their index in the trace.
    pub hosted: BTreeSet<usize>,
}

/// A request to a planner: find a schedule as short as possible whose peak memory stays within a limit.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The iteration.
    pub trace: &'a Trace,
    /// Durations of its ops.
    pub costs: &'a Costs,
    /// The hardware. Its `memory` limits the arena; planners obey `live_limit` instead.
    pub machine: &'a Machine,
    /// Limit on the schedule's peak memory, where each buffer counts at its size rounded up to the machine's alignment. The pipeline lowers
    /// it below the machine's memory if the placement of an earlier schedule did not fit.
    pub live_limit: Bytes,
    /// What may be decided.
    pub freedom: Freedom,
    /// A packer, for planners that place their schedules during the search.
    pub packer: Option<&'a dyn Packer>,
    /// What the user has decided. Lowering obeys it, whatever the planner decides.
    pub pins: Option<&'a Pins>,
}

/// What a planner need not find out by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Schedules for the same trace and machine, whatever memory they need: warm starts.
    pub schedules: &'a [&'a Schedule],
    /// No schedule within the request's limit has a shorter iteration. A bound for a higher limit is one for all parts of a search.
    pub bound: Option<Nanos>,
    /// The search goes on, and the schedules are those of its earlier parts: a planner with warm starts of its own need not make those again.
    /// After this many evaluations a search that cools should be cold, even if the budget ends it before: what it does depends on the horizon,
    /// so that fewer evaluations repeat its beginning.
    pub horizon: Option<u64>,
}

impl<'a> Known<'a> {
    /// These schedules and nothing else.
    pub const fn schedules(schedules: &'a [&'a Schedule]) -> Self {
        Self { schedules, bound: None, horizon: None }
    }
}

/// An algorithm that decides which tensors are kept, offloaded, evicted and recomputed, and when.
pub trait Planner: Sync {
    /// The name by which users select it.
    fn name(&self) -> &'static str;

    /// A schedule whose peak memory stays within the request's limit, or why there is none. Its waits order all conflicting accesses for
    /// every placement, so that it can be simulated before it is packed.
    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule>;

    /// As [`schedule`](Self::schedule), with what is known already. Planners that cannot use it ignore it.
    fn schedule_from(
        &self,
        request: &Request<'_>,
        _known: Known<'_>,
        budget: &Budget,
        observer: &dyn Observer,
    ) -> Outcome<Schedule> {
        self.schedule(request, budget, observer)
    }

    /// Planners whose result this one guarantees to match or beat on a trace. If its first schedule cannot be packed, the pipeline packs
    /// theirs as well.
    fn peers(&self, _trace: &Trace) -> Vec<&'static dyn Planner> {
        Vec::new()
    }
}
