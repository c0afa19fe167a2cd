//! Programs with their own operations on blocks: with a limit and a planner they compute the same as without.

use std::sync::atomic::{AtomicU64, Ordering};

use arbitrary::{Result, Unstructured};
use elbowroom::alloc::device::{BlockHandle, Device, DeviceError, SwapPlanner};
use elbowroom::blocks::Swap;

#[path = "../examples/kmeans.rs"]
mod kmeans;

fn swap() -> Option<Box<dyn SwapPlanner>> {
    Some(Box::new(Swap::default()))
}

#[test]
fn kmeans_is_equal_under_less_than_half_of_its_memory() {
    let mut unlimited = Device::new(1 << 20, None);
    let expected = kmeans::kmeans(&mut unlimited, 300, 12).unwrap();
    let limit = unlimited.stats().peak_live / 2 - 1;
    let mut device = Device::new(limit, swap());
    let centres = kmeans::kmeans(&mut device, 300, 12).unwrap();
    assert_eq!(centres, expected);
    let stats = device.stats();
    assert!(stats.device_bytes <= limit && (stats.plans, stats.abandoned) == (1, 1), "{stats:?}");
    // The first iteration finds the points where they were made, two more must be equal; the plan is left for the last operation, which
    // reads the centres.
    assert!(stats.planned >= 8 * kmeans::OPERATIONS as u64, "{stats:?}");

    // Dynamic execution always offloads the block that is needed next; the plan keeps the blocks that fit.
    let mut on_demand = Device::new(limit, None);
    assert_eq!(kmeans::kmeans(&mut on_demand, 300, 12).unwrap(), expected);
    assert!(5 * stats.to_device < 4 * on_demand.stats().to_device, "{stats:?} {:?}", on_demand.stats());
}

/// What a program does to its variables, each of which holds a block or nothing.
#[derive(Clone, Debug)]
enum Step {
    Malloc { variable: usize, bytes: usize },
    Free { variable: usize },
    Exec { reads: Vec<usize>, writes: Vec<usize> },
}

const VARIABLES: usize = 8;

impl Step {
    fn arbitrary(bytes: &mut Unstructured<'_>) -> Result<Self> {
        let variable = bytes.choose_index(VARIABLES)?;
        Ok(match bytes.int_in_range(0..=9u8)? {
            0 | 1 => Self::Malloc { variable, bytes: *bytes.choose(&[1, 64, 100, 640, 2048, 5000])? },
            2 => Self::Free { variable },
            _ => {
                let mut some = |most: usize| -> Result<Vec<usize>> {
                    let count = bytes.int_in_range(0..=most)?;
                    (0..count).map(|_| bytes.choose_index(VARIABLES)).collect()
                };
                Self::Exec { reads: some(3)?, writes: some(2)? }
            }
        })
    }
}

/// A program with the values that its blocks must hold.
struct Judged {
    device: Device,
    variables: [Option<(BlockHandle, Vec<u8>)>; VARIABLES],
    operations: u64,
}

impl Judged {
    fn free(&mut self, variable: usize) {
        if let Some((block, _)) = self.variables[variable].take() {
            self.device.free(block).unwrap();
            assert_eq!(self.device.free(block), Err(DeviceError::Unknown(block)));
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Malloc { variable, bytes } => {
                self.free(*variable);
                self.variables[*variable] = Some((self.device.malloc(*bytes), vec![0; *bytes]));
            }
            Step::Free { variable } => self.free(*variable),
            Step::Exec { reads, writes } => self.exec(reads, writes),
        }
        let stats = self.device.stats();
        assert!(stats.device_bytes <= self.device.limit(), "{stats:?}");
    }

