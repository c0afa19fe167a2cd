//! Dynamic execution: iterations without a plan. Ops run one at a time in a given order. Whenever bytes are missing, a [`Decider`] chooses
//! a tensor, which is either evicted and later recomputed, or offloaded and later prefetched. The engine offers it only choices that are
//! safe, so every decider gives the same bits as a run without a limit.
//!
//! ```text
//! order ─▶ op ─▶ inputs present?       no: prefetch them, or recompute them (and first their inputs)
//!                room for the outputs? no: enough bytes free but scattered: compact, if that moves few bytes
//!                                         otherwise: Decider::victim ─▶ evict or offload, and try again
//!                run
//! ```
//!
//! **What is safe.** A tensor may be evicted only if its op can be recomputed with the same operands at every later time at which the tensor
//! may be missing ([`Order::can_recompute`](elbowroom_ir::order::Order::can_recompute)). Recomputing gives the same bits, because an op's bits
//! depend on its operands, the seed and the iteration alone. The operands of the op that runs next are neither evicted nor offloaded.
//! Operands of ops that wait for a recomputation may be offloaded but not evicted. Ops that overwrite a tensor in place run exactly once.
//!
//! Method: Kirisame et al., *Dynamic tensor rematerialization* (2021), extended by offloading; the rule itself is the decider's.
//!
//! Tensors and workspaces are blocks of one arena, so the limit is never exceeded. If free bytes are fragmented, the engine compacts them,
//! unless that would move many times the bytes that are wanted: then it removes more tensors first, until a thirty-second of the arena is
//! free. Host copies stay within the machine's host memory, counted as the sum of their sizes. If it is full, copies of tensors that are in
//! the arena as well are discarded first; after that, tensors can only be evicted.

mod allocator;
pub(crate) mod dry_run;
pub(crate) mod host_space;
mod run;

use elbowroom_ir::order::Order;
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::timeline::Traffic;
use elbowroom_ir::{Bytes, Nanos, OpId, TensorId};

pub(crate) use run::{DynamicRun, RunSetup};

/// How a tensor is removed from the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Removal {
    /// Evict: without a copy. Its op is recomputed when the tensor is read.
    Evict,
    /// Offload: with a host copy, which is prefetched when the tensor is read.
    Offload,
}

/// A tensor that may be removed from the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The tensor.
    pub tensor: TensorId,
    /// Bytes that its removal frees, rounded up to the alignment.
    pub bytes: Bytes,
    /// Whether it may be evicted.
    pub may_evict: bool,
    /// Whether it may be offloaded.
    pub may_offload: bool,
    /// Whether a host copy exists already, so that offloading copies nothing.
    pub on_host: bool,
}

/// What has happened in a dynamic iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An op ran.
    OpRan {
        /// The op.
        op: OpId,
        /// Its duration.
        took: Nanos,
    },
    /// A tensor is in the arena: since the start of the iteration, because an op wrote it, or after a prefetch.
    Available(TensorId),
    /// A tensor was removed and will be restored when it is read.
    Removed(TensorId, Removal),
    /// A tensor was removed because no further op reads it, except to recompute another one.
    Unused(TensorId),
}

/// Chooses the tensors to remove when bytes are missing.
pub trait Decider: Send {
    /// Is called for every event, in order.
    fn note(&mut self, _event: Event) {}

    /// Chooses one of the candidates and a way to remove it that it permits; `None` gives up. `missing` bytes are needed; the engine calls
    /// again until they are free.
    fn victim(&mut self, missing: Bytes, candidates: &[Candidate]) -> Option<(TensorId, Removal)>;
}

/// The parameters of a dynamic iteration.
pub struct DynamicExecution<'a> {
    /// The order of the ops, made for the trace of the session's graph.
    pub order: &'a Order,
    /// Whether tensors may be offloaded and recomputed.
    pub freedom: Freedom,
    /// Chooses the tensors to remove.
    pub decider: &'a mut dyn Decider,
}

impl DynamicExecution<'_> {
    /// A copy with a shorter lifetime.
    pub(crate) fn reborrow(&mut self) -> DynamicExecution<'_> {
        DynamicExecution { order: self.order, freedom: self.freedom, decider: &mut *self.decider }
    }
}

/// Measurements of a dynamic iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DynamicReport {
    /// Iteration time.
    pub iteration: Nanos,
    /// Largest end of any range handed to a kernel or a copy in this iteration.
    pub measured_peak: Bytes,
    /// Tensors evicted.
    pub evicted: usize,
    /// Tensors offloaded, including those that already had a host copy.
    pub offloaded: usize,
    /// Ops recomputed.
    pub recomputed: usize,
    /// Time spent recomputing.
    pub recompute_time: Nanos,
    /// Bytes copied to and from the host.
    pub traffic: Traffic,
    /// Peak of the bytes of all host copies.
    pub peak_host_bytes: Bytes,
    /// Size and duration of every copy to the host.
    pub offload_copies: Vec<(Bytes, Nanos)>,
    /// Size and duration of every copy to the device.
    pub prefetch_copies: Vec<(Bytes, Nanos)>,
    /// How often the arena was compacted.
    pub compactions: usize,
    /// Bytes moved by compaction.
    pub moved: Bytes,
    /// Every run of an op with its duration, in order.
    pub ops: Vec<(OpId, Nanos)>,
}
