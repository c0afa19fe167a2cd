//! Planned memory and the device of blocks on CUDA memory, under a driver without a device (`fake_driver/driver.c`).
#![cfg(all(target_os = "linux", not(miri)))]

mod fake_driver;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use elbowroom_alloc::device::{
    Accelerator, AcceleratorError, BlockHandle, CudaAccelerator, Device, DeviceError, DeviceStats, Queue,
};
use elbowroom_alloc::{
    Backing, Cuda, CudaError, CudaMemory, HostMemory, Pool, Release, Request, Settings, Stats,
};
use elbowroom_ir::search::Budget;
use fake_driver::{FakeDriver, ILLEGAL_ADDRESS, LAUNCH_FAILED, OUT_OF_MEMORY};

const MEMORY: usize = 64 << 20;

fn memory() -> CudaMemory {
    Cuda::open().unwrap().device(0).unwrap()
}

fn settings() -> Settings {
    // Without a time limit, so that two runs make the same plans.
    Settings::default().granule(512).budget(Budget::evaluations(64))
}

/// Iterations of a stack of layers, some of which are interrupted by requests that do not repeat. Returns the addresses of the last iteration,
/// from the lowest one on.
fn iterate<B: Backing + Clone>(pool: &Pool<B>, queue: u64, iterations: usize) -> Vec<usize> {
    let mut last = Vec::new();
    for iteration in 0..iterations {
        pool.mark_iteration(queue);
        last = (0..40)
            .map(|layer| pool.allocate(queue, Request::new(3_000 * (1 + layer * 7 % 11), 512)).unwrap())
            .collect();
        if iteration % 3 == 2 {
            pool.interrupt(queue);
            let odd = pool.allocate(queue, Request::new(10_000 + 512 * iteration, 512)).unwrap();
            // SAFETY: nothing uses the block.
            assert_eq!(unsafe { pool.free(odd) }, Release::Freed);
            pool.resume(queue);
        }
        for &block in last.iter().rev() {
            // SAFETY: nothing uses the block.
            assert_eq!(unsafe { pool.free(block) }, Release::Freed);
        }
    }
    let lowest = last.iter().copied().min().unwrap_or(0);
    last.iter().map(|address| address - lowest).collect()
}

fn stats<B: Backing + Clone>(pool: &Pool<B>) -> Stats {
    pool.stats().0
}

#[test]
fn the_pool_plans_on_cuda_memory_as_on_host_memory() {
    let driver = FakeDriver::new(1, MEMORY);
    let (host, cuda) = (Pool::new(HostMemory, settings()), Pool::new(memory(), settings()));
    for queue in [0, 7] {
        assert_eq!(iterate(&host, queue, 12), iterate(&cuda, queue, 12));
    }
    assert_eq!(stats(&host), stats(&cuda));
    let stats = stats(&cuda);
    assert!(stats.planned >= 2 * 9 * 40 && stats.interrupted == 8 && stats.lost == 0, "{stats:?}");
    assert!(stats.planned_share() > 0.7, "{stats:?}");
    assert!(driver.in_use(0) >= stats.arena_bytes && driver.in_use(1) == 0);
    drop(cuda);
    assert_eq!(driver.in_use(0), 0, "the pool gives back all that it took");
}

#[test]
fn a_device_without_memory_is_one_clear_error_and_the_pool_goes_on() {
    let driver = FakeDriver::new(2, 1 << 20);
    let pool = Pool::new(memory(), settings());
    let block = pool.allocate(0, Request::new(700_000, 512)).unwrap();
    let error = pool.allocate(0, Request::new(700_000, 512)).unwrap_err().to_string();
    assert_eq!(error, "cannot reserve 700000 bytes: the CUDA driver refused to give memory: out of memory");
    // SAFETY: nothing uses the block.
    assert_eq!(unsafe { pool.free(block) }, Release::Freed);
    let again = pool.allocate(0, Request::new(700_000, 512)).unwrap();
    // SAFETY: nothing uses the block.
    assert_eq!(unsafe { pool.free(again) }, Release::Freed);
    assert_eq!(driver.in_use(0), 0);
}

#[test]
fn a_lost_device_is_one_clear_error_and_the_process_goes_on() {
    let driver = FakeDriver::new(4, MEMORY);
    let pool = Pool::new(memory(), settings());
    iterate(&pool, 0, 4);
    driver.fail("cuMemAlloc_v2", 0, LAUNCH_FAILED);
    for _ in 0..3 {
        let error = pool.allocate(9, Request::new(4096, 512)).unwrap_err().to_string();
        assert!(error.starts_with("cannot reserve 4096 bytes: the CUDA driver refused to "), "{error}");
        assert!(error.ends_with("unspecified launch failure"), "{error}");
    }
    drop(pool);
    // Another device, or the same after a restart of the driver.
    driver.reset(4, MEMORY);
    iterate(&Pool::new(memory(), settings()), 0, 4);
}

