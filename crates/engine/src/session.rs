//! A session: a graph, a device with its arena, and a way to run one iteration after another: by a proved plan, or on demand.
//!
//! The persistent values stay in the arena and on the host while plans, and even graphs, come and go: [`Session::follow`] moves them to
//! where the next plan expects them, [`Session::improvise`] finds them where they are.

use std::sync::{Arc, PoisonError, Weak};

use elbowroom_graph::{Graph, Parameter};
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::order::Order;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::{Fingerprint, Trace, TraceError};
use elbowroom_ir::{Bytes, Nanos, TensorId};
use rayon::ThreadPool;

use crate::arena::{Arena, Extent};
use crate::chaos::{Chaos, ChaosOptions};
use crate::device::{CpuDevice, CpuParts, Device, Exchange, Turn};
use crate::error::EngineError;
use crate::host::HostOptions;
use crate::kernels;
use crate::lanes::{Lanes, Shared};
use crate::persistent::{self, PIECE, Place};
use crate::program::PersistentHome;
use crate::reactive::rehearsal::{Nowhere, Rehearsal};
use crate::reactive::slots::Slots;
use crate::reactive::{self, Improvise, ReactiveReport, Run, Setting};
use crate::ready::Ready;

/// Size of the largest elements.
const ELEMENT: u64 = 4;

/// How a session runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Threads that compute; at least one. Results do not depend on it.
    pub threads: usize,
    /// Seed of initial values and of random ops.
    pub seed: u64,
    /// The host tier.
    pub host: HostOptions,
    /// Trouble on purpose, for tests.
    pub chaos: Option<ChaosOptions>,
    /// Whether a pattern is written between the plan's height and the limit, so that [`Session::first_stain`] can tell whether anything
    /// was written there. Commits these pages, so at most the first 256 MiB above the height are painted. A session that begins without a
    /// plan begins painted from the bottom up.
    pub paint: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { threads: 1, seed: 0, host: HostOptions::default(), chaos: None, paint: true }
    }
}

/// What one iteration was like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IterationReport {
    /// Its length, from the start of the first action to the end of the last.
    pub iteration: Nanos,
    /// Largest end of any range handed to a kernel or a copy since the session began to follow its plan, recorded at launch.
    pub measured_peak: Bytes,
}

/// The trace of a graph as this engine runs it: with the workspaces that its kernels need.
pub fn trace(graph: &Graph) -> Result<Trace, TraceError> {
    graph.trace(&|graph, op| kernels::workspace(&graph.nodes[op].kind))
}

/// A running training.
pub struct Session {
    state: State,
    pool: Arc<ThreadPool>,
    graph: Arc<Graph>,
    /// The graph's own trace, once it was needed.
    trace: Option<Arc<Trace>>,
    /// The graphs that plans were followed for, as long as somebody has them, with their traces' fingerprints: graphs come again, and to
    /// trace one takes as long as to run it where it is small.
    traced: Vec<(Weak<Graph>, Fingerprint)>,
    align: u64,
    /// Bytes that copies on the host may take together.
    host_memory: Bytes,
    options: SessionOptions,
    broken: bool,
}

/// What the session has between iterations.
enum State {
    /// A plan, and lanes that wait for its next iteration.
    Planned(Planned),
    /// Memory, and what lies in it.
    Idle(Ground),
    /// Nothing: only while one of the others becomes the other, or after that has failed.
    Gone,
}

struct Planned {
    // Dropped first: the lanes leave before the memory that they use goes.
    lanes: Lanes,
    shared: Arc<Shared>,
    plan: Arc<CheckedPlan>,
    /// In the graph's order.
    homes: Vec<PersistentHome>,
}

/// Memory with the persistent values in it.
struct Ground {
    device: Box<dyn Device>,
    exchange: Exchange,
    /// In the graph's order.
    places: Vec<Place>,
    /// Bytes of the host tier.
    host_bytes: Bytes,
}

impl Session {
    /// Reserves the arena and the host tier, starts the threads and writes the initial persistent values to their homes. The arena is
    /// as large as the memory of the plan's machine.
    pub fn new(
        graph: Arc<Graph>,
        plan: Arc<CheckedPlan>,
        options: SessionOptions,
    ) -> Result<Self, EngineError> {
        let fingerprint = trace(&graph)?.fingerprint();
        let ready = Ready::new(&graph, fingerprint, &plan)?;
        let mut session = Self::open(graph, plan.machine(), options, ready.copies.size)?;
        session.traced.push((Arc::downgrade(&session.graph), fingerprint));
        let State::Idle(ground) = &mut session.state else { return Err(EngineError::Broken) };
        ground.places = ready.places();
        session.initialize()?;
        session.start(ready, plan)?;
        Ok(session)
    }

