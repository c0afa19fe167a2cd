//! A session: a graph, a proved plan and a device, ready to run one iteration after another.

use std::sync::{Arc, PoisonError};

use elbowroom_graph::{Graph, Parameter};
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::{Trace, TraceError};
use elbowroom_ir::{Bytes, Nanos, TensorId};

use crate::arena::Arena;
use crate::chaos::{Chaos, ChaosOptions};
use crate::device::{CpuDevice, CpuParts, Device, Exchange, Turn};
use crate::error::EngineError;
use crate::host::HostOptions;
use crate::host::slots::Copies;
use crate::kernels;
use crate::lanes::{Lanes, Shared};
use crate::persistent::{PIECE, Persistent};
use crate::program::Program;

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
    /// was written there. Commits these pages, so at most the first 256 MiB above the height are painted.
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
    /// Largest end of any range handed to a kernel or a copy since the session began, recorded at launch.
    pub measured_peak: Bytes,
}

/// The trace of a graph as this engine runs it: with the workspaces that its kernels need.
pub fn trace(graph: &Graph) -> Result<Trace, TraceError> {
    graph.trace(&|graph, op| kernels::workspace(&graph.nodes[op].kind))
}

/// A running training.
pub struct Session {
    // Dropped first: the lanes leave before the memory that they use goes.
    lanes: Lanes,
    values: Persistent,
    shared: Arc<Shared>,
    graph: Arc<Graph>,
    plan: Arc<CheckedPlan>,
    options: SessionOptions,
    broken: bool,
}

impl Session {
    /// Reserves the arena and the host tier, starts the threads and writes the initial persistent values to their homes. The arena is
    /// as large as the memory of the plan's machine.
    pub fn new(
        graph: Arc<Graph>,
        plan: Arc<CheckedPlan>,
        options: SessionOptions,
    ) -> Result<Self, EngineError> {
        let ours = trace(&graph)?.fingerprint();
        if ours != plan.trace().fingerprint() {
            return Err(EngineError::ForeignPlan { plan: plan.trace().fingerprint(), graph: ours });
        }
        let align = plan.machine().align.get();
        if !align.is_multiple_of(ELEMENT) {
            return Err(EngineError::Alignment { align, needed: ELEMENT });
        }
        let copies = Copies::place(&plan);
        let program = Program::new(&plan, &copies);
        let threads = options.threads.max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("elbowroom-compute-{index}"))
            .build()
            .map_err(|error| EngineError::Threads { threads, why: error.to_string() })?;
        let pool = Arc::new(pool);
        let arena = Arena::new(plan.machine().memory)?;
        let host = options.host.open(copies.size)?;
        let parts = CpuParts {
            arena,
            graph: Arc::clone(&graph),
            pool: Arc::clone(&pool),
            host,
            link: options.host.link,
        };
        let device = CpuDevice::new(parts, program.actions);
        let device: Box<dyn Device> = match options.chaos {
            Some(chaos) => Box::new(Chaos::new(device, chaos)),
            None => Box::new(device),
        };
        if options.paint {
            device.paint(plan.placement().height);
        }
        let bytes = |value: TensorId| vec![0; graph.values[value].bytes().get() as usize];
        let exchange = Exchange {
            inputs: graph.inputs.iter().map(|input| bytes(input.value)).collect(),
            outputs: graph.outputs.iter().map(|output| bytes(output.value)).collect(),
        };
        let homes = graph.persistent.iter().map(|parameter| {
            let place = plan.trace().persistent().binary_search_by_key(&parameter.begin, |pair| pair.begin);
            // The fingerprints agree, so the trace has exactly the graph's persistent values.
            program.homes[place.unwrap_or_default()]
        });
        let homes = homes.collect();
        let shared = Arc::new(Shared::new(program, device, exchange, copies));
        let values = Persistent::new(Arc::clone(&shared), homes);
        // Before the compute lane takes one of the pool's threads for itself.
        values.initialize(&graph, options.seed, &pool)?;
        let lanes = Lanes::start(&shared, &pool)?;
        Ok(Self { lanes, values, shared, graph, plan, options, broken: false })
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Arc<CheckedPlan> {
        &self.plan
    }