    /// Each byte written becomes a function of what it was, of all that is read, and of the operation's number.
    fn exec(&mut self, reads: &[usize], writes: &[usize]) {
        let mut writes: Vec<usize> =
            writes.iter().copied().filter(|&v| self.variables[v].is_some()).collect();
        writes.sort_unstable();
        writes.dedup();
        let reads: Vec<usize> =
            reads.iter().copied().filter(|v| self.variables[*v].is_some() && !writes.contains(v)).collect();
        self.operations += 1;
        let seed = self.operations;
        let held = |v: &usize| self.variables[*v].as_ref().expect("filtered above");
        let before: Vec<&[u8]> = reads.iter().map(|v| held(v).1.as_slice()).collect();
        let written: Vec<&[u8]> = writes.iter().map(|v| held(v).1.as_slice()).collect();
        let digest = before
            .concat()
            .iter()
            .fold(seed, |sum, &byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let new = |old: u8, at: usize| old.wrapping_mul(3).wrapping_add((digest >> (at % 56)) as u8);
        let operation = |read: &[&[u8]], write: &mut [&mut [u8]]| {
            assert!(read == before, "operation {seed} reads something else");
            assert!(write.len() == written.len() && write.iter().zip(&written).all(|(a, b)| **a == **b));
            for block in write {
                block.iter_mut().enumerate().for_each(|(at, byte)| *byte = new(*byte, at));
            }
        };
        let blocks =
            |variables: &[usize]| -> Vec<BlockHandle> { variables.iter().map(|v| held(v).0).collect() };
        match self.device.exec(operation, &blocks(&reads), &blocks(&writes)) {
            Ok(()) => {
                for v in writes {
                    let contents = self.variables[v].iter_mut().flat_map(|(_, contents)| contents);
                    contents.enumerate().for_each(|(at, byte)| *byte = new(*byte, at));
                }
            }
            Err(DeviceError::TooSmall { needed, limit }) => assert!(needed > limit),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Runs an arbitrary iteration several times, mostly as it is. Returns how many operations were planned, and how often a plan was left.
fn check(bytes: &mut Unstructured<'_>) -> Result<(u64, u64)> {
    let limit = *bytes.choose(&[2048, 5056, 7168, 10_240, 16_384, 40_000])?;
    let noise = *bytes.choose(&[0u32, 0, 1, 5])?;
    let mut judged =
        Judged { device: Device::new(limit, swap()), variables: Default::default(), operations: 0 };
    let length = bytes.int_in_range(4..=30usize)?;
    let iteration = (0..length).map(|_| Step::arbitrary(bytes)).collect::<Result<Vec<_>>>()?;
    for _ in 0..400 / length {
        for step in &iteration {
            if noise > 0 && bytes.ratio(noise, 200)? {
                judged.step(&Step::arbitrary(bytes)?);
            } else {
                judged.step(step);
            }
        }
    }
    // Everything that is left is read once more.
    (0..VARIABLES).for_each(|variable| judged.exec(&[variable], &[]));
    let stats = judged.device.stats();
    assert!(stats.planned + stats.dynamic <= judged.operations);
    Ok((stats.planned, stats.abandoned))
}

#[test]
fn arbitrary_programs_see_what_they_would_see_without_a_limit() {
    static PLANNED: AtomicU64 = AtomicU64::new(0);
    static LEFT: AtomicU64 = AtomicU64::new(0);
    let mut case = |bytes: &mut Unstructured<'_>| {
        let (planned, left) = check(bytes)?;
        PLANNED.fetch_add(planned, Ordering::Relaxed);
        LEFT.fetch_add(left, Ordering::Relaxed);
        Ok(())
    };
    // A fixed list of cases: the same ones on every machine.
    for seed in 0..200u64 {
        arbtest::arbtest(&mut case).seed(seed << 32 | 8_192).run();
    }
    let (planned, left) = (PLANNED.load(Ordering::Relaxed), LEFT.load(Ordering::Relaxed));
    assert!(planned > 1_000 && left > 10, "{planned} operations were planned, plans left {left} times");
}

/// Three layers forward and back with a block for each, twice as much as the device has.
fn train(device: &mut Device, weights: &[BlockHandle], extra: bool) -> u64 {
    let mut sum = 0;
    let mut kept = Vec::new();
    for &weight in weights {
        let activation = device.malloc(1024);
        let previous: Vec<BlockHandle> = kept.last().copied().into_iter().chain([weight]).collect();
        let add = |reads: &[&[u8]], writes: &mut [&mut [u8]]| {
            writes[0].iter_mut().enumerate().for_each(|(at, byte)| {
                *byte = reads.iter().fold(at as u8, |sum, read| sum.wrapping_mul(5).wrapping_add(read[at]));
            });
        };
        device.exec(add, &previous, &[activation]).unwrap();
        kept.push(activation);
    }
    if extra {
        let look = |reads: &[&[u8]], _: &mut [&mut [u8]]| sum += u64::from(reads[0][17]);
        device.exec(look, &kept[..1], &[]).unwrap();
    }
    for (&weight, activation) in weights.iter().zip(kept).rev() {
        let update = |reads: &[&[u8]], writes: &mut [&mut [u8]]| {
            writes[0].iter_mut().zip(reads[0]).for_each(|(weight, byte)| *weight ^= byte.rotate_left(3));
        };
        device.exec(update, &[activation], &[weight]).unwrap();
        device.free(activation).unwrap();
    }
    let mut all = |reads: &[&[u8]]| sum += reads.concat().iter().map(|&byte| u64::from(byte)).sum::<u64>();
    weights.iter().for_each(|&weight| device.exec(|reads, _| all(reads), &[weight], &[]).unwrap());
    sum
}

#[test]
fn a_mismatch_in_the_middle_of_an_iteration_is_served_and_planning_begins_anew() {
    let run = |limit: usize, planner| -> (Vec<u64>, Device) {
        let mut device = Device::new(limit, planner);
        let weights: Vec<BlockHandle> = (0..10).map(|_| device.malloc(1024)).collect();
        let sums = (0..24).map(|i| train(&mut device, &weights, i == 12)).collect();
        (sums, device)
    };
    let (expected, unlimited) = run(1 << 20, None);
    let limit = unlimited.stats().peak_live / 2;
    for name in ["autoswap", "swdoa", "auto"] {
        let (sums, device) = run(limit, Some(Box::new(Swap::with(name).unwrap())));
        assert_eq!(sums, expected, "{name}");
        let stats = device.stats();
        assert!(stats.device_bytes <= limit, "{name}: {stats:?}");
        assert_eq!((stats.plans, stats.abandoned), (2, 1), "{name}: {stats:?}");
        assert!(stats.planned > 12 * 30, "{name}: {stats:?}");
    }
    assert!(Swap::with("nobody").is_none());
}
