//! What runs a program: memory, ops at addresses, copies, and events that order the streams.
//!
//! The executor ([`crate::streams`]) drives a device from one thread per stream. The kind of call determines its stream: ops run on the
//! compute stream, stores on the to-host stream, loads on the to-device stream. A device may do its work within the call, as the CPU does.
//! It may also only enqueue it on the stream; then [`wait`](Device::wait) and [`signal`](Device::signal) enqueue waits and events, and
//! [`drain`](Device::drain) waits until the queue is empty.

mod cpu;
mod events;
mod heap;

use std::sync::Arc;
use std::time::Instant;

use elbowroom_graph::Graph;
use elbowroom_ir::schedule::Stream;
use elbowroom_ir::{ActionId, Bytes, OpId};

pub use cpu::{CpuDevice, CpuParts};
pub use events::Waiting;
pub use heap::return_freed_memory;

use crate::arena::Extent;
use crate::error::{EngineError, HostError};
use crate::host::HostTier;

/// The data that an iteration exchanges with the host, by input and output slots of the graph. Every buffer has the size of its tensor.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Batches.
    pub inputs: Vec<Vec<u8>>,
    /// Results.
    pub outputs: Vec<Vec<u8>>,
}

/// What random ops and updates depend on apart from their operands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IterationKey {
    /// The run's seed.
    pub seed: u64,
    /// The iteration's number, from zero.
    pub iteration: u64,
    /// The factor of every learning rate.
    pub rate: f32,
}

/// One run of an op at addresses. Calls are made by programs of checked plans and by dynamic iterations, which run one call at a time.
/// Their ranges lie in the arena, and nothing else uses them before the end of the call has been signalled.
#[derive(Debug)]
pub struct Call<'a> {
    pub op: OpId,
    pub reads: &'a [Extent],
    pub writes: &'a [Extent],
    pub workspace: Extent,
    pub key: IterationKey,
    pub exchange: &'a mut Exchange,
}

/// The wait was abandoned because another stream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// Memory and three streams.
pub trait Device: Send + Sync {
    /// Size of the arena, in bytes.
    fn limit(&self) -> Bytes;

    /// Clears all events before an iteration.
    fn begin(&self);
    /// Runs an op on the compute stream.
    fn launch(&self, call: Call<'_>) -> Result<(), EngineError>;
    /// The moment from which a copy counts that could start at `ready`, whichever thread makes it.
    fn copy_start(&self, _lane: Stream, _ready: Instant) -> Instant {
        Instant::now()
    }
    /// Copies a range to an offset of the host tier, on the to-host stream. Its duration counts from `start`.
    fn store(&self, from: Extent, to: usize, start: Instant) -> Result<(), HostError>;
    /// Copies from an offset of the host tier to a range, on the to-device stream. Its duration counts from `start`.
    fn load(&self, from: usize, to: Extent, start: Instant) -> Result<(), HostError>;
    /// Copies of up to this many bytes finish before their stream's thread would wake up; the compute stream makes them itself. Zero if the
    /// processor does not make the copies.
    fn inline_copy_limit(&self) -> usize {
        0
    }
    /// Declares that the bytes of a residency are unused until they are written again.
    fn retire(&self, _extent: Extent) {}
    /// Whether [`retire`](Self::retire) does anything.
    fn retires(&self) -> bool {
        false
    }
    /// Makes later work of the stream wait for the action.
    fn wait(&self, stream: Stream, action: ActionId) -> Result<(), Stopped>;
    /// Whether the action has finished. If not, the stream is registered as waiting for it.
    fn reached(&self, stream: Stream, action: ActionId) -> bool;
    /// Marks the action as done once the stream's work so far is done. Returns the streams to wake.
    fn signal(&self, stream: Stream, action: ActionId) -> Waiting;
    /// Makes a waiting stream check its action again.
    fn wake(&self, stream: Stream);
    /// Returns when all work of the stream is done.
    fn drain(&self, _lane: Stream) -> Result<(), EngineError> {
        Ok(())
    }
    /// Makes every wait of this iteration fail.
    fn stop(&self);

    /// Prepares for programs of another graph with `actions` actions. Nothing may run.
    fn set_program(&mut self, graph: Arc<Graph>, actions: usize);
    /// Replaces the host tier and returns the previous one. Nothing may run.
    fn replace_host(&mut self, host: Box<dyn HostTier>) -> Box<dyn HostTier>;
    /// Moves a range within the arena; source and target may overlap. Nothing else may run.
    fn move_within(&self, from: Extent, to: usize);

    /// The host tier.
    fn host(&self) -> &dyn HostTier;
    /// Copies a range of the arena into a buffer, between iterations.
    fn read(&self, from: Extent, into: &mut [u8]);
    /// Whether bytes of the arena that nothing has written read as zeros.
    fn starts_as_zeros(&self) -> bool {
        false
    }
    /// Copies bytes into a range of the arena, between iterations.
    fn write(&self, to: Extent, bytes: &[u8]);
    /// Guards the bytes from `from` on, whose contents are lost, between iterations: see [`crate::arena`].
    fn guard(&self, from: Bytes);
    /// Commits the memory of the first bytes of the arena without changing them, between iterations.
    fn commit(&self, bytes: Bytes);
    /// The offset of the first guarded byte from `from` on that may have been written to, between iterations.
    fn first_overwritten(&self, from: Bytes) -> Option<Bytes>;
}