    /// The graph that runs.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Lets the caller fill the batch of an input slot. It stays until it is filled anew.
    pub fn fill_input<R>(&mut self, slot: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        fill(&mut self.shared.exchange().inputs[slot])
    }

    /// The bytes that the last iteration left in an output slot, as the value's elements: `f32` in the machine's byte order.
    pub fn output(&self, slot: usize) -> Vec<f32> {
        let exchange = self.shared.exchange();
        let words = exchange.outputs[slot].chunks_exact(4);
        words.map(|word| f32::from_ne_bytes([word[0], word[1], word[2], word[3]])).collect()
    }

    /// Runs one iteration on the batches that are in the input slots. `iteration` is its number from zero; it determines random ops and
    /// bias corrections. After an error the session cannot go on: part of the iteration has happened.
    pub fn run_iteration(&mut self, iteration: u64) -> Result<IterationReport, EngineError> {
        self.expect_whole()?;
        let outcome = self.lanes.run(&self.shared, Turn { seed: self.options.seed, iteration });
        self.broken = outcome.is_err();
        outcome?;
        self.shared.copies.write().unwrap_or_else(PoisonError::into_inner).turn_over();
        Ok(IterationReport {
            iteration: self.shared.recording.iteration(&self.shared.program),
            measured_peak: self.shared.recording.measured_peak(),
        })
    }

    /// The measured timeline of the iteration that ran last.
    pub fn timeline(&self) -> Timeline {
        self.shared.recording.timeline(&self.shared.program, self.plan.schedule())
    }

    /// Bytes of the host tier that the plan's host copies take.
    pub fn host_bytes(&self) -> Bytes {
        self.shared.copies.read().unwrap_or_else(PoisonError::into_inner).size
    }

    /// The offset of the first painted byte above the plan's height that anything has written to, or `None` if all are untouched. Tells nothing unless [`SessionOptions::paint`] was set.
    pub fn first_stain(&self) -> Option<Bytes> {
        self.shared.device.first_stain(self.plan.placement().height)
    }

    /// The persistent values, in the order of their indices in the methods below.
    pub fn persistent(&self) -> &[Parameter] {
        &self.graph.persistent
    }

    /// Size of a persistent value, in bytes.
    pub fn persistent_bytes(&self, index: usize) -> usize {
        self.values.bytes(index)
    }

    /// Reads a whole persistent value from its home.
    pub fn read_persistent(&self, index: usize, value: &mut [u8]) -> Result<(), EngineError> {
        self.expect_whole()?;
        self.expect_size(index, value.len())?;
        for (piece, bytes) in value.chunks_mut(PIECE).enumerate() {
            self.values.read(index, piece * PIECE, bytes)?;
        }
        Ok(())
    }

    /// Writes a whole persistent value to its home: a checkpoint's.
    pub fn write_persistent(&mut self, index: usize, value: &[u8]) -> Result<(), EngineError> {
        self.expect_size(index, value.len())?;
        for (piece, bytes) in value.chunks(PIECE).enumerate() {
            self.values.write(index, piece * PIECE, bytes)?;
        }
        Ok(())
    }

    fn expect_whole(&self) -> Result<(), EngineError> {
        if self.broken { Err(EngineError::Broken) } else { Ok(()) }
    }

    fn expect_size(&self, index: usize, found: usize) -> Result<(), EngineError> {
        let expected = self.values.bytes(index);
        let what = || self.graph.persistent[index].name.clone();
        if found == expected { Ok(()) } else { Err(EngineError::WrongSize { what: what(), expected, found }) }
    }

    /// Reads a part of a persistent value, from `skip` on.
    pub(crate) fn read_piece(&self, index: usize, skip: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.expect_whole()?;
        self.values.read(index, skip, bytes)
    }
}
