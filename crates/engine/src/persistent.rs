//! Persistent tensors between iterations: initialized, read and written in pieces, so that no second copy of a whole tensor exists, and
//! moved to where the next plan expects them.

use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use rayon::prelude::*;

use crate::arena::Extent;
use crate::device::Device;
use crate::error::EngineError;

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

/// Where the value of a tensor is while tensors move.
enum Source {
    Device(Extent),
    /// At this offset of the host tier.
    Host(usize),
    /// In a buffer, because other tensors move to where it was.
    Buffer(Vec<u8>),
}

/// Copies tensors from their current locations to new ones. The host tier is large enough for both. Nothing else lies in the arena or in the tier.
/// Returns the bytes moved.
pub(crate) fn relocate(
    device: &dyn Device,
    from: &[PersistentLocation],
    to: &[PersistentLocation],
) -> Result<Bytes, EngineError> {
    // First to the host, while the sources in the arena are still intact.
    let (mut moved, mut sources) = store_all(device, from, to)?;
    moved += move_in_arena(device, from, to);
    // Finally from the host, into bytes that are now free.
    for ((from, to), source) in from.iter().zip(to).zip(&mut sources) {
        let (None, Some(extent)) = (from.device, to.device) else { continue };
        match source {
            Source::Device(_) => continue,
            Source::Buffer(value) => device.write(extent, value),
            Source::Host(offset) => {
                let mut buffer = vec![0; PIECE.min(from.bytes)];
                for skip in (0..from.bytes).step_by(PIECE) {
                    let piece = &mut buffer[..PIECE.min(from.bytes - skip)];
                    device.host().load(*offset + skip, piece)?;
                    device.write(extent.part(skip, piece.len()), piece);
                }
            }
        }
        *source = Source::Device(extent);
        moved += from.bytes;
    }
    Ok(Bytes(moved as u64))
}

/// A tensor that is to move within the arena.
struct Move {
    source: Extent,
    target: Extent,
    /// Whether it was moved aside before.
    aside: bool,
}

fn overlap(a: Extent, b: Extent) -> bool {
    a.offset < b.end() && b.offset < a.end()
}

/// Moves tensors within the arena: each once its target covers no tensor that has yet to move. Of those that wait for each other in a circle,
/// the smallest moves aside into unused bytes of the arena, or into a buffer if there is no room. Returns the bytes moved.
fn move_in_arena(device: &dyn Device, from: &[PersistentLocation], to: &[PersistentLocation]) -> usize {
    let pairs = from.iter().zip(to).filter_map(|(from, to)| from.device.zip(to.device));
    let (stays, moves): (Vec<_>, Vec<_>) = pairs.partition(|(from, to)| from.offset == to.offset);
    let mut settled: Vec<Extent> = stays.into_iter().map(|(extent, _)| extent).collect();
    let mut waiting: Vec<Move> =
        moves.into_iter().map(|(source, target)| Move { source, target, aside: false }).collect();
    let mut moved = waiting.iter().map(|tensor| tensor.source.len).sum();
    let mut buffered: Vec<(Extent, Vec<u8>)> = Vec::new();
    while !waiting.is_empty() {
        let before = waiting.len();
        let mut index = 0;
        while index < waiting.len() {
            let target = waiting[index].target;
            let covers = |other: usize| other != index && overlap(waiting[other].source, target);
            if (0..waiting.len()).any(covers) {
                index += 1;
            } else {
                device.move_within(waiting[index].source, target.offset);
                settled.push(target);
                waiting.swap_remove(index);
            }
        }
        if waiting.len() < before {
            continue;
        }
        let occupied = || settled.iter().copied().chain(waiting.iter().map(|tensor| tensor.source));
        let targets = || waiting.iter().map(|tensor| tensor.target);
        let limit = device.limit().get() as usize;
        // Best where no other tensor has to go.
        let room = |len: usize| {
            hole(limit, occupied().chain(targets()).collect(), len)
                .or_else(|| hole(limit, occupied().collect(), len))
        };
        // One of a circle has to go; if there is no room for the smallest, there is none for the others.
        let circle = circle(&waiting);
        let Some(&smallest) = circle.iter().min_by_key(|&&index| waiting[index].source.len) else { break };
        let may_go = circle.into_iter().filter(|&index| !waiting[index].aside);
        let aside = may_go.min_by_key(|&index| waiting[index].source.len);
        let aside = aside.and_then(|index| Some((index, room(waiting[index].source.len)?)));
        if let Some((index, offset)) = aside {
            let tensor = &mut waiting[index];
            device.move_within(tensor.source, offset);
            moved += tensor.source.len;
            (tensor.source.offset, tensor.aside) = (offset, true);
        } else {
            let Move { source, target, .. } = waiting.swap_remove(smallest);
            let mut value = vec![0; source.len];
            device.read(source, &mut value);
            buffered.push((target, value));
        }
    }
    for (target, value) in buffered {
        device.write(target, &value);
    }
    moved
}

