//! What every decision of a schedule saves and costs: for every gap in which a tensor is off the device, the bytes × time that it frees, and
//! the time of the recomputed op or of the copies. It works on a schedule of any planner.

use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Costs;
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{BufferId, Bytes, Id, Nanos, TensorId};

/// How a tensor is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Restore {
    /// From its copy on the host.
    Prefetched,
    /// By running its op again.
    Recomputed,
}

/// One gap in which a tensor is off the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GapCost {
    /// The tensor. For a persistent tensor that is off the device when the iteration ends, the tensor at the beginning.
    pub value: TensorId,
    /// How it is restored.
    pub how: Restore,
    /// Its size.
    pub bytes: Bytes,
    /// When the bytes that held it were free.
    pub from: Nanos,
    /// When bytes for it are taken again; past the iteration's end if it is restored in the next one.
    pub to: Nanos,
    /// Time spent on restoring it: that of the copies, or its share of the recomputed op, whose time is divided among the tensors it restores.
    pub cost: Nanos,
}

impl GapCost {
    /// How long the tensor is off the device.
    pub fn time(&self) -> Nanos {
        self.to.saturating_sub(self.from)
    }

    /// Bytes × nanoseconds.
    pub fn saved(&self) -> u128 {
        u128::from(self.bytes.get()) * u128::from(self.time().get())
    }
}

/// Where a tensor is on the way through a schedule.
#[derive(Clone, Copy, Default)]
struct Stay {
    buffer: Option<BufferId>,
    left: Option<Nanos>,
    /// Time of copies to the host that no return has paid for yet.
    offload: Nanos,
}

/// A walk through a schedule.
struct ScheduleWalk {
    stays: Vec<Stay>,
    /// Tensors in each buffer.
    holds: Vec<Vec<TensorId>>,
    /// End of the last action that touched each buffer.
    touched: Vec<Nanos>,
    gap_costs: Vec<GapCost>,
}

impl ScheduleWalk {
    /// The buffer no longer holds what it held.
    fn leave(&mut self, buffer: BufferId) {
        for value in std::mem::take(&mut self.holds[buffer.index()]) {
            let stay = &mut self.stays[value.index()];
            if stay.buffer == Some(buffer) {
                (stay.buffer, stay.left) = (None, Some(self.touched[buffer.index()]));
            }
        }
    }

    fn arrive(&mut self, value: TensorId, buffer: BufferId) {
        self.leave(buffer);
        let stay = &mut self.stays[value.index()];
        (stay.buffer, stay.left) = (Some(buffer), None);
        self.holds[buffer.index()].push(value);
    }

    fn touch(&mut self, buffer: BufferId, end: Nanos) {
        let touched = &mut self.touched[buffer.index()];
        *touched = end.max(*touched);
    }
}

/// All absences of a schedule that has been simulated, those that save most first.
pub fn gap_costs(
    trace: &Trace,
    costs: &Costs,
    machine: &Machine,
    schedule: &Schedule,
    timeline: &Timeline,
) -> Vec<GapCost> {
    let mut starts = vec![Nanos::ZERO; schedule.steps.len()];
    let mut ends = starts.clone();
    for span in &timeline.spans {
        if span.action.index() < starts.len() {
            (starts[span.action.index()], ends[span.action.index()]) = (span.start, span.end);
        }
    }
    let wanted = wanted(schedule);
    let mut walk = ScheduleWalk {
        stays: vec![Stay::default(); trace.tensors().len()],
        holds: vec![Vec::new(); schedule.buffers.len()],
        touched: vec![Nanos::ZERO; schedule.buffers.len()],
        gap_costs: Vec::new(),
    };
    for (pair, at_boundary) in trace.persistent().iter().zip(&schedule.boundary) {
        match at_boundary.device {
            Some(buffer) => walk.arrive(pair.begin, buffer),
            None => walk.stays[pair.begin.index()].left = Some(Nanos::ZERO),
        }
    }
    for (id, step) in schedule.steps.iter() {
        let (start, end) = (starts[id.index()], ends[id.index()]);
        match &step.action {
            Action::Compute(launch) | Action::Recompute(launch) => {
                launch.reads.iter().for_each(|&buffer| walk.touch(buffer, end));
                let again = matches!(step.action, Action::Recompute(_));
                // A tensor that is here already keeps its buffer; other outputs of a recomputed op are released at once.
                let outputs =
                    trace.ops()[launch.op].outputs.iter().copied().zip(launch.writes.iter().copied());
                let back: Vec<(TensorId, BufferId)> = outputs
                    .filter(|&(value, buffer)| {
                        !again || (walk.stays[value.index()].buffer.is_none() && wanted[buffer.index()])
                    })
                    .collect();
                let cost = costs.nanos.get(launch.op).copied().unwrap_or_default();
                let mut rest = cost;
                for (index, &(value, buffer)) in back.iter().enumerate() {
                    let share = Nanos(rest.get() / (back.len() - index) as u64);
                    rest -= share;
                    if let (true, Some(from)) = (again, walk.stays[value.index()].left) {
                        let (how, bytes) = (Restore::Recomputed, trace.bytes(value));
                        walk.gap_costs.push(GapCost { value, how, bytes, from, to: start, cost: share });
                    }
                    walk.arrive(value, buffer);
                }
                launch.writes.iter().for_each(|&buffer| walk.touch(buffer, end));
            }
            Action::Offload { tensor: value, from } => {
                walk.touch(*from, end);
                walk.stays[value.index()].offload += machine.to_host.time(trace.bytes(*value));
            }
            Action::Prefetch { tensor: value, to } => {
                let (value, bytes) = (*value, trace.bytes(*value));
                let stay = &mut walk.stays[value.index()];
                let cost = machine.to_device.time(bytes) + std::mem::take(&mut stay.offload);
                let from = stay.left.unwrap_or(Nanos::ZERO);
                walk.gap_costs.push(GapCost {
                    value,
                    how: Restore::Prefetched,
                    bytes,
                    from,
                    to: start,
                    cost,
                });
                walk.arrive(value, *to);
                walk.touch(*to, end);
            }
            Action::Release { buffer } => walk.leave(*buffer),
            Action::HostRelease { .. } => {}
        }
    }
    let ScheduleWalk { stays, mut gap_costs, .. } = walk;
    // A persistent tensor that is off the device when the iteration ends is restored in the next iteration, which runs the same schedule.
    for (pair, at_boundary) in trace.persistent().iter().zip(&schedule.boundary) {
        let end = stays[pair.end.index()];
        let first = gap_costs.iter_mut().find(|absence| absence.value == pair.begin);
        if let (None, None, Some(left), Some(first)) = (at_boundary.device, end.buffer, end.left, first) {
            first.from = left;
            first.to += timeline.iteration;
            first.cost += end.offload;
        }
    }
    gap_costs.sort_by_key(|absence| (std::cmp::Reverse(absence.saved()), absence.value, absence.from));
    gap_costs
}

