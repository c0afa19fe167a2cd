//! Persistent values between iterations: read and written piece by piece, so that no copy of one is ever whole, and moved to where the
//! next plan expects them.

use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use rayon::prelude::*;

use crate::arena::Extent;
use crate::device::Device;
use crate::error::EngineError;
use crate::host::HostTier;

/// Bytes moved at once.
pub(crate) const PIECE: usize = 1 << 20;
/// Initial values drawn by one task; a multiple of four, as `Init::fill` wants.
const DRAWN: usize = 1 << 14;

/// Where a persistent value is between iterations: in the arena, on the host, or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub bytes: usize,
    pub device: Option<Extent>,
    /// Its first byte on the host.
    pub host: Option<usize>,
}

impl Place {
    /// Reads a part of the value, from `skip` on.
    pub fn read(&self, device: &dyn Device, skip: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        if let Some(extent) = self.device {
            device.read(extent.part(skip, bytes.len()), bytes);
        } else if let Some(offset) = self.host {
            device.host().load(offset + skip, bytes)?;
        }
        Ok(())
    }

    /// Writes a part of the value, from `skip` on, wherever it is.
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

/// Writes the values that a training begins with. The threads of the pool must be free.
pub(crate) fn initialize(
    device: &dyn Device,
    places: &[Place],
    graph: &Graph,
    seed: u64,
    pool: &rayon::ThreadPool,
) -> Result<(), EngineError> {
    let (mut values, mut bytes) = (vec![0f32; PIECE / 4], vec![0; PIECE]);
    for (parameter, place) in graph.persistent.iter().zip(places) {
        for skip in (0..place.bytes).step_by(PIECE) {
            let count = PIECE.min(place.bytes - skip) / 4;
            let values = &mut values[..count];
            pool.install(|| {
                values.par_chunks_mut(DRAWN).enumerate().for_each(|(chunk, values)| {
                    parameter.init.fill(seed, skip / 4 + chunk * DRAWN, values);
                });
            });
            for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
            place.write(device, skip, &bytes[..4 * count])?;
        }
    }
    Ok(())
}

/// Whether the host tier can stay as it is: nothing on it has to make way for anything else.
pub(crate) fn host_stays(from: &[Place], to: &[Place]) -> bool {
    let nothing_there = from.iter().all(|place| place.host.is_none());
    nothing_there || from.iter().zip(to).all(|(from, to)| to.host.is_none() || to.host == from.host)
}

/// Moves values from where they are to where they are to be; `host` is the tier to come, where it is another one than the device's.
/// Nothing but these values lies in the arena. Returns the bytes moved.
pub(crate) fn relocate(
    device: &dyn Device,
    from: &[Place],
    to: &[Place],
    host: Option<&dyn HostTier>,
) -> Result<Bytes, EngineError> {
    let mut moved = 0;
    let mut buffer = vec![0; PIECE];
    // First to the host, from bytes that are still where they were.
    for (from, to) in from.iter().zip(to) {
        let Some(offset) = to.host.filter(|_| host.is_some() || to.host != from.host) else { continue };
        for skip in (0..from.bytes).step_by(PIECE) {
            let piece = &mut buffer[..PIECE.min(from.bytes - skip)];
            from.read(device, skip, piece)?;
            host.unwrap_or(device.host()).store(offset + skip, piece)?;
        }
        moved += from.bytes;
    }
    // Then within the arena: what covers nothing that is still to be moved; where all cover each other, one is set aside.
    let mut waiting: Vec<(Extent, Extent)> = from
        .iter()
        .zip(to)
        .filter_map(|(from, to)| from.device.zip(to.device))
        .filter(|(from, to)| from.offset != to.offset)
        .collect();
    moved += waiting.iter().map(|(from, _)| from.len).sum::<usize>();
    let mut aside: Vec<(Extent, Vec<u8>)> = Vec::new();
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
                device.shift(source, target.offset);
                waiting.swap_remove(index);
            }
        }
        if waiting.len() == before {
            let (source, target) = waiting.swap_remove(0);
            let mut value = vec![0; source.len];
            device.read(source, &mut value);
            aside.push((target, value));
        }
    }
    for (target, value) in aside {
        device.write(target, &value);
    }
    // Last from the host, to bytes that are free now.
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
