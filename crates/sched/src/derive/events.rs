//! The actions of the plan that the part takes over: all first runs of its ops, and those recomputations and copies that something needs.

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::Action;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{ActionId, BufferId, OpId, Table, TensorId};

use super::matching::Matching;
use super::{Holding, Underivable};

/// What the part does. Ids are those of the part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Runs an op, for the first time or again. `dying`: for each of its reads, whether nothing uses the tensor afterwards.
    Run { op: OpId, again: bool, dying: Vec<bool> },
    /// Copies a tensor to the host.
    Out(TensorId),
    /// Copies a tensor to the device.
    In(TensorId),
}

/// An action that the part takes over from the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Its position in the plan of the whole.
    pub step: ActionId,
    pub work: Work,
}

/// An action that the part may take over.
struct Draft {
    event: Event,
    /// For each tensor that it brings to the device: whether the plan has the tensor, or one that it stands for, in another buffer at this
    /// position. The part then has it there, and needs no second one.
    present: Vec<bool>,
}

/// Selects the actions, in order.
pub(super) fn select(
    whole: &CheckedPlan,
    part: &Trace,
    matching: &Matching,
    holding: Holding,
) -> Result<Vec<Event>, Underivable> {
    let drafts = Contents::new(whole, part, matching, holding).list();
    Needs::new(whole, part).select(drafts)
}

/// The tensors of the part that the plan's buffers hold, or hold tensors that these stand for.
struct Contents<'a> {
    whole: &'a CheckedPlan,
    matching: &'a Matching,
    holding: Holding,
    held: Table<BufferId, Option<TensorId>>,
    /// For each tensor, the number of buffers that hold it.
    holders: Table<TensorId, u32>,
    at_boundary: Table<BufferId, bool>,
}

impl<'a> Contents<'a> {
    fn new(whole: &'a CheckedPlan, part: &Trace, matching: &'a Matching, holding: Holding) -> Self {
        let buffers = whole.schedule().buffers.len();
        let mut this = Self {
            whole,
            matching,
            holding,
            held: Table::filled(buffers, None),
            holders: Table::filled(part.tensors().len(), 0),
            at_boundary: Table::filled(buffers, false),
        };
        for (state, pair) in whole.schedule().boundary.iter().zip(whole.trace().persistent()) {
            if let Some(buffer) = state.device {
                this.at_boundary[buffer] = true;
                this.set(buffer, matching.tensor[pair.begin]);
            }
        }
        this
    }

    fn set(&mut self, buffer: BufferId, tensor: Option<TensorId>) {
        if let Some(old) = std::mem::replace(&mut self.held[buffer], tensor) {
            self.holders[old] -= 1;
        }
        if let Some(new) = tensor {
            self.holders[new] += 1;
        }
    }

    /// Whether another buffer holds the tensor, so that it need not be brought to this one. A boundary buffer is no matter of choice: what
    /// belongs there is brought there.
    fn is_elsewhere(&self, tensor: TensorId, buffer: BufferId) -> bool {
        let here = u32::from(self.held[buffer] == Some(tensor));
        let chosen = self.holding == Holding::WhereThePlanHasBytes && !self.at_boundary[buffer];
        chosen && self.holders[tensor] > here
    }

