//! Iteration times below which no schedule can be. A ratio to a bound must say which bound.
//!
//! All of them count the peak in the trace's own order of ops, except that update ops may run as early as they can, from true sizes (an
//! aligned buffer holds no more to copy), and after every permitted reuse: each output that may take the bytes of an input that dies
//! there is taken to do so.

use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Costs;
use elbowroom_ir::trace::{Op, Phase, Trace};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};

/// Which bound a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Every op runs once: holds for every schedule.
    Compute,
    /// Without recompute, what is missing at the peak must come back: max(Σ op times, (peak − limit) ÷ host→device rate).
    Return,
    /// Beaumont et al., Proposition 3: max(Σ op times, 2 × (peak − limit) ÷ rate). For offload alone, on chains whose values are all made
    /// within the iteration, over a link that both directions share.
    BothWays,
}

impl Bound {
    /// The bound on the iteration time of a trace whose values need `peak` bytes together, within `limit` bytes of load.
    pub fn time(self, total: Nanos, peak: Bytes, limit: Bytes, machine: &Machine) -> Nanos {
        let excess = u128::from(peak.saturating_sub(limit).get()) * 1_000_000_000;
        let copy = |rate: u64| excess / u128::from(rate.max(1));
        let link = match self {
            Self::Compute => 0,
            Self::Return => copy(machine.to_device.rate),
            // One division at equal rates, so that nothing is lost to rounding twice.
            Self::BothWays if machine.to_host.rate == machine.to_device.rate => {
                2 * excess / u128::from(machine.to_host.rate.max(1))
            }
            Self::BothWays => copy(machine.to_host.rate) + copy(machine.to_device.rate),
        };
        total.max(Nanos(u64::try_from(link).unwrap_or(u64::MAX)))
    }
}

/// The bound that holds for schedules with or without recompute, at a limit on the load.
pub fn lower_bound(trace: &Trace, costs: &Costs, machine: &Machine, limit: Bytes, recompute: bool) -> Nanos {
    let bound = if recompute { Bound::Compute } else { Bound::Return };
    bound.time(costs.total(), needed_peak(trace), limit, machine)
}

/// The most bytes that are needed at once, on the device or elsewhere, while the ops run in the trace's order: values already there and
/// still to be read, outputs and workspace, less what permitted reuse may save at each op. Persistent values that some op reads are
/// needed throughout, because the next iteration reads them again.
pub fn needed_peak(trace: &Trace) -> Bytes {
    let mut persistent = vec![false; trace.tensors().len()];
    let mut is_end = persistent.clone();
    for pair in trace.persistent() {
        // A value that no op reads never has to come back.
        let read = !trace.users(pair.begin).is_empty();
        persistent[pair.begin.index()] |= read;
        persistent[pair.end.index()] |= read;
        is_end[pair.end.index()] = true;
    }
    // Whether the bytes of a persistent value are still owed to the next iteration after the op that reads it last. A value that is
    // not its own end gives way to the end: by mutation the storage stays, otherwise it dies.
    let stays = |value: TensorId, op: &Op| {
        persistent[value.index()] && (is_end[value.index()] || op.overwritten_by(value).is_some())
    };
    // What the update phase reads need not wait for it, because it may run earlier.
    let early = |op: OpId| trace.ops()[op].phase == Phase::Update;
    let last_use = |value: TensorId| {
        let waits = trace.producer(value).is_none_or(early);
        trace.users(value).iter().rev().copied().find(|&op| waits || !early(op))
    };
    let end = |counted: &mut Vec<bool>, live: &mut u64, value: TensorId| {
        if std::mem::replace(&mut counted[value.index()], false) {
            *live -= trace.bytes(value).get();
        }
    };
    let mut live: u64 = trace
        .persistent()
        .iter()
        .filter(|pair| persistent[pair.begin.index()])
        .map(|pair| trace.bytes(pair.begin).get())
        .sum();
    let mut peak = live;
    let mut counted = persistent.clone();
    for (id, op) in trace.ops().iter() {
        let dies = |value: TensorId| last_use(value) == Some(id) && !stays(value, op);
        let fresh = |value: &&TensorId| op.overwrites(**value).is_none();
        let made: u64 = op.outputs.iter().filter(fresh).map(|&v| trace.bytes(v).get()).sum();
        let saved: u64 = op
            .outputs
            .iter()
            .filter(fresh)
            .filter(|&&v| op.may_reuse.iter().any(|r| r.output == v && dies(r.input)))
            .map(|&v| trace.bytes(v).get())
            .sum();
        // What dies may be counted on once: reuse cannot save more than the dying inputs hold.
        let mut dying: Vec<TensorId> = op.reads.iter().copied().filter(|&v| dies(v)).collect();
        dying.sort_unstable();
        dying.dedup();
        let overwritten = |v: TensorId| op.overwritten_by(v).is_some();
        let reusable: u64 = dying.iter().filter(|&&v| !overwritten(v)).map(|&v| trace.bytes(v).get()).sum();
        peak = peak.max(live + made - saved.min(reusable) + op.workspace.get());
        live += made;
        for &value in dying.iter().filter(|&&value| !overwritten(value)) {
            end(&mut counted, &mut live, value);
        }
        for &value in &op.outputs {
            // A storage that is overwritten counts on as its new value, if it still counted.
            let old = op.overwrites(value).map(|old| std::mem::replace(&mut counted[old.index()], false));
            counted[value.index()] = old.unwrap_or(true);
        }
        for &value in &op.outputs {
            if last_use(value).is_none() && !persistent[value.index()] {
                end(&mut counted, &mut live, value);
            }
        }
    }
    Bytes(peak)
}