    /// The same without a plan, in an arena as large as the machine's memory; the persistent values lie in it as far as it is large
    /// enough, and the rest of them on the host.
    pub fn without_plan(
        graph: Arc<Graph>,
        machine: &Machine,
        options: SessionOptions,
    ) -> Result<Self, EngineError> {
        let (slots, host_bytes) = reactive::slots::persistent(&graph);
        let mut session = Self::open(graph, machine, options, Bytes(host_bytes as u64))?;
        let (limit, align) = (machine.memory.get() as usize, machine.align.get() as usize);
        let mut end = 0;
        let values = session.graph.persistent.iter().zip(slots);
        let places = values.map(|(parameter, slot)| {
            let bytes = session.graph.values[parameter.begin].bytes().get() as usize;
            let (offset, next) = (end, end + bytes.next_multiple_of(align));
            if next > limit {
                return Place { bytes, device: None, host: Some(slot) };
            }
            end = next;
            Place { bytes, device: Some(Extent { offset, len: bytes }), host: None }
        });
        let places = places.collect();
        let State::Idle(ground) = &mut session.state else { return Err(EngineError::Broken) };
        ground.places = places;
        if session.options.paint {
            // Fresh pages cost time; whoever measures ops should not find it in the ones that come first.
            ground.device.paint(Bytes::ZERO);
        }
        session.initialize()?;
        Ok(session)
    }

    fn open(
        graph: Arc<Graph>,
        machine: &Machine,
        options: SessionOptions,
        host_bytes: Bytes,
    ) -> Result<Self, EngineError> {
        let align = machine.align.get();
        if !align.is_multiple_of(ELEMENT) {
            return Err(EngineError::Alignment { align, needed: ELEMENT });
        }
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
        let ground = Ground { device, exchange: exchange(&graph), places: Vec::new(), host_bytes };
        let host_memory = machine.host_memory;
        let state = State::Idle(ground);
        Ok(Self {
            state,
            pool,
            graph,
            trace: None,
            traced: Vec::new(),
            align,
            host_memory,
            options,
            broken: false,
        })
    }

    fn initialize(&self) -> Result<(), EngineError> {
        let State::Idle(ground) = &self.state else { return Err(EngineError::Broken) };
        persistent::initialize(&*ground.device, &ground.places, &self.graph, self.options.seed, &self.pool)
    }

    /// The plan that runs, if there is one.
    pub fn plan(&self) -> Option<&Arc<CheckedPlan>> {
        match &self.state {
            State::Planned(planned) => Some(&planned.plan),
            _ => None,
        }
    }

    /// The graph that runs.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Goes on with a plan, of this graph or of another with the same persistent values, and moves these to where the plan expects them.
    /// Returns the bytes moved.
    pub fn follow(&mut self, graph: &Arc<Graph>, plan: &Arc<CheckedPlan>) -> Result<Bytes, EngineError> {
        self.expect_whole()?;
        self.expect_same_parameters(graph)?;
        if self.plan().is_some_and(|now| Arc::ptr_eq(now, plan)) && Arc::ptr_eq(&self.graph, graph) {
            return Ok(Bytes::ZERO);
        }
        let ready = Ready::new(graph, self.fingerprint(graph)?, plan)?;
        let (machine, arena) = (plan.machine(), self.limit()?);
        if machine.memory != arena {
            return Err(EngineError::OtherArena { plan: machine.memory, arena });
        }
        // From here on a failure leaves values where nothing finds them.
        self.broken = true;
        let moved = self.settle(&ready.places(), ready.copies.size)?;
        self.turn_to(graph);
        self.start(ready, Arc::clone(plan))?;
        self.broken = false;
        Ok(moved)
    }

