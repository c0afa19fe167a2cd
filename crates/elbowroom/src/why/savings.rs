//! What a treatment of some tensors saves *of the peak*, and what it costs: the schedule of the treatment is evaluated, not estimated.

use std::collections::BTreeMap;

use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::Observer;
use elbowroom_ir::trace::{Again, Phase};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};
use elbowroom_sched::lower::{evaluate, least_live};
use elbowroom_sched::policy::{Boundary, GapAction, Policy, SequenceIndex, Touches};
use elbowroom_sched::recompute::evictions::{EvictionPolicies, Evictions};
use serde::Serialize;

use super::groups::{Group, Moment, moment_of};
use super::{next_op, unlimited};
use crate::pipeline::{Task, UNLIMITED, request};
use crate::report::PlanReport;

/// What one treatment saves of the peak.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Saving {
    /// Bytes by which peak live memory falls; zero if another moment is as high.
    pub saved_bytes: Bytes,
    /// Peak live memory after it.
    pub peak_bytes: Bytes,
    /// Where that peak is.
    pub next_peak: Moment,
    /// Iteration time with that peak as the limit.
    pub iteration_ns: Nanos,
    /// Iteration time over that without a limit, less one.
    pub overhead: f64,
    /// Tensors that are treated.
    pub tensors: usize,
}

/// Evaluates a policy within the live memory that it cannot do without.
fn saving(task: &Task, policy: &Policy, before: Bytes, tensors: usize) -> Option<Saving> {
    let (peak_bytes, place) = least_live(&request(task, UNLIMITED), policy).ok()?;
    let (iteration_ns, _) = evaluate(&request(task, peak_bytes), policy).ok()?;
    let op = policy.sequence.get(place as usize).or(policy.sequence.last())?;
    Some(Saving {
        saved_bytes: before.saturating_sub(peak_bytes),
        peak_bytes,
        next_peak: moment_of(&task.trace, *op),
        iteration_ns,
        overhead: PlanReport::overhead(iteration_ns, unlimited(task)),
        tensors,
    })
}

/// What updates right behind their gradients save.
pub(super) fn prompt_updates(task: &Task) -> Option<Saving> {
    let (keep, prompt) = (Policy::keep(&task.trace), Policy::prompt(&task.trace));
    if keep.sequence == prompt.sequence {
        return None;
    }
    let (before, _) = least_live(&request(task, UNLIMITED), &keep).ok()?;
    let updates = task.trace.ops().values().filter(|op| op.phase == Phase::Update).count();
    saving(task, &prompt, before, updates).filter(|saving| !saving.saved_bytes.is_zero())
}

/// Adds to every group what offloading and recomputing its idle tensors saves, those with most bytes at the peak first, until the observer
/// interrupts. Returns the number of groups with idle tensors that were not evaluated.
pub(super) fn complete(
    task: &Task,
    keep_schedule: &Schedule,
    at: u64,
    groups: &mut [Group],
    allocations_only: bool,
    observer: &dyn Observer,
) -> usize {
    let trace = &task.trace;
    let keep = Policy::keep(trace);
    let Ok((before, _)) = least_live(&request(task, UNLIMITED), &keep) else { return 0 };
    // In the schedule that keeps everything the ops run in the trace's order, so that an op's number is its place.
    let Some(peak_op) = next_op(trace, keep_schedule, at) else { return 0 };
    let touches = Touches::of(trace, &keep.sequence);
    let evictions = EvictionPolicies::new(trace, &keep.sequence, touches.clone());
    // One tensor's end can be another one's beginning: the first counts.
    let pairs = trace.persistent().iter().enumerate().rev();
    let persistent: BTreeMap<TensorId, usize> =
        pairs.flat_map(|(index, pair)| [(pair.begin, index), (pair.end, index)]).collect();
    let mut unevaluated = 0;
    for group in groups {
        if observer.interrupted() {
            unevaluated += usize::from(!group.idle.is_empty());
            continue;
        }
        let (policy, count) = offloaded(&keep, &touches, &persistent, peak_op, &group.idle);
        if count > 0 {
            group.offload = saving(task, &policy, before, count);
        }
        let again: Vec<TensorId> = group.idle.iter().copied().filter(|&t| recomputable(task, t)).collect();
        if !allocations_only && !again.is_empty() {
            let tensors = again.len();
            let decided = Evictions { evicted: again, offloaded: Vec::new() };
            let policy = evictions.policy(&request(task, UNLIMITED), &decided);
            group.recompute = saving(task, &policy, before, tensors);
        }
    }
    unevaluated
}

/// The policy that offloads these tensors while the op of the peak runs, and how many of them can be offloaded. `persistent` has the indices of
/// tensors that outlive the iteration.
fn offloaded(
    keep: &Policy,
    touches: &Touches,
    persistent: &BTreeMap<TensorId, usize>,
    peak_op: OpId,
    tensors: &[TensorId],
) -> (Policy, usize) {
    let place = peak_op.index() as SequenceIndex;
    let mut policy = keep.clone();
    let mut count = 0;
    for &tensor in tensors {
        let around = touches.gaps(tensor).find(|(gap, until)| gap.after < Some(place) && place < until.place);
        if let Some((gap, _)) = around {
            policy.set(gap, GapAction::Offload);
        } else if let Some(&index) = persistent.get(&tensor) {
            policy.boundaries[index] = Boundary::Host;
        } else {
            continue;
        }
        count += 1;
    }
    (policy, count)
}

/// Whether a tensor is a result of the forward phase that may be made once more.
fn recomputable(task: &Task, tensor: TensorId) -> bool {
    let producer = task.trace.producer(tensor).map(|op| &task.trace.ops()[op]);
    producer.is_some_and(|op| op.phase == Phase::Forward && op.again != Again::Never)
}
