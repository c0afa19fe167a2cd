//! Tensors keep their values wherever they move, within one host tier.

use std::sync::Arc;

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;
use elbowroom_graph::zoo::{self, Options};
use elbowroom_ir::Bytes;

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
        let moved = relocate(&device, &from, &to).unwrap();
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

#[test]
fn tensors_that_change_places_move_through_unused_bytes() {
    // Two large tensors change places, and a small one makes room. A large one moves aside if there is room for it, else through a buffer.
    let sizes = [40, 40, 4];
    let offsets = |offsets: [usize; 3]| {
        let location = |(bytes, offset)| PersistentLocation {
            bytes,
            device: Some(Extent { offset, len: bytes }),
            host: None,
        };
        sizes.into_iter().zip(offsets).map(location).collect::<Vec<_>>()
    };
    let (from, to) = (offsets([0, 40, 80]), offsets([44, 4, 0]));
    for (limit, moved) in [(124, 84 + 40), (123, 84), (84, 84)] {
        let device = device(limit, MemoryTier::new(Bytes(0)).unwrap());
        for (tensor, location) in from.iter().enumerate() {
            location.write(&device, 0, &vec![tensor as u8 + 1; sizes[tensor]]).unwrap();
        }
        assert_eq!(relocate(&device, &from, &to).unwrap(), Bytes(moved), "{limit}");
        for (tensor, location) in to.iter().enumerate() {
            let mut found = vec![0; sizes[tensor]];
            location.read(&device, 0, &mut found).unwrap();
            assert_eq!(found, vec![tensor as u8 + 1; sizes[tensor]], "{limit}");
        }
    }
}

#[test]
fn holes_are_the_lowest_that_are_long_enough() {
    let extents = || [(10, 5), (0, 4), (20, 10)].map(|(offset, len)| Extent { offset, len }).to_vec();
    for (len, found) in [(1, Some(4)), (6, Some(4)), (7, Some(30)), (10, Some(30)), (11, None)] {
        assert_eq!(hole(40, extents(), len), found, "{len}");
    }
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
        assert_eq!(relocate(&device, &at(from), &at(to)).unwrap(), Bytes(bytes as u64));
        let mut found = vec![0; bytes];
        device.host().load(to, &mut found).unwrap();
        assert!(found == value, "from {from} to {to}");
    }
}