    /// Runs one iteration without a plan, on demand: see [`reactive`].
    /// `iteration` is its number, as for [`run_iteration`](Self::run_iteration); the batches are those in the input slots. After an error
    /// the session cannot go on.
    pub fn improvise(
        &mut self,
        iteration: u64,
        mut improvise: Improvise<'_>,
    ) -> Result<ReactiveReport, EngineError> {
        self.expect_whole()?;
        let trace = self.trace_for(improvise.order)?;
        self.broken = true;
        let slots = Slots::new(&self.graph, &trace, improvise.order);
        let (homes, _) = reactive::slots::persistent(&self.graph);
        let kept = |(place, &slot): (Place, &usize)| Place { host: place.host.map(|_| slot), ..place };
        let places: Vec<Place> = self.places()?.into_iter().zip(&homes).map(kept).collect();
        self.settle(&places, Bytes(slots.size as u64))?;
        let State::Idle(ground) = &mut self.state else { return Err(EngineError::Broken) };
        let setting = Setting {
            trace: &trace,
            device: &*ground.device,
            slots: &slots,
            turn: Turn { seed: self.options.seed, iteration },
            exchange: &mut ground.exchange,
            align: self.align as usize,
            host: self.host_memory,
        };
        let mut run = begun(setting, improvise.lent(), &self.graph, &ground.places)?;
        self.pool.install(|| run.run())?;
        for ((parameter, place), &home) in self.graph.persistent.iter().zip(&mut ground.places).zip(&homes) {
            let (at, kept) = run.found(parameter.end);
            place.device = at.map(|offset| Extent { offset, len: place.bytes });
            place.host = kept.then_some(home);
        }
        let report = run.report();
        self.broken = false;
        Ok(report)
    }

    /// What [`improvise`](Self::improvise) would do, without doing it: every decision, but no op and no copy. Whether an iteration comes
    /// to its end, and how, if its decider decides the same again; nothing in the session changes. Ops take no time.
    pub fn rehearse(&mut self, mut improvise: Improvise<'_>) -> Result<ReactiveReport, EngineError> {
        self.expect_whole()?;
        let trace = self.trace_for(improvise.order)?;
        let slots = Slots::new(&self.graph, &trace, improvise.order);
        let device = Rehearsal { limit: self.limit()?, host: Nowhere };
        let mut exchange = Exchange::default();
        let setting = Setting {
            trace: &trace,
            device: &device,
            slots: &slots,
            turn: Turn::default(),
            exchange: &mut exchange,
            align: self.align as usize,
            host: self.host_memory,
        };
        let mut run = begun(setting, improvise.lent(), &self.graph, &self.places()?)?;
        run.run()?;
        Ok(run.report())
    }

