//! What runs a program: memory, ops at addresses, copies, and events that order the lanes.
//!
//! The executor ([`crate::lanes`]) drives a device from one thread per lane. Every call says which lane it belongs to by what it is:
//! ops are the compute lane's, stores the to-host lane's, loads the to-device lane's. A device may do its work within the call, as the
//! CPU does; or it may only put it into the lane's queue, when [`wait`](Device::wait) and [`signal`](Device::signal) put waits and
//! events there too and [`drain`](Device::drain) lets the lane's queue run empty.

mod cpu;
mod events;

use std::sync::Arc;
use std::time::Instant;

use elbowroom_graph::Graph;
use elbowroom_ir::schedule::Lane;
use elbowroom_ir::{ActionId, Bytes, OpId};

pub use cpu::{CpuDevice, CpuParts};
pub use events::Waiting;

use crate::arena::Extent;
use crate::error::{EngineError, HostError};
use crate::host::HostTier;

/// What the host gives an iteration and gets from it, by slots of the graph's inputs and outputs. All buffers have their values' sizes.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Batches.
    pub inputs: Vec<Vec<u8>>,
    /// Results.
    pub outputs: Vec<Vec<u8>>,
}

/// What ops know besides their operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The run's seed.
    pub seed: u64,
    /// The iteration's number, from zero.
    pub iteration: u64,
}

/// One run of an op at addresses. Only a program made from a proved plan makes calls, and an iteration on demand, which runs nothing else
/// meanwhile: their ranges lie in the arena, and no other work uses them before the call's end has been signalled.
#[derive(Debug)]
pub struct Call<'a> {
    pub op: OpId,
    pub reads: &'a [Extent],
    pub writes: &'a [Extent],
    pub workspace: Extent,
    pub turn: Turn,
    pub exchange: &'a mut Exchange,
}

/// Work was stopped because another lane failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// Memory and three lanes.
pub trait Device: Send + Sync {
    /// Bytes of arena.
    fn limit(&self) -> Bytes;

    /// Forgets all events: a new iteration begins.
    fn begin(&self);
    /// Runs an op on the compute lane.
    fn launch(&self, call: Call<'_>) -> Result<(), EngineError>;
    /// The moment from which a copy counts that nothing kept from beginning at `ready`, on whatever thread it begins now.
    fn begun(&self, _lane: Lane, _ready: Instant) -> Instant {
        Instant::now()
    }
    /// Copies a range to an offset of the host tier, on the to-host lane. It counts from `start`.
    fn store(&self, from: Extent, to: usize, start: Instant) -> Result<(), HostError>;
    /// Copies a range from an offset of the host tier, on the to-device lane. It counts from `start`.
    fn load(&self, from: usize, to: Extent, start: Instant) -> Result<(), HostError>;
    /// Copies up to this size, in bytes, are over before the thread of their lane would be awake: ops make them on their way. Zero where
    /// copies are not the processor's work.
    fn prompt(&self) -> usize {
        0
    }
    /// The bytes of a residence are free from now on, until something is written there again.
    fn retire(&self, _extent: Extent) {}
    /// Whether [`retire`](Self::retire) does anything.
    fn retires(&self) -> bool {
        false
    }
    /// What the lane does next happens after the action.
    fn wait(&self, lane: Lane, action: ActionId) -> Result<(), Stopped>;
    /// Whether the action has finished. If it has not, the lane is one of those that wait for it.
    fn reached(&self, lane: Lane, action: ActionId) -> bool;
    /// The lane's work so far includes the action: it is finished when that work is. The lanes that wait for it are to be woken.
    fn signal(&self, lane: Lane, action: ActionId) -> Waiting;
    /// Lets a lane that waits look again.
    fn wake(&self, lane: Lane);
    /// Returns when all work of the lane is done.
    fn drain(&self, _lane: Lane) -> Result<(), EngineError> {
        Ok(())
    }
    /// Makes every wait of this iteration fail.
    fn stop(&self);

    /// Gets ready for programs of another graph with so many actions, while nothing runs.
    fn serve(&mut self, graph: Arc<Graph>, actions: usize);
    /// Takes another host tier, and gives back the one that it had, while nothing runs.
    fn rehost(&mut self, host: Box<dyn HostTier>) -> Box<dyn HostTier>;
    /// Moves a range to an offset within the arena while nothing else runs; the two may overlap.
    fn shift(&self, from: Extent, to: usize);

    /// Where offloaded values wait.
    fn host(&self) -> &dyn HostTier;
    /// Reads a range between iterations.
    fn read(&self, from: Extent, into: &mut [u8]);
    /// Writes a range between iterations.
    fn write(&self, to: Extent, bytes: &[u8]);
    /// Fills bytes from `from` on with a pattern, between iterations: see [`crate::arena`].
    fn paint(&self, from: Bytes);
    /// The first painted byte above `from` that no longer shows the pattern, between iterations.
    fn first_stain(&self, from: Bytes) -> Option<Bytes>;
}