#[test]
fn a_driver_that_does_not_start_is_one_clear_error() {
    let driver = FakeDriver::new(5, MEMORY);
    driver.fail("cuInit", 0, 999);
    let error = Cuda::open().unwrap_err();
    assert_eq!(error.to_string(), "the CUDA driver refused to start: error 999");
    driver.reset(5, MEMORY);
    let error = Cuda::open().unwrap().device(2).unwrap_err();
    assert_eq!(error.to_string(), "the CUDA driver refused to find the device: invalid device ordinal");
    assert!(matches!(error, CudaError::Refused { code: 101, .. }));
}

/// A program on a device, whose blocks are written as functions of what they held and of what is read, and what they must hold.
struct Judged<A: Accelerator> {
    device: Device<A>,
    blocks: Vec<(BlockHandle, Vec<u8>)>,
    operations: u64,
}

/// What an operation makes of a byte.
fn written(old: u8, digest: u64, at: usize) -> u8 {
    old.wrapping_mul(3).wrapping_add((digest >> (at % 48)) as u8).wrapping_add(at as u8)
}

fn digest<'a>(seed: u64, reads: impl Iterator<Item = &'a [u8]>) -> u64 {
    reads
        .flatten()
        .fold(seed, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(7))
}

impl<A: Accelerator> Judged<A> {
    fn new(device: Device<A>) -> Self {
        Self { device, blocks: Vec::new(), operations: 0 }
    }

    fn malloc(&mut self, bytes: usize) {
        self.blocks.push((self.device.malloc(bytes), vec![0; bytes]));
    }

    fn free(&mut self, at: usize) {
        let (block, _) = self.blocks.remove(at);
        self.device.free(block).unwrap();
    }

    fn exec(&mut self, driver: &FakeDriver, reads: &[usize], writes: &[usize]) -> Result<(), DeviceError> {
        self.operations += 1;
        let seed = self.operations;
        let sizes = |blocks: &[usize]| blocks.iter().map(|&at| self.blocks[at].1.len()).collect::<Vec<_>>();
        let (read_bytes, written_bytes) = (sizes(reads), sizes(writes));
        let nanos = 2_000 + 100 * (seed % 7);
        let operation = |read: &[usize], write: &[usize], stream: *mut c_void| {
            let read: Vec<(usize, usize)> = read.iter().copied().zip(read_bytes).collect();
            let write: Vec<(usize, usize)> = write.iter().copied().zip(written_bytes).collect();
            driver.launch(stream, nanos, move |view| {
                let digest = digest(seed, read.iter().map(|&(at, bytes)| &*view.bytes(at, bytes)));
                for &(at, bytes) in &write {
                    let block = view.bytes(at, bytes);
                    block.iter_mut().enumerate().for_each(|(at, byte)| *byte = written(*byte, digest, at));
                }
            })
        };
        let handles = |blocks: &[usize]| blocks.iter().map(|&at| self.blocks[at].0).collect::<Vec<_>>();
        let (r, w) = (handles(reads), handles(writes));
        // SAFETY: the kernel uses these blocks alone.
        unsafe { self.device.launch(operation, &r, &w)? };
        let digest = digest(seed, reads.iter().map(|&at| self.blocks[at].1.as_slice()));
        for &at in writes {
            self.blocks[at]
                .1
                .iter_mut()
                .enumerate()
                .for_each(|(at, byte)| *byte = written(*byte, digest, at));
        }
        Ok(())
    }

    /// The number of blocks whose contents are wrong.
    fn wrong(&mut self) -> Result<usize, DeviceError> {
        let mut wrong = 0;
        for (block, expected) in &self.blocks {
            let mut contents = vec![0; expected.len()];
            self.device.download(*block, &mut contents)?;
            wrong += usize::from(contents != *expected);
        }
        Ok(wrong)
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % limit
    }
}

/// A program of random operations on blocks that together exceed the device.
fn random_program<A: Accelerator>(
    driver: &FakeDriver,
    device: Device<A>,
    seed: u64,
    operations: usize,
) -> Result<(usize, DeviceStats), DeviceError> {
    let mut random = Random(seed);
    let mut judged = Judged::new(device);
    for _ in 0..operations {
        while judged.blocks.len() < 10 {
            judged.malloc([1, 64, 700, 1_000, 4_096, 5_000][random.below(6)]);
        }
        if random.below(8) == 0 {
            let at = random.below(judged.blocks.len());
            judged.free(at);
        }
        let mut pick: Vec<usize> = (0..judged.blocks.len()).collect();
        let first = random.below(pick.len());
        pick.rotate_left(first);
        let (reads, writes) = (random.below(3), 1 + random.below(2));
        judged.exec(driver, &pick[..reads], &pick[reads..reads + writes])?;
    }
    Ok((judged.wrong()?, judged.device.stats()))
}