/// Tensors of which each waits for the next to leave its target, and the last for the first. All of them wait.
fn circle(waiting: &[Move]) -> Vec<usize> {
    let mut order: Vec<usize> = Vec::new();
    let mut position = vec![None; waiting.len()];
    let mut current = 0;
    while current < waiting.len() {
        if let Some(first) = position[current] {
            return order.split_off(first);
        }
        position[current] = Some(order.len());
        order.push(current);
        let blocks =
            |&other: &usize| other != current && overlap(waiting[other].source, waiting[current].target);
        current = (0..waiting.len()).find(blocks).unwrap_or(waiting.len());
    }
    order
}

/// The lowest offset below `limit` at which `len` bytes lie in none of the occupied ranges.
fn hole(limit: usize, mut occupied: Vec<Extent>, len: usize) -> Option<usize> {
    occupied.sort_unstable_by_key(|extent| extent.offset);
    let mut offset = 0;
    for extent in occupied {
        if extent.offset >= offset + len {
            break;
        }
        offset = offset.max(extent.end());
    }
    (offset + len <= limit).then_some(offset)
}

/// Writes the host copies that are not where they have to be. A copy is written once it covers no tensor that is on the host alone and has yet to
/// be read. If the rest forms cycles, one tensor waits in a buffer. Returns the bytes moved, and where the tensors are then.
fn store_all(
    device: &dyn Device,
    from: &[PersistentLocation],
    to: &[PersistentLocation],
) -> Result<(usize, Vec<Source>), EngineError> {
    let source = |location: &PersistentLocation| match (location.device, location.host) {
        (Some(extent), _) => Source::Device(extent),
        (None, Some(offset)) => Source::Host(offset),
        (None, None) => Source::Buffer(Vec::new()),
    };
    let mut sources: Vec<Source> = from.iter().map(source).collect();
    let mut waiting: Vec<(usize, usize)> = to
        .iter()
        .zip(from)
        .enumerate()
        .filter_map(|(tensor, (to, from))| Some((tensor, to.host.filter(|_| to.host != from.host)?)))
        .collect();
    let mut moved = 0;
    while !waiting.is_empty() {
        let (before, mut index, mut in_the_way) = (waiting.len(), 0, None);
        while index < waiting.len() {
            let (tensor, target) = waiting[index];
            let end = target + from[tensor].bytes;
            let covered = sources.iter().enumerate().position(|(other, source)| {
                let is_there =
                    |&offset: &usize| offset < end && target < offset + from[other].bytes && other != tensor;
                matches!(source, Source::Host(offset) if is_there(offset))
            });
            match covered {
                Some(other) => {
                    in_the_way = Some(other);
                    index += 1;
                }
                None => {
                    store(device, &sources[tensor], target, from[tensor].bytes)?;
                    if !matches!(sources[tensor], Source::Device(_)) {
                        sources[tensor] = Source::Host(target);
                    }
                    moved += from[tensor].bytes;
                    waiting.swap_remove(index);
                }
            }
        }
        if let Some(other) = in_the_way.filter(|_| waiting.len() == before)
            && let Source::Host(offset) = sources[other]
        {
            let mut value = vec![0; from[other].bytes];
            device.host().load(offset, &mut value)?;
            sources[other] = Source::Buffer(value);
        }
    }
    Ok((moved, sources))
}

/// Copies a tensor to an offset of the host tier, where it may overlap the bytes from which it comes.
fn store(device: &dyn Device, source: &Source, target: usize, bytes: usize) -> Result<(), EngineError> {
    if let Source::Buffer(value) = source {
        return Ok(device.host().store(target, value)?);
    }
    let mut buffer = vec![0; PIECE.min(bytes)];
    let upwards = matches!(source, Source::Host(offset) if *offset < target);
    let pieces = bytes.div_ceil(PIECE);
    for index in 0..pieces {
        // Upwards from the last piece, so that none is overwritten before it is read.
        let skip = PIECE * if upwards { pieces - 1 - index } else { index };
        let piece = &mut buffer[..PIECE.min(bytes - skip)];
        match source {
            Source::Device(extent) => device.read(extent.part(skip, piece.len()), piece),
            Source::Host(offset) => device.host().load(offset + skip, piece)?,
            Source::Buffer(_) => {}
        }
        device.host().store(target + skip, piece)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
