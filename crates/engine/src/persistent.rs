//! Persistent tensors between iterations: initialized, read and written in pieces, so that no second copy of a whole tensor exists, and
//! moved to where the next plan expects them.

use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use rayon::prelude::*;

use crate::arena::Extent;
use crate::device::Device;
use crate::error::EngineError;
use crate::host::HostTier;

/// Bytes copied at a time.
pub(crate) const PIECE: usize = 1 << 20;
/// Initial values drawn by one task; a multiple of four, which `Init::fill` requires.
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
    let (mut values, mut bytes) = (vec![0f32; PIECE / 4], vec![0; PIECE]);
    for (parameter, location) in graph.persistent.iter().zip(locations) {
        for skip in (0..location.bytes).step_by(PIECE) {
            let count = PIECE.min(location.bytes - skip) / 4;
            let values = &mut values[..count];
            pool.install(|| {
                values.par_chunks_mut(VALUES_PER_TASK).enumerate().for_each(|(chunk, values)| {
                    parameter.init.fill(seed, skip / 4 + chunk * VALUES_PER_TASK, values);
                });
            });
            for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
            location.write(device, skip, &bytes[..4 * count])?;
        }
    }
    Ok(())
}

/// Whether the current host tier can be kept: no host copy moves onto bytes of another one.
pub(crate) fn host_tier_fits(from: &[PersistentLocation], to: &[PersistentLocation]) -> bool {
    let nothing_there = from.iter().all(|location| location.host.is_none());
    nothing_there || from.iter().zip(to).all(|(from, to)| to.host.is_none() || to.host == from.host)
}

/// Copies tensors from their current locations to new ones. `host` is the new host tier, if it is replaced. Nothing else lies in the arena.
/// Returns the bytes moved.
pub(crate) fn relocate(
    device: &dyn Device,
    from: &[PersistentLocation],
    to: &[PersistentLocation],
    host: Option<&dyn HostTier>,
) -> Result<Bytes, EngineError> {
    let mut moved = 0;
    let mut buffer = vec![0; PIECE];
    // First to the host, while the sources are still intact.
    for (from, to) in from.iter().zip(to) {
        let Some(offset) = to.host.filter(|_| host.is_some() || to.host != from.host) else { continue };
        for skip in (0..from.bytes).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(from.bytes - skip)];
            from.read(device, skip, piece)?;
            host.unwrap_or(device.host()).store(offset + skip, piece)?;
        }
        moved += from.bytes;
    }
    // Then within the arena: a tensor moves once its target covers no tensor that has yet to move. If the rest forms cycles, one tensor is
    // moved through a buffer.
    let mut waiting: Vec<(Extent, Extent)> = from
        .iter()
        .zip(to)
        .filter_map(|(from, to)| from.device.zip(to.device))
        .filter(|(from, to)| from.offset != to.offset)
        .collect();
    moved += waiting.iter().map(|(from, _)| from.len).sum::<usize>();
    let mut buffered: Vec<(Extent, Vec<u8>)> = Vec::new();
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut index = 0;
        while index < waiting.len() {
            let (source, target) = waiting[index];
            let covers = |other: usize| {
                let source = waiting[other].0;
                other != index && source.offset < target.end() && target.offset < source.end()
            };
            if (0..waiting.len()).any(covers) {
                index += 1;
            } else {
                device.move_within(source, target.offset);
                waiting.swap_remove(index);
            }
        }
        if waiting.len() == before {
            let (source, target) = waiting.swap_remove(0);
            let mut value = vec![0; source.len];
            device.read(source, &mut value);
            buffered.push((target, value));
        }
    }
    for (target, value) in buffered {
        device.write(target, &value);
    }
    // Finally from the host, into bytes that are now free.
    for (from, to) in from.iter().zip(to) {
        let (None, Some(extent), Some(offset)) = (from.device, to.device, from.host) else { continue };
        for skip in (0..from.bytes).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(from.bytes - skip)];
            device.host().load(offset + skip, piece)?;
            device.write(extent.part(skip, piece.len()), piece);
        }
        moved += from.bytes;
    }
    Ok(Bytes(moved as u64))
}
