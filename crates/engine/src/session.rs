//! A session: a graph, a device with its arena, and the iterations run on it, either by a checked plan or dynamically.
//!
//! The persistent tensors stay in the arena and on the host when the plan or the graph changes: [`Session::set_plan`] moves them to where the
//! next plan expects them; [`Session::run_dynamic`] uses them where they are.

use std::sync::{Arc, PoisonError, Weak};

use elbowroom_graph::{Graph, Parameter, Whole};
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::{Trace, TraceError};
use elbowroom_ir::{Bytes, Nanos, TensorId};
use rayon::ThreadPool;

use crate::arena::{Arena, Extent};
use crate::chaos::Chaos;
use crate::device::{CpuDevice, CpuParts, Device, Exchange, IterationKey};
use crate::error::{EngineError, HostError};
use crate::host::MemoryTier;
use crate::host::slots::HostCopies;
use crate::kernels;
use crate::persistent::{self, PIECE, PersistentLocation};
use crate::prepared::PreparedPlan;
use crate::program::PlannedLocation;
use crate::streams::{ExecutorState, StreamThreads};

mod dynamic;
mod options;

pub use options::SessionOptions;

/// Size of the largest element type, in bytes.
const ELEMENT: u64 = 4;

/// Measurements of one planned iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterationReport {
    /// Iteration time, from the start of the first action to the end of the last.
    pub iteration: Nanos,
    /// Largest end of any range given to a kernel or a copy since the session adopted its plan, in bytes from the start of the arena;
    /// recorded at launch.
    pub measured_peak: Bytes,
}

/// The trace of a graph as this engine runs it, with the workspaces of the engine's kernels.
///
/// # Errors
/// The graph's ops do not form a valid trace.
pub fn trace(graph: &Graph) -> Result<Trace, TraceError> {
    graph.trace(&|graph, op| kernels::workspace(&graph.nodes[op].kind))
}

/// A training in progress.
pub struct Session {
    state: SessionState,
    pool: Arc<ThreadPool>,
    graph: Arc<Graph>,
    /// The persistent tensors of the graph, and of every other one that it may be replaced by.
    persistent: Vec<Whole>,
    /// The trace of the current graph, once it has been needed.
    trace: Option<Arc<Trace>>,
    /// The graphs for which plans have been run, with their traces, which they share with the plans. Networks with changing structure return to
    /// the same graphs, and tracing a small graph takes as long as running it. Weak references: the caller owns the graphs.
    traced: Vec<(Weak<Graph>, Arc<Trace>)>,
    align: u64,
    /// Limit on the sum of all host copies, in bytes.
    host_memory: Bytes,
    options: SessionOptions,
    /// Bytes of the arena that the next dynamic iteration uses, if a dry run has determined them.
    dynamic_peak: Option<Bytes>,
    /// The factor of every learning rate.
    rate: f32,
    broken: bool,
}

/// What the session holds between iterations.
enum SessionState {
    /// A plan and the streams that run it.
    Planned(PlannedState),
    /// Memory without streams.
    Idle(IdleMemory),
    /// Neither: only during a change from one to the other, or after such a change has failed.
    Transition,
}

struct PlannedState {
    // Dropped first: the streams' threads must exit before the memory that they use is freed.
    streams: StreamThreads,
    shared: Arc<ExecutorState>,
    plan: Arc<CheckedPlan>,
    /// In the graph's order.
    locations: Vec<PlannedLocation>,
    /// Size of the host tier, in bytes.
    host_bytes: Bytes,
}

/// The device with the persistent tensors on it, and no threads.
struct IdleMemory {
    device: Box<dyn Device>,
    exchange: Exchange,
    /// In the graph's order.
    locations: Vec<PersistentLocation>,
    /// Size of the host tier, in bytes.
    host_bytes: Bytes,
}

impl IdleMemory {
    /// Changes the size of the host tier.
    fn resize_host(&mut self, bytes: Bytes) -> Result<(), EngineError> {
        if bytes != self.host_bytes {
            let mut tier = self.device.replace_host(Box::new(MemoryTier::new(Bytes::ZERO)?));
            let resized = tier.resize(bytes);
            drop(self.device.replace_host(tier));
            resized?;
            self.host_bytes = bytes;
        }
        Ok(())
    }
}

