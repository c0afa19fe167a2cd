//! Persistent tensors between iterations: initialized, read and written in pieces, so that no second copy of a whole tensor exists, and
//! moved to where the next plan expects them.

use elbowroom_graph::Graph;
use rayon::prelude::*;

use crate::arena::Extent;
use crate::device::Device;
use crate::error::EngineError;

mod relocate;

pub(crate) use relocate::relocate;

/// Bytes copied at a time.
pub(crate) const PIECE: usize = 1 << 20;
/// Initial values drawn by one task.
const VALUES_PER_TASK: usize = 1 << 14;

/// Where a persistent tensor is between iterations: in the arena, on the host, or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PersistentLocation {
    pub bytes: usize,
    pub device: Option<Extent>,
    /// Offset of its host copy, in bytes.
    pub host: Option<usize>,
}

impl PersistentLocation {
    /// Reads part of the tensor, from byte `skip` on.
    pub fn read(&self, device: &dyn Device, skip: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        if let Some(extent) = self.device {
            device.read(extent.part(skip, bytes.len()), bytes);
        } else if let Some(offset) = self.host {
            device.host().load(offset + skip, bytes)?;
        }
        Ok(())
    }

    /// Writes part of the tensor, from byte `skip` on, to every location that holds it.
    pub fn write(&self, device: &dyn Device, skip: usize, bytes: &[u8]) -> Result<(), EngineError> {
        if let Some(extent) = self.device {
            device.write(extent.part(skip, bytes.len()), bytes);
        }
        if let Some(offset) = self.host {
            device.host().store(offset + skip, bytes)?;
        }
        Ok(())
    }
}

/// Writes the initial values. The threads of the pool must be idle.
pub(crate) fn initialize(
    device: &dyn Device,
    locations: &[PersistentLocation],
    graph: &Graph,
    seed: u64,
    pool: &rayon::ThreadPool,
) -> Result<(), EngineError> {
    let mut values = vec![0f32; PIECE / 4];
    for (parameter, location) in graph.persistent.iter().zip(locations) {
        for skip in (0..location.bytes).step_by(PIECE) {
            let count = PIECE.min(location.bytes - skip) / 4;
            let values = &mut values[..count];
            pool.install(|| {
                values.par_chunks_mut(VALUES_PER_TASK).enumerate().for_each(|(chunk, values)| {
                    parameter.fill(seed, skip / 4 + chunk * VALUES_PER_TASK, values);
                });
            });
            location.write(device, skip, bytemuck::cast_slice(values))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
