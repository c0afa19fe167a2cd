//! Zhang's interface on CUDA memory, under a driver without a device: an iteration is found, planned with AutoSwap and packed, and its copies
//! run while operations do.
#![cfg(target_os = "linux")]

#[path = "../../alloc/tests/fake_driver/mod.rs"]
mod fake_driver;

use std::ffi::c_void;

use elbowroom::alloc::Cuda;
use elbowroom::alloc::device::{BlockHandle, CudaAccelerator, Device, DeviceStats, SwapPlanner};
use elbowroom::blocks::Swap;
use fake_driver::{FakeDriver, LoggedTask};

const MEMORY: usize = 64 << 20;
const LAYERS: usize = 24;
/// Bytes of an activation: a copy takes 8.2 microseconds.
const BYTES: usize = 1 << 16;
/// An operation takes as long as a copy.
const OPERATION: u64 = 8_000;

/// A stack of layers on a device, and what each block must hold.
struct Stack<'a> {
    driver: &'a FakeDriver,
    device: Device<CudaAccelerator>,
    wrong: Vec<String>,
}

fn next(from: &[u8], weight: u8) -> Vec<u8> {
    from.iter()
        .enumerate()
        .map(|(at, &byte)| byte.wrapping_mul(5).wrapping_add(weight).wrapping_add(at as u8))
        .collect()
}

impl<'a> Stack<'a> {
    fn new(driver: &'a FakeDriver, limit: usize, planner: Option<Box<dyn SwapPlanner>>) -> Self {
        let accelerator = CudaAccelerator::new(Cuda::open().unwrap().device(0).unwrap()).unwrap();
        Self { driver, device: Device::on(accelerator, limit, planner).unwrap(), wrong: Vec::new() }
    }

    /// Writes `to` as the sum of layer functions of what is read.
    fn layer(&mut self, reads: &[BlockHandle], to: BlockHandle, weight: u8) {
        let driver = self.driver;
        let operation = |reads: &[usize], writes: &[usize], stream: *mut c_void| {
            let (reads, to) = (reads.to_vec(), writes[0]);
            let status = driver.launch(stream, OPERATION, move |view| {
                let mut sum = vec![0u8; BYTES];
                for at in reads {
                    let next = next(view.bytes(at, BYTES), weight);
                    sum.iter_mut().zip(next).for_each(|(sum, byte)| *sum = sum.wrapping_add(byte));
                }
                view.bytes(to, BYTES).copy_from_slice(&sum);
            });
            assert_eq!(status, 0);
        };
        // SAFETY: the kernel reads and writes these blocks alone.
        unsafe { self.device.launch(operation, reads, &[to]).unwrap() };
    }

    /// Forward and backward through all layers; the result must be that of the same computation on the host.
    fn iterate(&mut self, number: usize) {
        let input: Vec<u8> = (0..BYTES).map(|at| (at * 7 + number) as u8).collect();
        let first = self.device.malloc(BYTES);
        self.device.upload(first, &input).unwrap();
        let (mut blocks, mut values) = (vec![first], vec![input]);
        for layer in 0..LAYERS {
            let block = self.device.malloc(BYTES);
            self.layer(&[blocks[layer]], block, layer as u8);
            blocks.push(block);
            values.push(next(&values[layer], layer as u8));
        }
        let (mut gradient, mut expected) = (blocks.pop().unwrap(), values.pop().unwrap());
        while let (Some(block), Some(value)) = (blocks.pop(), values.pop()) {
            let new = self.device.malloc(BYTES);
            self.layer(&[gradient, block], new, 3);
            let parts = next(&expected, 3).into_iter().zip(next(&value, 3));
            expected = parts.map(|(one, other)| one.wrapping_add(other)).collect();
            self.device.free(gradient).unwrap();
            self.device.free(block).unwrap();
            gradient = new;
        }
        let mut result = vec![0; BYTES];
        self.device.download(gradient, &mut result).unwrap();
        self.device.free(gradient).unwrap();
        if result != expected {
            self.wrong.push(format!("iteration {number}"));
        }
    }
}

fn swap() -> Option<Box<dyn SwapPlanner>> {
    Some(Box::new(Swap::default().link(8_000_000_000, 8_000_000_000, false)))
}

/// Runs iterations; the statistics, and the device's time per iteration over the last ones.
fn run(
    driver: &FakeDriver,
    limit: usize,
    planner: Option<Box<dyn SwapPlanner>>,
    seed: u64,
) -> (DeviceStats, u64) {
    driver.reset(seed, MEMORY);
    let mut stack = Stack::new(driver, limit, planner);
    let end = |driver: &FakeDriver| driver.tasks().iter().map(|task| task.to).max().unwrap_or(0);
    let mut before = 0;
    for iteration in 0..12 {
        if iteration == 8 {
            before = end(driver);
        }
        stack.iterate(iteration);
    }
    assert!(stack.wrong.is_empty(), "seed {seed}: {:?}", stack.wrong);
    let stats = stack.device.stats();
    assert!(stats.device_bytes <= limit && driver.peak(0) <= limit, "{stats:?}");
    (stats, (end(driver) - before) / 4)
}

#[test]
fn an_iteration_on_cuda_memory_is_found_planned_and_overlapped() {
    let driver = FakeDriver::new(1, MEMORY);
    let limit = 16 * BYTES;
    let (dynamic, dynamic_time) = run(&driver, limit, None, 1);
    let (planned, planned_time) = run(&driver, limit, swap(), 1);
    assert_eq!((planned.plans, planned.abandoned), (1, 0), "{planned:?}");
    assert!(planned.planned >= 8 * (2 * LAYERS as u64 + 3), "{planned:?}");
    assert!(planned.peak_live > limit && planned.to_host <= dynamic.to_host, "{planned:?} {dynamic:?}");
    let kernel = |task: &LoggedTask| task.name == "kernel";
    let copies: Vec<u64> = ["to_host", "to_device"]
        .map(|name| {
            driver.overlap(kernel, |task| task.name == name && task.bytes == BYTES && task.stream % 3 != 0)
        })
        .to_vec();
    println!("{planned_time} ns planned, {dynamic_time} ns dynamic, overlap {copies:?}, {planned:?}");
    assert!(copies.iter().all(|&nanos| nanos > 20 * OPERATION), "{copies:?}");
    assert!(planned_time < dynamic_time, "{planned_time} {dynamic_time}");
}

#[test]
fn planned_bits_are_right_in_every_order_of_the_streams() {
    let driver = FakeDriver::new(0, MEMORY);
    let mut waits = 0;
    for seed in 0..24 {
        let (stats, _) = run(&driver, (10 + seed as usize % 12) * BYTES, swap(), seed);
        assert!(stats.planned > 0, "{stats:?}");
        waits += stats.waits;
    }
    assert!(waits > 2_000, "{waits}");
}