/// Refuses a graph that kernels may not run.
fn expect_sound(graph: &Graph) -> Result<(), EngineError> {
    match kernels::graph_fault(graph) {
        Some(why) => Err(EngineError::Graph { graph: graph.name.clone(), why }),
        None => Ok(()),
    }
}

/// Refuses a machine that does not align buffers to their elements. Zero is a multiple of every number.
fn expect_alignment(machine: &Machine) -> Result<(), EngineError> {
    let align = machine.align.get();
    if align == 0 || !align.is_multiple_of(ELEMENT) {
        return Err(EngineError::Alignment { align, needed: ELEMENT });
    }
    Ok(())
}

/// Refuses a plan whose host copies, each in one range of bytes, do not fit in the host memory of its machine.
fn expect_host_memory(prepared: &PreparedPlan, plan: &CheckedPlan) -> Result<(), EngineError> {
    let (needed, limit) = (prepared.copies.size, plan.machine().host_memory);
    if needed > limit {
        return Err(HostError::Limit { needed, limit }.into());
    }
    Ok(())
}

/// Whether a host tier that is larger than necessary is made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shrink {
    Yes,
    No,
}

/// Bytes that a session reserves on the host for a plan. Host copies are placed in one range of bytes each, so this can be more than the sum
/// that rule L8 limits.
pub fn reserved_host_bytes(plan: &CheckedPlan) -> Bytes {
    HostCopies::place(plan).size
}

impl Session {
    /// Opens a session for a plan: reserves the arena and the host tier, starts the threads and writes the initial values of the persistent
    /// tensors. The arena is as large as the memory of the plan's machine.
    ///
    /// # Errors
    /// The plan is for another trace than the graph's; its host copies need more than the host memory of its machine
    /// ([`HostError::Limit`]); memory, host tier or threads cannot be had; the machine's alignment is not a multiple of four bytes.
    pub fn new(
        graph: Arc<Graph>,
        plan: Arc<CheckedPlan>,
        options: SessionOptions,
    ) -> Result<Self, EngineError> {
        expect_sound(&graph)?;
        let prepared = PreparedPlan::new(&graph, &trace(&graph)?, &plan)?;
        expect_host_memory(&prepared, &plan)?;
        expect_alignment(plan.machine())?;
        let mut session = Self::open(graph, plan.machine(), options, prepared.copies.size)?;
        session.traced.push((Arc::downgrade(&session.graph), Arc::clone(plan.trace())));
        let SessionState::Idle(memory) = &mut session.state else { return Err(EngineError::Broken) };
        memory.locations = prepared.resolved_locations();
        session.initialize()?;
        session.start(prepared, plan)?;
        Ok(session)
    }

    /// Opens a session without a plan, with an arena as large as the machine's memory. The persistent tensors are placed in the arena in
    /// order; those that do not fit are placed on the host.
    ///
    /// # Errors
    /// Memory, host tier or threads cannot be had; the machine's alignment is not a multiple of four bytes.
    pub fn without_plan(
        graph: Arc<Graph>,
        machine: &Machine,
        options: SessionOptions,
    ) -> Result<Self, EngineError> {
        expect_sound(&graph)?;
        expect_alignment(machine)?;
        let (limit, align) = (machine.memory.get() as usize, machine.align.get() as usize);
        let (mut end, mut host_end) = (0, 0);
        let locations = graph.persistent.iter().map(|parameter| {
            let bytes = graph.tensors[parameter.begin].bytes().get() as usize;
            let (offset, next) = (end, end + bytes.next_multiple_of(align));
            if next > limit {
                host_end += bytes;
                return PersistentLocation { bytes, device: None, host: Some(host_end - bytes) };
            }
            end = next;
            PersistentLocation { bytes, device: Some(Extent { offset, len: bytes }), host: None }
        });
        let locations = locations.collect();
        let (needed, limit) = (Bytes(host_end as u64), machine.host_memory);
        if needed > limit {
            return Err(HostError::Limit { needed, limit }.into());
        }
        let mut session = Self::open(graph, machine, options, needed)?;
        let SessionState::Idle(memory) = &mut session.state else { return Err(EngineError::Broken) };
        memory.locations = locations;
        session.initialize()?;
        Ok(session)
    }

