//! The CPU as a device: ops run on a thread pool; copies are plain reads and writes of the arena.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use elbowroom_graph::{Graph, OpKind};
use elbowroom_ir::machine::Channel;
use elbowroom_ir::schedule::Stream;
use elbowroom_ir::{ActionId, Bytes, Id};
use rayon::ThreadPool;

use super::events::Events;
use super::{Call, Device, Stopped, Waiting};
use crate::arena::{Arena, Extent};
use crate::error::{EngineError, HostError};
use crate::host::HostTier;
use crate::host::link::Pace;
use crate::kernels::{self, Context, Operands, Prepared};

/// The parts of a CPU device.
pub struct CpuParts {
    pub arena: Arena,
    /// The graph whose ops run.
    pub graph: Arc<Graph>,
    /// The pool that runs the kernels. The compute stream's thread should belong to it.
    pub pool: Arc<ThreadPool>,
    pub host: Box<dyn HostTier>,
    /// Channels to which copies are slowed down: device → host, host → device.
    pub link: Option<(Channel, Channel)>,
}

/// An arena in process memory, kernels on a pool, and a host tier.
pub struct CpuDevice {
    parts: CpuParts,
    /// Device → host, host → device.
    paces: Option<[Pace; 2]>,
    events: Events,
    addresses: Mutex<Addresses>,
    /// The ops of the graph.
    prepared: Vec<Prepared>,
}

impl CpuDevice {
    /// A device for programs of `actions` actions.
    pub fn new(parts: CpuParts, actions: usize) -> Self {
        let paces = parts.link.map(|(to_host, to_device)| [to_host, to_device].map(Pace::new));
        let prepared = prepare(&parts.graph);
        Self { parts, paces, events: Events::new(actions), addresses: Mutex::default(), prepared }
    }

    fn pace(&self, stream: Stream) -> Option<&Pace> {
        let [to_host, to_device] = self.paces.as_ref()?;
        Some(if stream == Stream::ToHost { to_host } else { to_device })
    }

    fn run(&self, kind: &OpKind, call: &Call<'_>) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let Addresses { reads, writes } = &mut *addresses;
        let at =
            |extent: Extent| std::ptr::slice_from_raw_parts_mut(self.parts.arena.pointer(extent), extent.len);
        reads.clear();
        reads.extend(call.reads.iter().map(|&extent| at(extent).cast_const()));
        writes.clear();
        writes.extend(call.writes.iter().map(|&extent| at(extent)));
        let operands = Operands { reads, writes, workspace: at(call.workspace), factors_are_bf16: false };
        let context = Context {
            pool: &self.parts.pool,
            seed: call.key.seed,
            iteration: call.key.iteration,
            rate: call.key.rate,
            inputs: &[],
            outputs: &|_, _| (),
        };
        // SAFETY: a call's ranges are those that the op's kind lists, because the program was made from a plan proved against the graph's
        // own trace; nothing else uses them during the call; and they overlap only where the trace permits it (rule L3). A dynamic
        // iteration takes its ranges from the same trace; each is a block of its own except where the trace permits otherwise.
        unsafe { kernels::run_prepared(kind, &self.prepared[call.op.index()], &operands, &context) }
    }
}

fn prepare(graph: &Graph) -> Vec<Prepared> {
    graph.nodes.values().map(|node| Prepared::new(&node.kind)).collect()
}

/// Buffers for the operands of one op, kept between calls so that a call allocates nothing.
#[derive(Default)]
struct Addresses {
    reads: Vec<*const [u8]>,
    writes: Vec<*mut [u8]>,
}

// SAFETY: addresses are written and read within one call; between calls only the vectors' capacity is used.
unsafe impl Send for Addresses {}

impl Device for CpuDevice {
    fn limit(&self) -> Bytes {
        self.parts.arena.limit()
    }

    fn begin(&self) {
        self.events.reset();
    }