/// Which buffers some action reads.
fn wanted(schedule: &Schedule) -> Vec<bool> {
    let mut wanted = vec![false; schedule.buffers.len()];
    for step in schedule.steps.values() {
        if let Some(launch) = step.action.launch() {
            launch.reads.iter().for_each(|buffer| wanted[buffer.index()] = true);
        } else if let Action::Offload { from, .. } = step.action {
            wanted[from.index()] = true;
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::machine::Channel;
    use elbowroom_ir::planning::{Freedom, Request};
    use elbowroom_sim::simulate;

    use super::*;
    use crate::chain::{Chain, Layer};
    use crate::lower::lower;
    use crate::policy::{Gap, GapAction, Policy};

    #[test]
    fn an_offload_and_a_repeat_are_told_apart_with_what_they_save_and_cost() {
        let layer = Layer { forward: Nanos(10), backward: Nanos(20), ..Layer::default() };
        let chain =
            Chain { layers: vec![layer; 4], activations: vec![Bytes(8); 5], gradients: vec![Bytes(8); 5] };
        let chain = chain.to_trace("chain").unwrap();
        let machine = Machine {
            name: "any".into(),
            memory: Bytes(1 << 20),
            align: Bytes(1),
            host_memory: Bytes(1 << 20),
            to_host: Channel::with_rate(1_000_000_000),
            to_device: Channel::with_rate(1_000_000_000),
            shared_link: true,
            flops_per_second: 1,
            half_flops_per_second: None,
            bytes_per_second: 1,
            launch: Nanos::ZERO,
        };
        let request = Request {
            trace: &chain.trace,
            costs: &chain.costs,
            machine: &machine,
            live_limit: machine.memory,
            freedom: Freedom::ALL,
            packer: None,
            pins: None,
        };
        // Input op, F0..F3, loss, B3..B0, done: x1 is read at places 2 and 8, x2 at 3 and 7. F1 is recomputed before B2.
        let mut policy = Policy::keep(&chain.trace);
        let repeat = policy.sequence[2];
        policy.sequence.insert(7, repeat);
        let [x1, x2] = [1, 2].map(|i| chain.activations[i].unwrap());
        policy.set(Gap::after(x2, 3), GapAction::Evict);
        policy.set(Gap::after(x1, 2), GapAction::Offload);
        let schedule = lower(&request, &policy).unwrap().schedule;
        let timeline = simulate(&chain.trace, &chain.costs, &machine, &schedule).unwrap();
        let gap_costs = gap_costs(&chain.trace, &chain.costs, &machine, &schedule, &timeline);

        let found = |value, how| {
            let found = gap_costs.iter().find(|a| a.value == value && a.how == how);
            found.unwrap_or_else(|| panic!("{value} {how:?} is not in {gap_costs:?}"))
        };
        let copied = found(x1, Restore::Prefetched);
        assert_eq!((copied.bytes, copied.cost), (Bytes(8), Nanos(16)));
        let made = found(x2, Restore::Recomputed);
        assert_eq!((made.from, made.cost), (Nanos(30), Nanos(10)));
        assert_eq!(made.to, Nanos(60), "after B3");
        assert_eq!(made.saved(), 8 * 30);
        assert!(gap_costs.windows(2).all(|pair| pair[0].saved() >= pair[1].saved()));
    }
}