const LIMIT: usize = 22_000;

fn device<A: Accelerator>(accelerator: A) -> Device<A> {
    Device::on(accelerator, LIMIT, None).unwrap()
}

#[test]
fn contents_survive_every_order_of_the_streams() {
    let driver = FakeDriver::new(0, MEMORY);
    let mut waits = 0;
    for seed in 0..300 {
        driver.reset(seed, MEMORY);
        let accelerator = CudaAccelerator::new(memory()).unwrap();
        let (wrong, stats) = random_program(&driver, device(accelerator), seed / 3, 60).unwrap();
        assert_eq!(wrong, 0, "seed {seed}");
        assert!(stats.device_bytes <= LIMIT && driver.peak(0) <= LIMIT.next_multiple_of(512), "{stats:?}");
        assert_eq!(driver.in_use(0), 0);
        waits += stats.waits;
    }
    assert!(waits > 300, "{waits}");
}

/// A CUDA device that leaves out one wait.
struct Careless {
    inner: CudaAccelerator,
    /// The number of the wait that is left out, and how many there were.
    waits: Arc<Mutex<(u64, u64)>>,
}

// SAFETY: none; it is wrong by design, and its kernels reach memory of the driver alone.
unsafe impl Accelerator for Careless {
    type Event = <CudaAccelerator as Accelerator>::Event;

    fn reserve(&self, bytes: usize) -> Result<usize, AcceleratorError> {
        self.inner.reserve(bytes)
    }
    unsafe fn release(&self, address: usize, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.release(address, bytes) };
    }
    fn reserve_host(&self, bytes: usize) -> Result<usize, AcceleratorError> {
        self.inner.reserve_host(bytes)
    }
    unsafe fn release_host(&self, address: usize, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.release_host(address, bytes) };
    }
    fn handle(&self, queue: Queue) -> *mut c_void {
        self.inner.handle(queue)
    }
    unsafe fn fill(&self, queue: Queue, address: usize, bytes: usize) -> Result<(), AcceleratorError> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.fill(queue, address, bytes) }
    }
    unsafe fn to_host(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.to_host(queue, from, to, bytes) }
    }
    unsafe fn to_device(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.to_device(queue, from, to, bytes) }
    }
    fn event(&self) -> Result<Self::Event, AcceleratorError> {
        self.inner.event()
    }
    fn drop_event(&self, event: Self::Event) {
        self.inner.drop_event(event);
    }
    fn record(&self, queue: Queue, event: &mut Self::Event) -> Result<(), AcceleratorError> {
        self.inner.record(queue, event)
    }
    fn wait(&self, queue: Queue, event: &Self::Event) -> Result<(), AcceleratorError> {
        let mut waits = self.waits.lock().unwrap();
        waits.1 += 1;
        if waits.1 - 1 == waits.0 { Ok(()) } else { self.inner.wait(queue, event) }
    }
    fn is_done(&self, event: &Self::Event) -> Result<bool, AcceleratorError> {
        self.inner.is_done(event)
    }
    fn synchronize(&self, event: &Self::Event) -> Result<(), AcceleratorError> {
        self.inner.synchronize(event)
    }
    fn nanos(&self, start: &Self::Event, end: &Self::Event) -> Result<u64, AcceleratorError> {
        self.inner.nanos(start, end)
    }
}

/// The tests above can fail: each wait that a program needs, left out, yields wrong contents in some order of the streams, and in that order
/// each time.
#[test]
fn a_wait_that_is_left_out_yields_wrong_contents() {
    let driver = FakeDriver::new(0, MEMORY);
    let run = |wait: u64, seed: u64| {
        driver.reset(seed, MEMORY);
        let waits = Arc::new(Mutex::new((wait, 0)));
        let accelerator = Careless { inner: CudaAccelerator::new(memory()).unwrap(), waits: waits.clone() };
        let (wrong, stats) = random_program(&driver, device(accelerator), 1, 60).unwrap();
        let reached = waits.lock().unwrap().1 > wait;
        (wrong, stats, reached)
    };
    let (mut left_out, mut caught) = (0, 0);
    for wait in 0..12 {
        left_out += u64::from((0..100).any(|seed| run(wait, seed).2));
        if let Some(seed) = (0..1_000).find(|&seed| run(wait, seed).0 > 0) {
            caught += 1;
            assert_eq!(run(wait, seed), run(wait, seed), "one seed is one order");
        }
    }
    println!("{caught} of {left_out} waits");
    assert!(left_out >= 12 && caught == left_out, "{caught} of {left_out} waits");
}

