//! Running an iteration by a plan.

use std::collections::BTreeMap;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::Action;
use elbowroom_ir::{ActionId, BufferId, Id, TensorId};

use super::events::{DeviceEvent, DeviceIteration, ExpectedEvent};
use super::memory::DeviceMemory;
use super::{ALIGN, Block, DeviceStats};

/// A plan in use, and how far the program is.
pub(super) struct PlannedRun {
    plan: CheckedPlan,
    iteration: DeviceIteration,
    /// The block of each number of the iteration.
    numbers: Vec<Block>,
    /// The block that each value is in, and the value that each buffer holds.
    of_value: BTreeMap<TensorId, Block>,
    in_buffer: BTreeMap<BufferId, TensorId>,
    event: usize,
    step: usize,
    /// Iterations that the program has done as planned.
    pub iterations: u64,
}

impl PlannedRun {
    /// Brings everything to where the plan wants it when an iteration begins. `None` if the plan is not for this iteration and memory.
    pub fn new(
        plan: CheckedPlan,
        iteration: DeviceIteration,
        memory: &mut DeviceMemory,
        stats: &mut DeviceStats,
    ) -> Option<Self> {
        let steps = || plan.schedule().steps.values();
        let computed = steps().filter_map(|step| match &step.action {
            Action::Compute(launch) => Some(launch.op),
            _ => None,
        });
        // The program decides which operations it runs, and in which order.
        let in_order = computed.enumerate().all(|(at, op)| op.index() == at);
        let fits = in_order
            && plan.trace().fingerprint() == iteration.trace.fingerprint()
            && plan.machine().memory.get() <= memory.limit() as u64
            && plan.machine().align.get().is_multiple_of(ALIGN as u64)
            && steps().all(|step| !matches!(step.action, Action::Recompute(_)));
        if !fits {
            return None;
        }
        let mut run = Self {
            plan,
            iteration,
            numbers: Vec::new(),
            of_value: BTreeMap::new(),
            in_buffer: BTreeMap::new(),
            event: 0,
            step: 0,
            iterations: 0,
        };
        run.begin();
        for (&block, home) in run.numbers.iter().zip(&run.plan.schedule().boundary) {
            if let Some(buffer) = home.device {
                memory.place(block, run.offset(buffer), stats);
                if !home.host {
                    memory.drop_host_copy(block);
                }
            }
        }
        Some(run)
    }

    /// Events of an iteration.
    pub fn period(&self) -> usize {
        self.iteration.events.len()
    }

    fn offset(&self, buffer: BufferId) -> usize {
        self.plan.plan().placement.offsets[buffer].get() as usize
    }

    /// An iteration begins: its persistent values are in the blocks that hold them now.
    fn begin(&mut self) {
        self.numbers.clone_from(&self.iteration.blocks);
        self.of_value.clear();
        self.in_buffer.clear();
        let pairs = self.plan.trace().persistent().iter().zip(&self.plan.schedule().boundary);
        for ((pair, home), &block) in pairs.zip(&self.numbers) {
            self.of_value.insert(pair.begin, block);
            if let Some(buffer) = home.device {
                self.in_buffer.insert(buffer, pair.begin);
            }
        }
        (self.event, self.step) = (0, 0);
    }

    /// Goes on to an event, if it is the expected one. All that comes before an operation has happened when this returns.
    pub fn advance_to(
        &mut self,
        event: &DeviceEvent,
        memory: &mut DeviceMemory,
        stats: &mut DeviceStats,
    ) -> bool {
        let is = |block: &Block, number: &usize| self.numbers.get(*number) == Some(block);
        let are = |blocks: &[Block], numbers: &[usize]| {
            blocks.len() == numbers.len() && blocks.iter().zip(numbers).all(|(block, n)| is(block, n))
        };
        let expected = match (&self.iteration.events[self.event], event) {
            (ExpectedEvent::Malloc(bytes), DeviceEvent::Malloc(_, asked)) => bytes == asked,
            (ExpectedEvent::Free(number), DeviceEvent::Free(block)) => is(block, number),
            (ExpectedEvent::Exec(reads, writes), DeviceEvent::Exec(r, w)) => are(r, reads) && are(w, writes),
            _ => false,
        };
        if !expected {
            return false;
        }
        match event {
            DeviceEvent::Malloc(block, _) => {
                self.numbers.push(*block);
                self.done(memory, stats);
            }
            DeviceEvent::Free(_) => self.done(memory, stats),
            DeviceEvent::Exec(_, writes) => self.advance(Some(writes), memory, stats),
        }
        true
    }

    /// The event is over: if it is an operation, it has run. After the last one, what remains of the plan is done and the next iteration
    /// begins.
    pub fn done(&mut self, memory: &mut DeviceMemory, stats: &mut DeviceStats) {
        self.event += 1;
        if self.event == self.iteration.events.len() {
            self.advance(None, memory, stats);
            self.iteration.blocks = self.iteration.successors.iter().map(|&n| self.numbers[n]).collect();
            self.begin();
            self.iterations += 1;
        }
    }

    /// Takes the plan's steps up to and including the next operation, with the blocks that it writes; or to the end.
    fn advance(&mut self, operation: Option<&[Block]>, memory: &mut DeviceMemory, stats: &mut DeviceStats) {
        while self.step < self.plan.schedule().steps.len() {
            let action = &self.plan.schedule().steps[ActionId::new(self.step)].action;
            self.step += 1;
            match action {
                Action::Compute(launch) | Action::Recompute(launch) => {
                    let Some(blocks) = operation else { continue };
                    let outputs = &self.plan.trace().ops()[launch.op].outputs;
                    for ((&value, &buffer), &block) in outputs.iter().zip(&launch.writes).zip(blocks) {
                        self.of_value.insert(value, block);
                        if self.in_buffer.insert(buffer, value).is_none() {
                            memory.place(block, self.offset(buffer), stats);
                        }
                    }
                    return;
                }
                &Action::Offload { value, .. } => {
                    if let Some(&block) = self.of_value.get(&value) {
                        memory.copy_to_host(block, stats);
                    }
                }
                &Action::Prefetch { value, to } => {
                    self.in_buffer.insert(to, value);
                    if let Some(&block) = self.of_value.get(&value) {
                        memory.place(block, self.offset(to), stats);
                    }
                }
                // The block stays until somebody else has its bytes: if the program gives it back before that, as it will if nobody reads
                // it again, nothing is copied; and if the program leaves the plan, it may still be read.
                Action::Release { buffer } => {
                    self.in_buffer.remove(buffer);
                }
                Action::HostRelease { value } => {
                    // A later value of the same block may have a copy of its own by now.
                    if let Some(&block) = self.of_value.get(value) {
                        let newest = self.of_value.iter().rev().find(|&(_, &other)| other == block);
                        if newest.is_some_and(|(newest, _)| newest == value) {
                            memory.drop_host_copy(block);
                        }
                    }
                }
            }
        }
    }
}
