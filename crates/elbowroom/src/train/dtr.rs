//! Dynamic tensor rematerialization (M. Kirisame et al., 2021) as the rule of dynamic execution: the tensor with the least h is evicted or
//! offloaded, depending on which restores it sooner. Offloading is our addition: it costs two copies, or one if a host copy exists, and no
//! other tensor has to be recomputed for it.
//!
//! As in the authors' prototype (section 5), tensors of less than a hundredth of the mean size are left alone: each removal would free next to
//! nothing and look at every other tensor first.
//!
//! The rule uses given durations, not those of the iteration that runs: it therefore decides the same every time, and a dry run predicts what
//! the iteration will do.

use std::sync::Arc;

use elbowroom_engine::dynamic::{Candidate, Decider, Event, Removal};
use elbowroom_ir::order::Order;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Nanos, TensorId};
use elbowroom_sched::recompute::worth::Worth;

use crate::pipeline::Task;

/// Tensors of less than the mean size divided by this are not removed while there are others.
const SMALL: u64 = 100;

/// The rule with its state during one iteration.
pub(super) struct Dtr<'a> {
    task: &'a Task,
    trace: Arc<Trace>,
    order: &'a Order,
    worth: Worth,
}

impl<'a> Dtr<'a> {
    /// The state before the iteration.
    pub(super) fn new(task: &'a Task, order: &'a Order) -> Self {
        let worth = Worth::new(&task.trace, order, &task.costs.nanos, task.machine.align);
        Self { task, trace: task.trace.clone(), order, worth }
    }

    /// The faster way to restore a tensor after its removal, and the time that this takes.
    fn restore(&mut self, candidate: &Candidate) -> (Nanos, Removal) {
        let machine = &self.task.machine;
        let bytes = self.trace.bytes(candidate.tensor);
        let offload = if candidate.on_host { Nanos::ZERO } else { machine.to_host.time(bytes) };
        let copied = candidate.may_offload.then(|| offload + machine.to_device.time(bytes));
        let recomputed =
            (candidate.may_evict && !candidate.on_host).then(|| self.worth.restore_time(candidate.tensor));
        match (copied, recomputed) {
            (Some(copied), Some(recomputed)) if copied < recomputed => (copied, Removal::Offload),
            (_, Some(recomputed)) => (recomputed, Removal::Evict),
            (Some(copied), None) => (copied, Removal::Offload),
            (None, None) => (Nanos::ZERO, Removal::Evict),
        }
    }
}

impl Decider for Dtr<'_> {
    fn note(&mut self, event: Event) {
        match event {
            Event::OpRan { op, .. } => {
                self.worth.pass(self.task.costs.nanos.get(op).copied().unwrap_or_default());
                let row = &self.trace.ops()[op];
                row.reads.iter().chain(&row.outputs).for_each(|&value| self.worth.touch(value));
            }
            Event::Available(value) => self.worth.arrive(value),
            Event::Removed(value, Removal::Evict) => self.worth.depart(value),
            Event::Unused(value) if self.order.can_recompute(value) => self.worth.depart(value),
            Event::Removed(_, Removal::Offload) | Event::Unused(_) => {}
        }
    }

    fn victim(&mut self, _: Bytes, candidates: &[Candidate]) -> Option<(TensorId, Removal)> {
        let sum: Bytes = candidates.iter().map(|candidate| candidate.bytes).sum();
        let small = sum.get() / candidates.len().max(1) as u64 / SMALL;
        let mut least: Option<(f64, TensorId, Removal)> = None;
        for candidate in candidates.iter().filter(|candidate| candidate.bytes.get() >= small) {
            let (time, how) = self.restore(candidate);
            let h = self.worth.h(candidate.tensor, time);
            let better = |&(lowest, value, _): &(f64, TensorId, Removal)| {
                h.total_cmp(&lowest).then(candidate.tensor.cmp(&value)).is_lt()
            };
            if least.as_ref().is_none_or(better) {
                least = Some((h, candidate.tensor, how));
            }
        }
        least.map(|(_, value, how)| (value, how))
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::planning::Freedom;

    use super::*;
    use crate::network::{Model, Network};

    #[test]
    fn small_tensors_stay_while_there_are_larger_ones() {
        let graph = Model::new("resnet20", elbowroom_graph::zoo::Options::new(1)).unwrap().largest().unwrap();
        let machine = elbowroom_sim::presets::machine("v100").unwrap();
        let task = Task::estimate(&graph, &machine, Freedom::ALL).unwrap();
        let order = crate::train::execution::default_order(&task.trace).unwrap();
        let tensors: Vec<TensorId> = task.trace.tensors().ids().take(3).collect();
        let candidate = |tensor: TensorId, bytes: u64| {
            let bytes = Bytes(bytes);
            Candidate { tensor, bytes, may_evict: false, may_offload: true, on_host: false }
        };
        let victim = |candidates: &[Candidate]| {
            Dtr::new(&task, &order).victim(Bytes(1), candidates).map(|(tensor, _)| tensor)
        };
        let alike: Vec<Candidate> = tensors.iter().map(|&tensor| candidate(tensor, 1 << 20)).collect();
        let least = victim(&alike).unwrap();
        let size = |tensor| if tensor == least { 64 } else { 1 << 20 };
        let mixed: Vec<Candidate> = tensors.iter().map(|&tensor| candidate(tensor, size(tensor))).collect();
        assert!(victim(&mixed).is_some_and(|tensor| tensor != least));
        assert_eq!(victim(&[candidate(least, 64)]), Some(least), "there is no larger one");
        assert_eq!(victim(&[]), None);
    }
}
