//! Execution of an iteration by a plan.

use std::collections::BTreeMap;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::Action;
use elbowroom_ir::{ActionId, BufferId, Id, TensorId};

use super::accelerator::{Accelerator, AcceleratorError};
use super::events::{DeviceEvent, DeviceIteration, ExpectedEvent};
use super::memory::DeviceMemory;
use super::{ALIGN, BlockHandle, DeviceStats};

/// A plan in use, and the program's progress in it.
pub(super) struct PlannedRun {
    plan: CheckedPlan,
    iteration: DeviceIteration,
    /// The block with each number of the iteration.
    numbers: Vec<BlockHandle>,
    /// The block that holds each tensor, and the tensor in each buffer.
    of_value: BTreeMap<TensorId, BlockHandle>,
    in_buffer: BTreeMap<BufferId, TensorId>,
    event: usize,
    step: usize,
    /// Iterations completed by the plan.
    pub iterations: u64,
}

impl PlannedRun {
    /// Moves all blocks to where the plan expects them at the start of an iteration. `None` if the plan does not fit this iteration and
    /// memory.
    pub fn new<A: Accelerator>(
        plan: CheckedPlan,
        iteration: DeviceIteration,
        memory: &mut DeviceMemory<A>,
        stats: &mut DeviceStats,
    ) -> Result<Option<Self>, AcceleratorError> {
        let steps = || plan.schedule().steps.values();
        let computed = steps().filter_map(|step| match &step.action {
            Action::Compute(launch) => Some(launch.op),
            _ => None,
        });
        // The program determines which operations run, and in which order.
        let in_order = computed.enumerate().all(|(at, op)| op.index() == at);
        let fits = in_order
            && plan.trace().fingerprint() == iteration.trace.fingerprint()
            && plan.machine().memory.get() <= memory.limit() as u64
            && plan.machine().align.get().is_multiple_of(ALIGN as u64)
            && steps().all(|step| !matches!(step.action, Action::Recompute(_)));
        if !fits {
            return Ok(None);
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
        for (&block, at_boundary) in run.numbers.iter().zip(&run.plan.schedule().boundary) {
            if let Some(buffer) = at_boundary.device {
                memory.place(block, run.offset(buffer), stats)?;
                if !at_boundary.host {
                    memory.drop_host_copy(block);
                }
            }
        }
        Ok(Some(run))
    }

    /// Events per iteration.
    pub fn period(&self) -> usize {
        self.iteration.events.len()
    }

    fn offset(&self, buffer: BufferId) -> usize {
        self.plan.plan().placement.offsets[buffer].get() as usize
    }

    /// Starts an iteration: its persistent tensors are in the blocks that hold them now.
    fn begin(&mut self) {
        self.numbers.clone_from(&self.iteration.blocks);
        self.of_value.clear();
        self.in_buffer.clear();
        let pairs = self.plan.trace().persistent().iter().zip(&self.plan.schedule().boundary);
        for ((pair, at_boundary), &block) in pairs.zip(&self.numbers) {
            self.of_value.insert(pair.begin, block);
            if let Some(buffer) = at_boundary.device {
                self.in_buffer.insert(buffer, pair.begin);
            }
        }
        (self.event, self.step) = (0, 0);
    }

    /// Advances to an event. Returns false if it is not the expected one. Before an operation, all actions of the plan that precede it have
    /// been carried out when this returns.
    pub fn advance_to<A: Accelerator>(
        &mut self,
        event: &DeviceEvent,
        memory: &mut DeviceMemory<A>,
        stats: &mut DeviceStats,
    ) -> Result<bool, AcceleratorError> {
        let is = |block: &BlockHandle, number: &usize| self.numbers.get(*number) == Some(block);
        let are = |blocks: &[BlockHandle], numbers: &[usize]| {
            blocks.len() == numbers.len() && blocks.iter().zip(numbers).all(|(block, n)| is(block, n))
        };
        let expected = match (&self.iteration.events[self.event], event) {
            (ExpectedEvent::Malloc(bytes), DeviceEvent::Malloc(_, asked)) => bytes == asked,
            (ExpectedEvent::Free(number), DeviceEvent::Free(block)) => is(block, number),
            (ExpectedEvent::Exec(reads, writes), DeviceEvent::Exec(r, w)) => are(r, reads) && are(w, writes),
            _ => false,
        };
        if !expected {
            return Ok(false);
        }
        match event {
            DeviceEvent::Malloc(block, _) => {
                self.numbers.push(*block);
                self.done(memory, stats)?;
            }
            DeviceEvent::Free(_) => self.done(memory, stats)?,
            DeviceEvent::Exec(_, writes) => self.advance(Some(writes), memory, stats)?,
        }
        Ok(true)
    }

    /// Completes the event. After the last one, carries out the rest of the plan and starts the next iteration.
    pub fn done<A: Accelerator>(
        &mut self,
        memory: &mut DeviceMemory<A>,
        stats: &mut DeviceStats,
    ) -> Result<(), AcceleratorError> {
        self.event += 1;
        if self.event == self.iteration.events.len() {
            self.advance(None, memory, stats)?;
            self.iteration.blocks = self.iteration.successors.iter().map(|&n| self.numbers[n]).collect();
            self.begin();
            self.iterations += 1;
        }
        Ok(())
    }

    /// Carries out the plan's actions up to and including the next operation, which writes the given blocks, or to the end.
    fn advance<A: Accelerator>(
        &mut self,
        operation: Option<&[BlockHandle]>,
        memory: &mut DeviceMemory<A>,
        stats: &mut DeviceStats,
    ) -> Result<(), AcceleratorError> {
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
                            memory.place(block, self.offset(buffer), stats)?;
                        }
                    }
                    return Ok(());
                }
                &Action::Offload { tensor: value, .. } => {
                    if let Some(&block) = self.of_value.get(&value) {
                        memory.copy_to_host(block, stats)?;
                    }
                }
                &Action::Prefetch { tensor: value, to } => {
                    self.in_buffer.insert(to, value);
                    if let Some(&block) = self.of_value.get(&value) {
                        memory.place(block, self.offset(to), stats)?;
                    }
                }
                // The block stays on the device until its bytes are needed. If the program frees it before that, which it does if nothing
                // reads it again, nothing is copied; if the program departs from the plan, the block can still be read.
                Action::Release { buffer } => {
                    self.in_buffer.remove(buffer);
                }
                Action::HostRelease { tensor: value } => {
                    // A later tensor of the same block may have a host copy of its own by now.
                    if let Some(&block) = self.of_value.get(value) {
                        let newest = self.of_value.iter().rev().find(|&(_, &other)| other == block);
                        if newest.is_some_and(|(newest, _)| newest == value) {
                            memory.drop_host_copy(block);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