    fn list(mut self) -> Vec<Draft> {
        let mut drafts = Vec::new();
        for (step, action) in self.whole.schedule().steps.iter().map(|(id, step)| (id, &step.action)) {
            match action {
                Action::Compute(launch) | Action::Recompute(launch) => {
                    let outputs = &self.whole.trace().ops()[launch.op].outputs;
                    let written = || outputs.iter().map(|&output| self.matching.tensor[output]);
                    let written: Vec<(BufferId, Option<TensorId>)> =
                        launch.writes.iter().copied().zip(written()).collect();
                    if let Some(op) = self.matching.op[launch.op] {
                        let again = matches!(action, Action::Recompute(_));
                        let present = written
                            .iter()
                            .map(|&(buffer, tensor)| tensor.is_some_and(|t| self.is_elsewhere(t, buffer)));
                        let present = present.collect();
                        let work = Work::Run { op, again, dying: Vec::new() };
                        drafts.push(Draft { event: Event { step, work }, present });
                    }
                    written.into_iter().for_each(|(buffer, tensor)| self.set(buffer, tensor));
                }
                &Action::Offload { tensor, .. } => {
                    let tensor = self.matching.tensor[tensor];
                    drafts.extend(tensor.map(|tensor| Draft {
                        event: Event { step, work: Work::Out(tensor) },
                        present: Vec::new(),
                    }));
                }
                &Action::Prefetch { tensor, to } => {
                    let tensor = self.matching.tensor[tensor];
                    drafts.extend(tensor.map(|tensor| Draft {
                        event: Event { step, work: Work::In(tensor) },
                        present: vec![self.is_elsewhere(tensor, to)],
                    }));
                    self.set(to, tensor);
                }
                &Action::Release { buffer } => self.set(buffer, None),
                Action::HostRelease { .. } => {}
            }
        }
        drafts
    }
}

/// What later actions need, position by position from the end.
struct Needs<'a> {
    whole: &'a CheckedPlan,
    part: &'a Trace,
    on_device: Table<TensorId, bool>,
    on_host: Table<TensorId, bool>,
    /// Persistent tensors that the part does not change and that are on the host at the boundary: the host copy is always there.
    constant: Table<TensorId, bool>,
}

impl<'a> Needs<'a> {
    /// At the boundary.
    fn new(whole: &'a CheckedPlan, part: &'a Trace) -> Self {
        let none = || Table::filled(part.tensors().len(), false);
        let mut this = Self { whole, part, on_device: none(), on_host: none(), constant: none() };
        for (state, pair) in whole.schedule().boundary.iter().zip(part.persistent()) {
            this.on_device[pair.end] |= state.device.is_some();
            let host = if pair.begin == pair.end { &mut this.constant } else { &mut this.on_host };
            host[pair.end] |= state.host;
        }
        this
    }

    fn select(mut self, drafts: Vec<Draft>) -> Result<Vec<Event>, Underivable> {
        let mut events: Vec<Event> = drafts
            .into_iter()
            .rev()
            .filter_map(|Draft { event, present }| self.take(event, &present))
            .collect();
        events.reverse();
        self.expect_start()?;
        Ok(events)
    }

    /// The event if something needs it.
    fn take(&mut self, mut event: Event, present: &[bool]) -> Option<Event> {
        match &mut event.work {
            Work::Run { op, again, dying } => {
                let op = &self.part.ops()[*op];
                let brings = |(&output, &present): (&TensorId, &bool)| self.on_device[output] && !present;
                if *again && !op.outputs.iter().zip(present).any(brings) {
                    return None;
                }
                op.outputs.iter().for_each(|&output| self.on_device[output] = false);
                dying.extend(op.reads.iter().map(|&read| !self.on_device[read]));
                op.reads.iter().for_each(|&read| self.on_device[read] = true);
            }
            &mut Work::In(tensor) => {
                if !self.on_device[tensor] || present[0] {
                    return None;
                }
                self.on_device[tensor] = false;
                self.on_host[tensor] = !self.constant[tensor];
            }
            &mut Work::Out(tensor) => {
                if !self.on_host[tensor] {
                    return None;
                }
                self.on_host[tensor] = false;
                self.on_device[tensor] = true;
            }
        }
        Some(event)
    }

    /// What is needed before the first action is there.
    fn expect_start(mut self) -> Result<(), Underivable> {
        for (state, pair) in self.whole.schedule().boundary.iter().zip(self.part.persistent()) {
            self.on_device[pair.begin] &= state.device.is_none();
            self.on_host[pair.begin] &= !state.host;
        }
        let needed = self.on_device.iter().chain(self.on_host.iter()).find(|&(_, &needed)| needed);
        needed
            .map_or(Ok(()), |(tensor, _)| Err(Underivable::Missing(self.part.tensors()[tensor].name.clone())))
    }
}
