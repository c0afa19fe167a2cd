//! Persistent tensors between iterations: initialized, read and written in pieces, so that no second copy of a whole tensor exists, and
//! moved to where the next plan expects them.

use elbowroom_graph::init::Init;
use elbowroom_graph::{Graph, Parameter};
use rayon::prelude::*;

use crate::arena::Extent;
use crate::device::Device;
use crate::error::EngineError;
use crate::kernels::vectorized;

mod relocate;

pub(crate) use relocate::relocate;

/// Bytes copied at a time.
pub(crate) const PIECE: usize = 1 << 20;
/// Initial values drawn and written at a time, few enough to stay in a processor's cache.
const DRAWN: usize = 1 << 14;

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

/// Writes the initial values into a fresh arena and a fresh host tier. Where a fresh arena reads as zeros, these are not written, so that the
/// state of an optimizer takes no time. The threads of the pool must be idle; each draws some values and writes them, so that drawing, copies
/// and the first accesses to memory overlap.
pub(crate) fn initialize(
    device: &dyn Device,
    locations: &[PersistentLocation],
    graph: &Graph,
    seed: u64,
    pool: &rayon::ThreadPool,
) -> Result<(), EngineError> {
    let there = |parameter: &Parameter, location: &PersistentLocation| {
        parameter.init == Init::Constant(0.0) && location.host.is_none() && device.starts_as_zeros()
    };
    let pieces: Vec<_> = graph
        .persistent
        .iter()
        .zip(locations)
        .filter(|(parameter, location)| !there(parameter, location))
        .flat_map(|(parameter, location)| {
            (0..location.bytes).step_by(PIECE).map(move |skip| (parameter, location, skip))
        })
        .collect();
    pool.install(|| {
        pieces.par_iter().with_max_len(1).try_for_each_init(
            || vec![0f32; DRAWN],
            |values, &(parameter, location, skip)| {
                let end = location.bytes.min(skip + PIECE);
                for skip in (skip..end).step_by(DRAWN * size_of::<f32>()) {
                    let count = DRAWN.min((end - skip) / size_of::<f32>());
                    let values = &mut values[..count];
                    vectorized(
                        #[inline(always)]
                        || parameter.fill(seed, skip / size_of::<f32>(), values),
                    );
                    location.write(device, skip, bytemuck::cast_slice(values))?;
                }
                Ok(())
            },
        )
    })
}

#[cfg(test)]
mod tests;