    fn open(
        graph: Arc<Graph>,
        machine: &Machine,
        options: SessionOptions,
        host_bytes: Bytes,
    ) -> Result<Self, EngineError> {
        let threads = options.threads.max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("elbowroom-compute-{index}"))
            .build()
            .map_err(|error| EngineError::Threads { threads, why: error.to_string() })?;
        let pool = Arc::new(pool);
        let parts = CpuParts {
            arena: Arena::new(machine.memory)?,
            graph: Arc::clone(&graph),
            pool: Arc::clone(&pool),
            host: options.host.open(host_bytes)?,
            link: options.host.link,
        };
        let device = CpuDevice::new(parts, 0);
        let device: Box<dyn Device> = match options.chaos {
            Some(chaos) => Box::new(Chaos::new(device, chaos)),
            None => Box::new(device),
        };
        let memory = IdleMemory { device, exchange: exchange(&graph), locations: Vec::new(), host_bytes };
        let host_memory = machine.host_memory;
        let state = SessionState::Idle(memory);
        Ok(Self {
            state,
            pool,
            persistent: graph.wholes(),
            graph,
            trace: None,
            traced: Vec::new(),
            align: machine.align.get(),
            host_memory,
            options,
            dynamic_peak: None,
            rate: 1.0,
            broken: false,
        })
    }

    fn initialize(&self) -> Result<(), EngineError> {
        let SessionState::Idle(memory) = &self.state else { return Err(EngineError::Broken) };
        persistent::initialize(&*memory.device, &memory.locations, &self.graph, self.options.seed, &self.pool)
    }

    /// Sets the factor of every learning rate from the next iteration on; 1 at first. No plan depends on it.
    pub fn set_rate(&mut self, rate: f32) {
        self.rate = rate;
    }

    /// The plan in use, if there is one.
    pub fn plan(&self) -> Option<&Arc<CheckedPlan>> {
        match &self.state {
            SessionState::Planned(planned) => Some(&planned.plan),
            _ => None,
        }
    }

    /// The graph in use.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Adopts a plan of this graph or of another one with the same persistent tensors, and moves these to where the plan expects them.
    /// Returns the bytes moved.
    ///
    /// # Errors
    /// The plan is for another trace or another arena size, its host copies need more than the host memory of its machine, or the graph has
    /// other persistent tensors: the session is unchanged. If a copy fails, the session is unusable afterwards.
    pub fn set_plan(&mut self, graph: &Arc<Graph>, plan: &Arc<CheckedPlan>) -> Result<Bytes, EngineError> {
        self.expect_usable()?;
        self.expect_same_parameters(graph)?;
        if self.plan().is_some_and(|now| Arc::ptr_eq(now, plan)) && Arc::ptr_eq(&self.graph, graph) {
            return Ok(Bytes::ZERO);
        }
        let prepared = self.prepare(graph, plan)?;
        let (machine, arena) = (plan.machine(), self.limit()?);
        if machine.memory != arena {
            return Err(EngineError::ArenaMismatch { plan: machine.memory, arena });
        }
        expect_host_memory(&prepared, plan)?;
        // A failure from here on leaves persistent tensors in locations that are not recorded anywhere.
        self.broken = true;
        // A dynamic iteration reserves what it might need, a plan what it does need.
        let shrink = if self.plan().is_none() { Shrink::Yes } else { Shrink::No };
        let moved = self.move_persistent(&prepared.resolved_locations(), prepared.copies.size, shrink)?;
        self.replace_graph(graph);
        self.start(prepared, Arc::clone(plan))?;
        self.broken = false;
        Ok(moved)
    }

    /// Prepares a plan of a graph, which is traced the first time.
    fn prepare(&mut self, graph: &Arc<Graph>, plan: &CheckedPlan) -> Result<PreparedPlan, EngineError> {
        // An `Arc` that we share cannot change, and while we hold a weak reference its address is not reused.
        let known = self.traced.iter().find(|(known, _)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(graph)));
        if let Some((_, trace)) = known {
            return PreparedPlan::new(graph, trace, plan);
        }
        expect_sound(graph)?;
        let prepared = PreparedPlan::new(graph, &trace(graph)?, plan)?;
        self.traced.retain(|(known, _)| known.strong_count() > 0);
        self.traced.push((Arc::downgrade(graph), Arc::clone(plan.trace())));
        Ok(prepared)
    }

    /// Replaces the graph by another one with the same persistent tensors, and drops the plan. The next iteration is a dynamic one
    /// ([`run_dynamic`](Self::run_dynamic)) unless a plan is adopted first.
    ///
    /// # Errors
    /// The graph has other persistent tensors.
    pub fn set_graph(&mut self, graph: &Arc<Graph>) -> Result<(), EngineError> {
        self.expect_usable()?;
        self.expect_same_parameters(graph)?;
        if !Arc::ptr_eq(&self.graph, graph) {
            expect_sound(graph)?;
            self.make_idle();
            self.replace_graph(graph);
        }
        Ok(())
    }

    /// Size of the arena, in bytes.
    pub fn limit(&self) -> Result<Bytes, EngineError> {
        Ok(self.device()?.limit())
    }

    /// Gives the caller access to the batch buffer of an input slot. Its contents stay until they are overwritten.
    pub fn fill_input<R>(&mut self, slot: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        match &mut self.state {
            SessionState::Planned(planned) => fill(&mut planned.shared.exchange().inputs[slot]),
            SessionState::Idle(memory) => fill(&mut memory.exchange.inputs[slot]),
            SessionState::Transition => fill(&mut []),
        }
    }

    /// The result that the last iteration wrote to an output slot, as `f32` elements.
    pub fn output(&self, slot: usize) -> Vec<f32> {
        let floats = |exchange: &Exchange| {
            let words = exchange.outputs[slot].chunks_exact(4);
            words.map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
        };
        match &self.state {
            SessionState::Planned(planned) => floats(&planned.shared.exchange()),
            SessionState::Idle(memory) => floats(&memory.exchange),
            SessionState::Transition => Vec::new(),
        }
    }

    /// Runs one iteration of the plan on the batches in the input slots. `iteration` is its number, from zero; random ops and the
    /// optimizer's bias correction depend on it.
    ///
    /// # Errors
    /// [`EngineError::NoPlan`] without a plan. After a failed copy or a defect the session is unusable, because part of the iteration has
    /// run.
    pub fn run_iteration(&mut self, iteration: u64) -> Result<IterationReport, EngineError> {
        self.expect_usable()?;
        let SessionState::Planned(PlannedState { streams, shared, .. }) = &self.state else {
            return Err(EngineError::NoPlan);
        };
        let outcome =
            streams.run(shared, IterationKey { seed: self.options.seed, iteration, rate: self.rate });
        self.broken = outcome.is_err();
        outcome?;
        shared.copies.write().unwrap_or_else(PoisonError::into_inner).swap_boundary_slots();
        Ok(IterationReport {
            iteration: shared.recording.iteration(&shared.program),
            measured_peak: shared.recording.measured_peak(),
        })
    }

    /// The measured timeline of the last planned iteration; empty without a plan.
    pub fn timeline(&self) -> Timeline {
        match &self.state {
            SessionState::Planned(PlannedState { shared, plan, .. }) => {
                shared.recording.timeline(&shared.program, plan.schedule())
            }
            _ => Timeline::default(),
        }
    }

    /// Size of the host tier, in bytes.
    pub fn host_bytes(&self) -> Bytes {
        match &self.state {
            SessionState::Planned(planned) => planned.host_bytes,
            SessionState::Idle(memory) => memory.host_bytes,
            SessionState::Transition => Bytes::ZERO,
        }
    }

    /// The offset of the first byte above the plan's arena size that was written to, or `None` if there is none. Far above the arena size, pages
    /// are examined, and the first byte of the page is returned. Always `None` without a plan or without [`SessionOptions::paint`].
    pub fn first_overwritten(&self) -> Option<Bytes> {
        let SessionState::Planned(planned) = &self.state else { return None };
        if !self.options.paint {
            return None;
        }
        planned.shared.device.first_overwritten(planned.plan.placement().height)
    }

    /// The persistent tensors, each of those in tiles as one. Their positions are the indices that the methods below take.
    pub fn persistent(&self) -> &[Whole] {
        &self.persistent
    }

    /// Size of a persistent tensor, in bytes.
    pub fn persistent_bytes(&self, index: usize) -> usize {
        self.persistent[index].bytes()
    }

    /// Copies a whole persistent tensor into `value`.
    pub fn read_persistent(&self, index: usize, value: &mut [u8]) -> Result<(), EngineError> {
        self.expect_usable()?;
        self.expect_size(index, value.len())?;
        for (piece, bytes) in value.chunks_mut(PIECE).enumerate() {
            self.read_piece(index, piece * PIECE, bytes)?;
        }
        Ok(())
    }

    /// Overwrites a whole persistent tensor, for example with a checkpoint's.
    pub fn write_persistent(&mut self, index: usize, value: &[u8]) -> Result<(), EngineError> {
        self.expect_size(index, value.len())?;
        let mut rest = value;
        for position in self.persistent[index].tiles.clone() {
            let location = self.location(position)?;
            let (tile, others) = rest.split_at(location.bytes.min(rest.len()));
            for (piece, bytes) in tile.chunks(PIECE).enumerate() {
                location.write(self.device()?, piece * PIECE, bytes)?;
            }
            rest = others;
        }
        Ok(())
    }

    /// Reads part of a persistent tensor, from byte `skip` on.
    pub(crate) fn read_piece(&self, index: usize, skip: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.expect_usable()?;
        let (mut skip, mut rest) = (skip, bytes);
        for position in self.persistent[index].tiles.clone() {
            let location = self.location(position)?;
            let here = location.bytes.saturating_sub(skip).min(rest.len());
            let (tile, others) = rest.split_at_mut(here);
            if here > 0 {
                location.read(self.device()?, skip, tile)?;
            }
            (skip, rest) = (skip.saturating_sub(location.bytes), others);
        }
        Ok(())
    }

    fn device(&self) -> Result<&dyn Device, EngineError> {
        match &self.state {
            SessionState::Planned(planned) => Ok(&*planned.shared.device),
            SessionState::Idle(memory) => Ok(&*memory.device),
            SessionState::Transition => Err(EngineError::Broken),
        }
    }

    /// Where the tensor at a position in the graph's list is.
    fn location(&self, index: usize) -> Result<PersistentLocation, EngineError> {
        match &self.state {
            SessionState::Planned(planned) => {
                let copies = planned.shared.copies.read().unwrap_or_else(PoisonError::into_inner);
                Ok(planned.locations[index].resolve(&copies))
            }
            SessionState::Idle(memory) => Ok(memory.locations[index]),
            SessionState::Transition => Err(EngineError::Broken),
        }
    }

    fn locations(&self) -> Result<Vec<PersistentLocation>, EngineError> {
        (0..self.graph.persistent.len()).map(|index| self.location(index)).collect()
    }

    /// Stops the streams, if there are any, and keeps the memory.
    fn make_idle(&mut self) {
        let Ok(locations) = self.locations() else { return };
        let host_bytes = self.host_bytes();
        self.state = match std::mem::replace(&mut self.state, SessionState::Transition) {
            SessionState::Planned(PlannedState { streams, shared, .. }) => {
                drop(streams);
                // The streams held the only other references.
                Arc::into_inner(shared).map_or(SessionState::Transition, |shared| {
                    let (device, exchange) = shared.into_parts();
                    SessionState::Idle(IdleMemory { device, exchange, locations, host_bytes })
                })
            }
            other => other,
        };
    }

    /// Stops the streams, moves the persistent tensors to `locations`, and changes the size of the host tier if necessary. Returns the bytes moved.
    fn move_persistent(
        &mut self,
        locations: &[PersistentLocation],
        host_bytes: Bytes,
        shrink: Shrink,
    ) -> Result<Bytes, EngineError> {
        self.make_idle();
        let SessionState::Idle(memory) = &mut self.state else { return Err(EngineError::Broken) };
        let keep = match shrink {
            Shrink::Yes => host_bytes,
            Shrink::No => host_bytes.max(memory.host_bytes),
        };
        // One tier, large enough for the host copies of before and after: two at once would take the sum of both.
        let is_empty = memory.locations.iter().all(|location| location.host.is_none());
        let during = if is_empty { keep } else { keep.max(memory.host_bytes) };
        memory.resize_host(during)?;
        let moved = persistent::relocate(&*memory.device, &memory.locations, locations)?.moved;
        memory.resize_host(keep)?;
        memory.locations = locations.to_vec();
        Ok(moved)
    }

    fn replace_graph(&mut self, graph: &Arc<Graph>) {
        if let SessionState::Idle(memory) = &mut self.state
            && !Arc::ptr_eq(&self.graph, graph)
        {
            let mut fresh = exchange(graph);
            // A batch that the caller has filled in stays if the slot has the same size in the new graph.
            for (new, old) in fresh.inputs.iter_mut().zip(&mut memory.exchange.inputs) {
                if new.len() == old.len() {
                    std::mem::swap(new, old);
                }
            }
            memory.exchange = fresh;
            memory.device.set_program(Arc::clone(graph), 0);
            self.trace = None;
        }
        self.graph = Arc::clone(graph);
    }

    /// Starts the streams. The persistent tensors are already where the plan expects them.
    fn start(&mut self, prepared: PreparedPlan, plan: Arc<CheckedPlan>) -> Result<(), EngineError> {
        let PreparedPlan { program, copies, locations } = prepared;
        let SessionState::Idle(mut memory) = std::mem::replace(&mut self.state, SessionState::Transition)
        else {
            return Err(EngineError::Broken);
        };
        memory.device.set_program(Arc::clone(&self.graph), program.actions);
        if self.options.paint {
            memory.device.guard(plan.placement().height);
        }
        let host_bytes = memory.host_bytes;
        let shared = ExecutorState::new(program, memory.device, memory.exchange, copies);
        for extent in memory.locations.iter().filter_map(|place| place.device) {
            shared.recording.touch(extent.end());
        }
        let shared = Arc::new(shared);
        let streams = StreamThreads::start(&shared, &self.pool)?;
        self.state = SessionState::Planned(PlannedState { streams, shared, plan, locations, host_bytes });
        Ok(())
    }

    fn expect_usable(&self) -> Result<(), EngineError> {
        if self.broken { Err(EngineError::Broken) } else { Ok(()) }
    }

    fn expect_size(&self, index: usize, found: usize) -> Result<(), EngineError> {
        let expected = self.persistent_bytes(index);
        let what = || self.persistent[index].name.clone();
        if found == expected { Ok(()) } else { Err(EngineError::WrongSize { what: what(), expected, found }) }
    }

    fn expect_same_parameters(&self, graph: &Graph) -> Result<(), EngineError> {
        let facts = |graph: &Graph| -> Vec<(String, Bytes)> {
            let fact = |p: &Parameter| (p.name.clone(), graph.tensors[p.begin].bytes());
            graph.persistent.iter().map(fact).collect()
        };
        let (ours, theirs) = (facts(&self.graph), facts(graph));
        if ours == theirs {
            return Ok(());
        }
        let longer = if ours.len() > theirs.len() { &ours } else { &theirs };
        let first = (0..longer.len()).find(|&i| ours.get(i) != theirs.get(i)).unwrap_or_default();
        let what = longer[first].0.clone();
        Err(EngineError::ParameterMismatch { graph: graph.name.clone(), what })
    }
}

/// Buffers for the inputs and outputs of a graph.
fn exchange(graph: &Graph) -> Exchange {
    let bytes = |value: TensorId| vec![0; graph.tensors[value].bytes().get() as usize];
    Exchange {
        inputs: graph.inputs.iter().map(|input| bytes(input.tensor)).collect(),
        outputs: graph.outputs.iter().map(|output| bytes(output.tensor)).collect(),
    }
}
