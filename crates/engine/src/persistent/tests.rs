//! Tensors keep their values wherever they move, within one host tier.

use std::sync::Arc;

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;
use elbowroom_graph::zoo::{self, Options};
use elbowroom_ir::Bytes;

use super::relocate::{BUFFERED, Relocated, relocate_in_pieces};
use super::*;
use crate::arena::Arena;
use crate::device::{CpuDevice, CpuParts};
use crate::host::{HostTier, MemoryTier};

/// Bytes of the arena and of the host tier. Few, so that tensors often move onto each other.
const SPACE: usize = 64;

/// A device with an arena of this size.
fn device(arena: u64, host: MemoryTier) -> CpuDevice {
    let graph = Arc::new(zoo::build("kmeans", &Options::new(2)).unwrap());
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap());
    let arena = Arena::new(Bytes(arena)).unwrap();
    CpuDevice::new(CpuParts { arena, graph, pool, host: Box::new(host), link: None }, 0)
}

/// Disjoint ranges for the tensors that are drawn for this memory; `None` for those that are not, or that do not fit.
fn ranges(u: &mut Unstructured<'_>, sizes: &[usize], drawn: &[bool]) -> Result<Vec<Option<usize>>> {
    let mut order: Vec<usize> = (0..sizes.len()).filter(|&tensor| drawn[tensor]).collect();
    let (mut offsets, mut end) = (vec![None; sizes.len()], 0);
    while !order.is_empty() {
        let tensor = order.swap_remove(u.int_in_range(0..=order.len() - 1)?);
        let offset = end + u.int_in_range(0..=3)?;
        if offset + sizes[tensor] <= SPACE {
            offsets[tensor] = Some(offset);
            end = offset + sizes[tensor];
        }
    }
    Ok(offsets)
}

/// Locations for all tensors; `None` if there is no room for one of them.
fn locations(u: &mut Unstructured<'_>, sizes: &[usize]) -> Result<Option<Vec<PersistentLocation>>> {
    let kinds = sizes.iter().map(|_| u.int_in_range(0..=4)).collect::<Result<Vec<u8>>>()?;
    let on_device = ranges(u, sizes, &kinds.iter().map(|&kind| kind < 3).collect::<Vec<_>>())?;
    let on_host = ranges(u, sizes, &kinds.iter().map(|&kind| kind > 1).collect::<Vec<_>>())?;
    let location = |tensor: usize| {
        let (bytes, host) = (sizes[tensor], on_host[tensor]);
        let device = on_device[tensor].map(|offset| Extent { offset, len: bytes });
        (device.is_some() || host.is_some()).then_some(PersistentLocation { bytes, device, host })
    };
    Ok((0..sizes.len()).map(location).collect())
}

#[test]
fn tensors_keep_their_values_wherever_they_move() {
    let device = device(SPACE as u64, MemoryTier::new(Bytes(SPACE as u64)).unwrap());
    let mut moves = 0;
    let mut case = |u: &mut Unstructured<'_>| {
        let count = u.int_in_range(1..=6)?;
        let sizes: Vec<usize> = (0..count).map(|_| u.int_in_range(1..=20)).collect::<Result<_>>()?;
        let Some((from, to)) = locations(u, &sizes)?.zip(locations(u, &sizes)?) else { return Ok(()) };
        let value =
            |tensor: usize| -> Vec<u8> { (0..sizes[tensor]).map(|i| (40 * tensor + i) as u8).collect() };
        for (tensor, location) in from.iter().enumerate() {
            location.write(&device, 0, &value(tensor)).unwrap();
        }
        let moved = relocate(&device, &from, &to).unwrap().moved;
        moves += usize::from(!moved.is_zero());
        for (tensor, location) in to.iter().enumerate() {
            let mut found = vec![0; sizes[tensor]];
            for place in [
                PersistentLocation { host: None, ..*location },
                PersistentLocation { device: None, ..*location },
            ] {
                if place.device.is_some() || place.host.is_some() {
                    place.read(&device, 0, &mut found).unwrap();
                    assert_eq!(found, value(tensor), "tensor {tensor}: {from:?} to {to:?}");
                }
            }
        }
        Ok(())
    };
    for seed in 0..20_000u64 {
        arbtest(&mut case).seed(seed << 32 | 512).run();
    }
    assert!(moves > 5_000, "{moves}");
}

/// Relocates within one arena and one host tier that are exactly as large as necessary, and compares every byte. Returns what it took.
fn relocated(from: &[PersistentLocation], to: &[PersistentLocation], piece: usize) -> Relocated {
    let ends = |of: fn(&PersistentLocation) -> Option<usize>| from.iter().chain(to).filter_map(of).max();
    let arena = ends(|at| Some(at.device?.end())).unwrap_or(0);
    let tier = ends(|at| Some(at.host? + at.bytes)).unwrap_or(0);
    let device = device(arena.next_multiple_of(64) as u64, MemoryTier::new(Bytes(tier as u64)).unwrap());
    let value = |tensor: usize| -> Vec<u8> {
        (0..from[tensor].bytes).map(|i| (i / 251 + 31 * i + 7 * tensor) as u8).collect()
    };
    for (tensor, location) in from.iter().enumerate() {
        location.write(&device, 0, &value(tensor)).unwrap();
    }
    let relocated = relocate_in_pieces(&device, from, to, piece).unwrap();
    for (tensor, location) in to.iter().enumerate() {
        let mut found = vec![0; location.bytes];
        location.read(&device, 0, &mut found).unwrap();
        assert!(found == value(tensor), "tensor {tensor}: {from:?} to {to:?}");
    }
    relocated
}