    /// The fingerprint of a graph's own trace.
    fn fingerprint(&mut self, graph: &Arc<Graph>) -> Result<Fingerprint, EngineError> {
        // A graph that is shared, if only by us, does not change; nor does its address come again while we have a share.
        let known = self.traced.iter().find(|(known, _)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(graph)));
        if let Some(&(_, fingerprint)) = known {
            return Ok(fingerprint);
        }
        let fingerprint = trace(graph)?.fingerprint();
        self.traced.retain(|(known, _)| known.strong_count() > 0);
        self.traced.push((Arc::downgrade(graph), fingerprint));
        Ok(fingerprint)
    }

    /// The graph's own trace, if the order is one of its ops.
    fn trace_for(&mut self, order: &Order) -> Result<Arc<Trace>, EngineError> {
        let trace = match &self.trace {
            Some(trace) => Arc::clone(trace),
            None => Arc::new(trace(&self.graph)?),
        };
        self.trace = Some(Arc::clone(&trace));
        if order.trace() == trace.fingerprint() {
            Ok(trace)
        } else {
            Err(EngineError::ForeignOrder(self.graph.name.clone()))
        }
    }

    /// Goes on with another graph that has the same persistent values; what it does without a plan, [`improvise`](Self::improvise) says.
    pub fn change_to(&mut self, graph: &Arc<Graph>) -> Result<(), EngineError> {
        self.expect_whole()?;
        self.expect_same_parameters(graph)?;
        if !Arc::ptr_eq(&self.graph, graph) {
            self.rest();
            self.turn_to(graph);
        }
        Ok(())
    }

    /// Bytes of the arena.
    pub fn limit(&self) -> Result<Bytes, EngineError> {
        Ok(self.device()?.limit())
    }

    /// Lets the caller fill the batch of an input slot. It stays until it is filled anew.
    pub fn fill_input<R>(&mut self, slot: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        match &mut self.state {
            State::Planned(planned) => fill(&mut planned.shared.exchange().inputs[slot]),
            State::Idle(ground) => fill(&mut ground.exchange.inputs[slot]),
            State::Gone => fill(&mut []),
        }
    }

    /// The bytes that the last iteration left in an output slot, as the value's elements: `f32` in the machine's byte order.
    pub fn output(&self, slot: usize) -> Vec<f32> {
        let floats = |exchange: &Exchange| {
            let words = exchange.outputs[slot].chunks_exact(4);
            words.map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
        };
        match &self.state {
            State::Planned(planned) => floats(&planned.shared.exchange()),
            State::Idle(ground) => floats(&ground.exchange),
            State::Gone => Vec::new(),
        }
    }

    /// Runs one iteration of the plan on the batches that are in the input slots. `iteration` is its number from zero; it determines
    /// random ops and bias corrections. After an error the session cannot go on: part of the iteration has happened.
    pub fn run_iteration(&mut self, iteration: u64) -> Result<IterationReport, EngineError> {
        self.expect_whole()?;
        let State::Planned(Planned { lanes, shared, .. }) = &self.state else {
            return Err(EngineError::NoPlan);
        };
        let outcome = lanes.run(shared, Turn { seed: self.options.seed, iteration });
        self.broken = outcome.is_err();
        outcome?;
        shared.copies.write().unwrap_or_else(PoisonError::into_inner).turn_over();
        Ok(IterationReport {
            iteration: shared.recording.iteration(&shared.program),
            measured_peak: shared.recording.measured_peak(),
        })
    }

    /// The measured timeline of the plan's iteration that ran last; an empty one without a plan.
    pub fn timeline(&self) -> Timeline {
        match &self.state {
            State::Planned(Planned { shared, plan, .. }) => {
                shared.recording.timeline(&shared.program, plan.schedule())
            }
            _ => Timeline::default(),
        }
    }

    /// Bytes of the host tier.
    pub fn host_bytes(&self) -> Bytes {
        match &self.state {
            State::Planned(planned) => {
                planned.shared.copies.read().unwrap_or_else(PoisonError::into_inner).size
            }
            State::Idle(ground) => ground.host_bytes,
            State::Gone => Bytes::ZERO,
        }
    }

    /// The offset of the first painted byte above the plan's height that anything has written to, or `None` if all are untouched. Tells
    /// nothing without a plan, or unless [`SessionOptions::paint`] was set.
    pub fn first_stain(&self) -> Option<Bytes> {
        let State::Planned(planned) = &self.state else { return None };
        planned.shared.device.first_stain(planned.plan.placement().height)
    }

    /// The persistent values, in the order of their indices in the methods below.
    pub fn persistent(&self) -> &[Parameter] {
        &self.graph.persistent
    }

    /// Size of a persistent value, in bytes.
    pub fn persistent_bytes(&self, index: usize) -> usize {
        self.graph.values[self.graph.persistent[index].begin].bytes().get() as usize
    }

    /// Reads a whole persistent value from its home.
    pub fn read_persistent(&self, index: usize, value: &mut [u8]) -> Result<(), EngineError> {
        self.expect_whole()?;
        self.expect_size(index, value.len())?;
        for (piece, bytes) in value.chunks_mut(PIECE).enumerate() {
            self.place(index)?.read(self.device()?, piece * PIECE, bytes)?;
        }
        Ok(())
    }

    /// Writes a whole persistent value to its home: a checkpoint's.
    pub fn write_persistent(&mut self, index: usize, value: &[u8]) -> Result<(), EngineError> {
        self.expect_size(index, value.len())?;
        for (piece, bytes) in value.chunks(PIECE).enumerate() {
            self.place(index)?.write(self.device()?, piece * PIECE, bytes)?;
        }
        Ok(())
    }

    /// Reads a part of a persistent value, from `skip` on.
    pub(crate) fn read_piece(&self, index: usize, skip: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.expect_whole()?;
        self.place(index)?.read(self.device()?, skip, bytes)
    }

    fn device(&self) -> Result<&dyn Device, EngineError> {
        match &self.state {
            State::Planned(planned) => Ok(&*planned.shared.device),
            State::Idle(ground) => Ok(&*ground.device),
            State::Gone => Err(EngineError::Broken),
        }
    }

    fn place(&self, index: usize) -> Result<Place, EngineError> {
        match &self.state {
            State::Planned(planned) => {
                let copies = planned.shared.copies.read().unwrap_or_else(PoisonError::into_inner);
                Ok(planned.homes[index].place(&copies))
            }
            State::Idle(ground) => Ok(ground.places[index]),
            State::Gone => Err(EngineError::Broken),
        }
    }

    fn places(&self) -> Result<Vec<Place>, EngineError> {
        (0..self.graph.persistent.len()).map(|index| self.place(index)).collect()
    }

    /// The lanes leave, if there are any; what remains is memory.
    fn rest(&mut self) {
        let Ok(places) = self.places() else { return };
        let host_bytes = self.host_bytes();
        self.state = match std::mem::replace(&mut self.state, State::Gone) {
            State::Planned(Planned { lanes, shared, .. }) => {
                drop(lanes);
                // The lanes were the only other owners.
                Arc::into_inner(shared).map_or(State::Gone, |shared| {
                    let (device, exchange) = shared.into_ground();
                    State::Idle(Ground { device, exchange, places, host_bytes })
                })
            }
            other => other,
        };
    }

    /// Moves the persistent values, in a session without a plan, and makes the host tier large enough.
    fn settle(&mut self, places: &[Place], host_bytes: Bytes) -> Result<Bytes, EngineError> {
        self.rest();
        let State::Idle(ground) = &mut self.state else { return Err(EngineError::Broken) };
        let stays = host_bytes <= ground.host_bytes && persistent::host_stays(&ground.places, places);
        let tier = if stays { None } else { Some(self.options.host.open(host_bytes)?) };
        let moved = persistent::relocate(&*ground.device, &ground.places, places, tier.as_deref())?;
        if let Some(tier) = tier {
            drop(ground.device.rehost(tier));
            ground.host_bytes = host_bytes;
        }
        ground.places = places.to_vec();
        Ok(moved)
    }

    fn turn_to(&mut self, graph: &Arc<Graph>) {
        if let State::Idle(ground) = &mut self.state
            && !Arc::ptr_eq(&self.graph, graph)
        {
            let mut fresh = exchange(graph);
            // A batch that was filled in for the graph before stays where its size is the same.
            for (new, old) in fresh.inputs.iter_mut().zip(&mut ground.exchange.inputs) {
                if new.len() == old.len() {
                    std::mem::swap(new, old);
                }
            }
            ground.exchange = fresh;
            ground.device.serve(Arc::clone(graph), 0);
            self.trace = None;
        }
        self.graph = Arc::clone(graph);
    }

    /// The lanes come: the plan's persistent values are at home.
    fn start(&mut self, ready: Ready, plan: Arc<CheckedPlan>) -> Result<(), EngineError> {
        let Ready { program, copies, homes } = ready;
        let State::Idle(mut ground) = std::mem::replace(&mut self.state, State::Gone) else {
            return Err(EngineError::Broken);
        };
        ground.device.serve(Arc::clone(&self.graph), program.actions);
        if self.options.paint {
            ground.device.paint(plan.placement().height);
        }
        let shared = Shared::new(program, ground.device, ground.exchange, copies);
        for extent in ground.places.iter().filter_map(|place| place.device) {
            shared.recording.touch(extent.end());
        }
        let shared = Arc::new(shared);
        let lanes = Lanes::start(&shared, &self.pool)?;
        self.state = State::Planned(Planned { lanes, shared, plan, homes });
        Ok(())
    }

    fn expect_whole(&self) -> Result<(), EngineError> {
        if self.broken { Err(EngineError::Broken) } else { Ok(()) }
    }

    fn expect_size(&self, index: usize, found: usize) -> Result<(), EngineError> {
        let expected = self.persistent_bytes(index);
        let what = || self.graph.persistent[index].name.clone();
        if found == expected { Ok(()) } else { Err(EngineError::WrongSize { what: what(), expected, found }) }
    }

    fn expect_same_parameters(&self, graph: &Graph) -> Result<(), EngineError> {
        let facts = |graph: &Graph| -> Vec<(String, Bytes)> {
            let fact = |p: &Parameter| (p.name.clone(), graph.values[p.begin].bytes());
            graph.persistent.iter().map(fact).collect()
        };
        let (ours, theirs) = (facts(&self.graph), facts(graph));
        if ours == theirs {
            return Ok(());
        }
        let longer = if ours.len() > theirs.len() { &ours } else { &theirs };
        let first = (0..longer.len()).find(|&i| ours.get(i) != theirs.get(i)).unwrap_or_default();
        let what = longer[first].0.clone();
        Err(EngineError::OtherParameters { graph: graph.name.clone(), what })
    }
}

/// A run that finds the persistent values where they are.
fn begun<'a>(
    setting: Setting<'a>,
    improvise: Improvise<'a>,
    graph: &Graph,
    places: &[Place],
) -> Result<Run<'a>, EngineError> {
    let mut run = Run::new(setting, improvise);
    for (parameter, place) in graph.persistent.iter().zip(places) {
        let at = place.device.map(|extent| extent.offset);
        if !run.find(parameter.begin, at, place.host.is_some()) {
            return Err(EngineError::Broken);
        }
    }
    Ok(run)
}

/// Buffers for what a graph takes and gives.
fn exchange(graph: &Graph) -> Exchange {
    let bytes = |value: TensorId| vec![0; graph.values[value].bytes().get() as usize];
    Exchange {
        inputs: graph.inputs.iter().map(|input| bytes(input.value)).collect(),
        outputs: graph.outputs.iter().map(|output| bytes(output.value)).collect(),
    }
}