/// Every function of the driver fails once, at its first to its fortieth call: one error, no panic, and nothing is kept but what a lost
/// device may still use.
#[test]
fn an_error_of_any_function_is_an_error_of_the_program() {
    let driver = FakeDriver::new(0, MEMORY);
    let functions = [
        "cuMemHostAlloc",
        "cuMemsetD8Async",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuStreamWaitEvent",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuMemFree_v2",
        "cuMemFreeHost",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
    ];
    let mut failures = 0;
    for (function, status) in
        functions.iter().flat_map(|f| [OUT_OF_MEMORY, ILLEGAL_ADDRESS].map(|status| (*f, status)))
    {
        for after in [0, 1, 5, 40] {
            driver.reset(7, MEMORY);
            let made = CudaAccelerator::new(memory()).unwrap();
            driver.fail(function, after, status);
            let outcome =
                Device::on(made, LIMIT, None).and_then(|device| random_program(&driver, device, 3, 40));
            match outcome {
                // Not called as often, or only at the end, when nothing is left to be done.
                Ok((wrong, _)) => assert_eq!(wrong, 0, "{function} {after} {status}"),
                Err(DeviceError::Accelerator(error)) => {
                    failures += 1;
                    let text = error.to_string();
                    let expected =
                        if status == OUT_OF_MEMORY { "out of memory" } else { "an illegal memory access" };
                    assert!(
                        text.contains(expected) && text.contains("driver refused to "),
                        "{function}: {text}"
                    );
                }
                Err(error) => panic!("{function} {after}: {error}"),
            }
        }
    }
    assert!(failures > 40, "{failures}");
    driver.reset(7, MEMORY);
    let accelerator = CudaAccelerator::new(memory()).unwrap();
    assert_eq!(random_program(&driver, device(accelerator), 3, 40).unwrap().0, 0, "the process goes on");
}

#[test]
fn a_lost_device_of_blocks_returns_one_error_from_then_on() {
    let driver = FakeDriver::new(8, MEMORY);
    let mut judged = Judged::new(device(CudaAccelerator::new(memory()).unwrap()));
    (0..8).for_each(|_| judged.malloc(5_000));
    judged.exec(&driver, &[0], &[1]).unwrap();
    driver.fail("cuMemcpyDtoHAsync_v2", 0, LAUNCH_FAILED);
    let error = (0..8).find_map(|at| judged.exec(&driver, &[at], &[(at + 1) % 8]).err()).unwrap();
    let text = "the device failed: the CUDA driver refused to copy to the host: unspecified launch failure";
    assert_eq!(error.to_string(), text);
    assert_eq!(judged.exec(&driver, &[0], &[1]), Err(error.clone()));
    assert_eq!(judged.wrong(), Err(error.clone()));
    assert_eq!(judged.device.synchronize(), Err(error));
    judged.malloc(10);
    judged.free(0);
}

/// A host that has no more memory for copies costs an operation, nothing else.
#[test]
fn a_host_without_memory_costs_one_operation() {
    let driver = FakeDriver::new(9, MEMORY);
    let mut judged = Judged::new(device(CudaAccelerator::new(memory()).unwrap()));
    (0..8).for_each(|_| judged.malloc(5_000));
    (0..4).for_each(|at| judged.exec(&driver, &[], &[at]).unwrap());
    driver.fail("cuMemHostAlloc", 0, OUT_OF_MEMORY);
    let error = judged.exec(&driver, &[], &[4]).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot reserve 5056 bytes of the host: out of memory (the CUDA driver refused to give page-locked memory: out of memory)"
    );
    (0..8).for_each(|at| judged.exec(&driver, &[(at + 1) % 8], &[at]).unwrap());
    assert_eq!(judged.wrong(), Ok(0));
}

#[test]
fn transfers_are_operations_in_order() {
    let driver = FakeDriver::new(10, MEMORY);
    for seed in 0..50 {
        driver.reset(seed, MEMORY);
        let mut device = device(CudaAccelerator::new(memory()).unwrap());
        let blocks: Vec<BlockHandle> = (0..12).map(|_| device.malloc(4_000)).collect();
        let mut queue = VecDeque::new();
        for (at, &block) in blocks.iter().enumerate() {
            device.upload(block, &vec![at as u8; 4_000]).unwrap();
            queue.push_back((block, at as u8));
        }
        for (block, byte) in queue {
            let mut contents = vec![0; 4_000];
            device.download(block, &mut contents).unwrap();
            assert!(contents.iter().all(|&b| b == byte), "seed {seed}");
        }
        assert_eq!(device.upload(blocks[0], &[1]), Err(DeviceError::Size { block: 4_000, transfer: 1 }));
    }
}