    fn launch(&self, call: Call<'_>) -> Result<(), EngineError> {
        match self.parts.graph.nodes[call.op].kind {
            OpKind::Input { slot } => {
                // SAFETY: by the contract of `Call`, nothing else uses its ranges while it runs.
                let batch = unsafe { self.parts.arena.bytes_mut(call.writes[0]) };
                batch.copy_from_slice(&call.exchange.inputs[slot]);
            }
            OpKind::Output { slot } => {
                // SAFETY: as above.
                let value = unsafe { self.parts.arena.bytes(call.reads[0]) };
                call.exchange.outputs[slot].copy_from_slice(value);
            }
            ref kind => self.run(kind, &call),
        }
        Ok(())
    }

    fn copy_start(&self, stream: Stream, ready: Instant) -> Instant {
        self.pace(stream).map_or_else(Instant::now, |_| Pace::copy_start(ready))
    }

    fn store(&self, from: Extent, to: usize, start: Instant) -> Result<(), HostError> {
        // SAFETY: the range comes from a program, so nothing writes it before the copy has been signalled.
        self.parts.host.store(to, unsafe { self.parts.arena.bytes(from) })?;
        self.pace(Stream::ToHost).inspect(|pace| pace.hold(start, from.len));
        Ok(())
    }

    fn load(&self, from: usize, to: Extent, start: Instant) -> Result<(), HostError> {
        // SAFETY: the range comes from a program, so nothing else uses it before the copy has been signalled.
        self.parts.host.load(from, unsafe { self.parts.arena.bytes_mut(to) })?;
        self.pace(Stream::ToDevice).inspect(|pace| pace.hold(start, to.len));
        Ok(())
    }

    fn inline_copy_limit(&self) -> usize {
        if self.paces.is_some() { 0 } else { self.parts.host.inline_copy_limit() }
    }

    fn wait(&self, stream: Stream, action: ActionId) -> Result<(), Stopped> {
        self.events.wait(stream, action)
    }

    fn reached(&self, stream: Stream, action: ActionId) -> bool {
        self.events.reached(stream, action)
    }

    fn signal(&self, _lane: Stream, action: ActionId) -> Waiting {
        self.events.signal(action)
    }

    fn wake(&self, stream: Stream) {
        self.events.wake(stream);
    }

    fn stop(&self) {
        self.events.stop();
    }

    fn set_program(&mut self, graph: Arc<Graph>, actions: usize) {
        self.prepared = prepare(&graph);
        self.parts.graph = graph;
        self.events = Events::new(actions);
    }

    fn replace_host(&mut self, host: Box<dyn HostTier>) -> Box<dyn HostTier> {
        std::mem::replace(&mut self.parts.host, host)
    }

    fn move_within(&self, from: Extent, to: usize) {
        let (source, target) =
            (self.parts.arena.pointer(from), self.parts.arena.pointer(Extent { offset: to, len: from.len }));
        // SAFETY: both ranges lie in the arena, and nothing else runs: no slice of either exists.
        unsafe { std::ptr::copy(source, target, from.len) }
    }

    fn host(&self) -> &dyn HostTier {
        &*self.parts.host
    }

    fn read(&self, from: Extent, into: &mut [u8]) {
        // SAFETY: between iterations the session alone uses the arena.
        into.copy_from_slice(unsafe { self.parts.arena.bytes(from) });
    }

    fn starts_as_zeros(&self) -> bool {
        true
    }

    fn write(&self, to: Extent, bytes: &[u8]) {
        // SAFETY: as in `read`.
        unsafe { self.parts.arena.bytes_mut(to) }.copy_from_slice(bytes);
    }

    fn guard(&self, from: Bytes) {
        // SAFETY: as in `read`; the session guards what its plan does not use.
        unsafe { self.parts.arena.guard(from) }
    }

    fn commit(&self, bytes: Bytes) {
        // SAFETY: as in `read`.
        unsafe { self.parts.arena.commit(bytes, &self.parts.pool) }
    }

    fn first_overwritten(&self, from: Bytes) -> Option<Bytes> {
        // SAFETY: as in `read`.
        unsafe { self.parts.arena.first_overwritten(from) }
    }
}