/// Locations on the device (`false`) or the host (`true`), by bytes and offset.
fn at<const N: usize>(tensors: [(usize, bool, usize); N]) -> Vec<PersistentLocation> {
    let location = |(bytes, on_host, offset): (usize, bool, usize)| PersistentLocation {
        bytes,
        device: (!on_host).then_some(Extent { offset, len: bytes }),
        host: on_host.then_some(offset),
    };
    tensors.into_iter().map(location).collect()
}

#[test]
fn tensors_that_change_places_need_a_few_pieces_of_buffer_and_no_more_bytes() {
    let (large, piece) = (1 << 20, 1 << 12);
    let cases = [
        // Between arena and host tier, in step and out of step.
        (at([(large, false, 0), (large, true, 0)]), at([(large, true, 0), (large, false, 0)])),
        (at([(large, false, 0), (large, true, 64)]), at([(large, true, 0), (large, false, 1000)])),
        // Two large tensors change places, and a small one makes room.
        (
            at([(large, false, 0), (large, false, large), (100, false, 2 * large)]),
            at([(large, false, large + 100), (large, false, 100), (100, false, 0)]),
        ),
        // One large tensor and two of half its size, on the host.
        (
            at([(large, true, 0), (large / 2, true, large), (large / 2, true, large + large / 2)]),
            at([(large, true, large), (large / 2, true, large / 2), (large / 2, true, 0)]),
        ),
        // Around through both: each comes to where the next one was.
        (
            at([(large, false, 0), (large, true, 0), (large, false, large), (large, true, large)]),
            at([(large, true, 0), (large, false, large), (large, true, large), (large, false, 0)]),
        ),
    ];
    for (from, to) in cases {
        let relocated = relocated(&from, &to, piece);
        let bytes: usize = from.iter().map(|at| at.bytes).sum();
        assert_eq!(relocated.moved, Bytes(bytes as u64), "nothing moves twice");
        let few = BUFFERED * piece * from.len();
        assert!(
            !relocated.buffered.is_zero() && relocated.buffered <= Bytes(few as u64),
            "{relocated:?} of {few}"
        );
    }
}

#[test]
fn buffers_stay_small_however_tensors_change_places() {
    const PIECE: usize = 8;
    let (mut most, mut buffered) = (0.0f64, 0);
    let mut case = |u: &mut Unstructured<'_>| {
        let count = u.int_in_range(2..=8)?;
        let sizes: Vec<usize> = (0..count).map(|_| u.int_in_range(1..=400)).collect::<Result<_>>()?;
        // Packed without gaps, in another order on each side and divided anew between arena and host tier, so that nearly all wait.
        let mut packed = || -> Result<Vec<PersistentLocation>> {
            let mut order: Vec<usize> = (0..count).collect();
            let mut locations = vec![PersistentLocation { bytes: 0, device: None, host: None }; count];
            let mut ends = [0; 2];
            while !order.is_empty() {
                let tensor = order.swap_remove(u.int_in_range(0..=order.len() - 1)?);
                let (bytes, on_host) = (sizes[tensor], u.int_in_range(0..=1)? == 1);
                let offset = ends[usize::from(on_host)];
                locations[tensor] = at([(bytes, on_host, offset)])[0];
                ends[usize::from(on_host)] += bytes;
            }
            Ok(locations)
        };
        let (from, to) = (packed()?, packed()?);
        let relocated = relocated(&from, &to, PIECE);
        let few = BUFFERED * PIECE * count;
        most = most.max(relocated.buffered.get() as f64 / few as f64);
        buffered += usize::from(!relocated.buffered.is_zero());
        assert!(relocated.buffered <= Bytes(few as u64), "{relocated:?} of {few}: {from:?} to {to:?}");
        Ok(())
    };
    for seed in 0..20_000u64 {
        arbtest(&mut case).seed(seed << 32 | 512).run();
    }
    println!("{most:.2} of the bound at most");
    assert!(buffered > 5_000, "{buffered}");
}

#[test]
fn a_large_tensor_moves_over_itself_on_the_host() {
    let (bytes, shift) = (3 * PIECE + 5, PIECE / 2);
    let mut host = MemoryTier::new(Bytes(bytes as u64)).unwrap();
    let value: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    host.store(0, &value).unwrap();
    host.resize(Bytes((bytes + shift) as u64)).unwrap();
    let device = device(64, host);
    let at = |offset| [PersistentLocation { bytes, device: None, host: Some(offset) }];
    for [from, to] in [[0, shift], [shift, 0]] {
        assert_eq!(relocate(&device, &at(from), &at(to)).unwrap().moved, Bytes(bytes as u64));
        let mut found = vec![0; bytes];
        device.host().load(to, &mut found).unwrap();
        assert!(found == value, "from {from} to {to}");
    }
}
