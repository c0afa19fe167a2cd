//! Zhang's device (section V) for programs that declare what an operation uses: `malloc`, `free`, and `exec` with the blocks that it reads
//! and writes.
//!
//! The device has a fixed number of bytes; its blocks may be larger than that together, because they are offloaded to the host and
//! prefetched. Until the program has repeated an iteration, execution is dynamic: if bytes are missing, the least recently used block is
//! offloaded. A repeated iteration becomes a [`Trace`]. A [`SwapPlanner`] decides when each block is offloaded and prefetched, and then its
//! offset, which is the order in which Zhang combines the two. The following iterations run by that plan as long as the program repeats
//! itself. After a departure from the plan, execution is dynamic again, from the current state, until another iteration repeats.
//!
//! A device is anything that implements [`Accelerator`]. [`Device::new`] uses the host ([`HostAccelerator`]): operations get slices, and each
//! copy has ended before the next operation begins. [`Device::on`] uses a device with queues, such as [`CudaAccelerator`]: operations get
//! addresses and a stream and are only issued, copies are issued to two further streams, one for each direction, and events order them.
//! Bytes are used again behind the tasks that still use them, on whichever queue those are.
//!
//! The contents of blocks do not depend on the plan: a block loses its bytes only if an equal copy exists or it is freed, and a new block
//! holds zeros.
//!
//! In some programs a block's role passes to another block that was alive before, as in a ring of buffers. Such a program is planned only
//! if the planner can move the block; otherwise its execution stays dynamic.

mod accelerator;
mod cuda;
mod events;
mod memory;
mod order;
mod planned;
mod tier;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::planning::Costs;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Nanos};

use crate::detect::{Detector, SHORTEST};
pub use accelerator::{Accelerator, AcceleratorError, HostAccelerator, Queue};
pub use cuda::CudaAccelerator;
use events::{DeviceEvent, DeviceIteration, Succession};
use memory::{DeviceMemory, Timing};
use planned::PlannedRun;

/// Alignment of blocks, in bytes.
pub const ALIGN: usize = 64;

/// Maximum number of recorded events.
const HISTORY: usize = 1 << 16;

/// A block of the device. A handle: only operations access its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHandle(u64);

impl BlockHandle {
    /// The handle of a number, as another language keeps it.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The handle as a number. Numbers of one device begin at 0 and are not used again.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Why a call is rejected. The contents of blocks are unchanged, unless the device [failed](AcceleratorError::Failed): then every further
/// operation returns that error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The blocks of one operation exceed the device.
    #[error("the operation needs {needed} bytes at once, but the device has {limit}")]
    TooSmall {
        /// Bytes of its blocks, rounded up to the alignment.
        needed: usize,
        /// Bytes of the device.
        limit: usize,
    },
    /// The block has been freed or belongs to another device.
    #[error("{0:?} is not a live block of this device")]
    Unknown(BlockHandle),
    /// The operation writes a block that it names a second time.
    #[error("the operation writes {0:?} and names it a second time")]
    Twice(BlockHandle),
    /// The bytes of a transfer are not those of the block.
    #[error("the block has {block} bytes, but the transfer {transfer}")]
    Size {
        /// Bytes of the block.
        block: usize,
        /// Bytes of the transfer.
        transfer: usize,
    },
    /// The device or the host has no memory left, or the device failed.
    #[error(transparent)]
    Accelerator(#[from] AcceleratorError),
}

/// Decides when blocks are offloaded and prefetched, and at which offsets they lie.
pub trait SwapPlanner {
    /// A proved plan for a trace on a device of `limit` bytes with offsets at multiples of `align`; `None` if there is none. A plan that
    /// reorders or recomputes ops is not used.
    fn plan(&self, trace: &Trace, costs: &Costs, limit: Bytes, align: Bytes) -> Option<CheckedPlan>;
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Operations run dynamically.
    pub dynamic: u64,
    /// Operations run by a plan.
    pub planned: u64,
    /// Bytes copied to the host.
    pub to_host: u64,
    /// Bytes copied from the host.
    pub to_device: u64,
    /// Plans made.
    pub plans: u64,
    /// Departures of the program from a plan.
    pub abandoned: u64,
    /// The largest end of any block on the device, in bytes.
    pub device_bytes: usize,
    /// Peak of the bytes of all live blocks, on the device or on the host.
    pub peak_live: usize,
    /// Waits of one queue for another.
    pub waits: u64,
}

/// A device of a fixed size.
///
/// ```
/// use elbowroom_alloc::device::Device;
///
/// let mut device = Device::new(64, None);
/// let (a, b) = (device.malloc(64), device.malloc(64));
/// device.exec(|_, writes| writes[0].fill(1), &[], &[a])?;
/// // There is room for one of them: the other leaves for the host.
/// device.exec(|_, writes| writes[0].fill(2), &[], &[b])?;
/// device.exec(|reads, _| assert!(reads[0].iter().all(|&byte| byte == 1)), &[a], &[])?;
/// # Ok::<(), elbowroom_alloc::device::DeviceError>(())
/// ```
pub struct Device<A: Accelerator = HostAccelerator> {
    memory: DeviceMemory<A>,
    planner: Option<Box<dyn SwapPlanner>>,
    /// Number of blocks created; the next block's handle.
    made: u64,
    live: BTreeMap<BlockHandle, LiveBlock>,
    /// The recorded events, each operation with its duration.
    events: Vec<(DeviceEvent, Nanos)>,
    /// Recorded operations whose durations are not known yet.
    timings: VecDeque<(usize, Timing<A>)>,
    detector: Detector,
    run: Option<PlannedRun>,
    load: usize,
    stats: DeviceStats,
    failed: Option<AcceleratorError>,
}

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    bytes: usize,
    /// Index in `events` of the latest event that used it.
    touched: usize,
}

impl Device {
    /// A device of `limit` bytes of the host. Without a planner its execution stays dynamic.
    pub fn new(limit: usize, planner: Option<Box<dyn SwapPlanner>>) -> Self {
        Self::on(HostAccelerator, limit, planner).unwrap_or_else(|_| HostAccelerator::out_of_memory(limit))
    }

    /// Runs an operation on the bytes of the blocks that it reads and of those that it writes, in the given order. A block that is both
    /// read and written belongs in `writes` alone; it comes with its contents.
    ///
    /// # Errors
    /// A block is unknown or named twice, the blocks exceed the device, or the host has no memory left for copies.
    pub fn exec(
        &mut self,
        operation: impl FnOnce(&[&[u8]], &mut [&mut [u8]]),
        reads: &[BlockHandle],
        writes: &[BlockHandle],
    ) -> Result<(), DeviceError> {
        let size = |block: &BlockHandle| self.live.get(block).map_or(0, |live| live.bytes);
        let (read_bytes, written_bytes): (Vec<usize>, Vec<usize>) =
            (reads.iter().map(size).collect(), writes.iter().map(size).collect());
        let on_slices = |_: &HostAccelerator, read: &[usize], written: &[usize], _: *mut c_void| {
            let starts = read.iter().zip(&read_bytes);
            let slice = |(&start, &bytes): (&usize, &usize)| {
                // SAFETY: the bytes of a live block on the host's device, which nothing writes during the operation: written blocks are
                // named once, and blocks do not overlap.
                unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), bytes) }
            };
            let read: Vec<&[u8]> = starts.map(slice).collect();
            let starts = written.iter().zip(&written_bytes);
            let slice = |(&start, &bytes): (&usize, &usize)| {
                // SAFETY: as above; the block is not among those read, and nothing else refers to its bytes during the operation.
                unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), bytes) }
            };
            let mut written: Vec<&mut [u8]> = starts.map(slice).collect();
            operation(&read, &mut written);
        };
        self.issue(on_slices, reads, writes)
    }
}

impl<A: Accelerator> Device<A> {
    /// A device of `limit` bytes, which are reserved at once. Without a planner its execution stays dynamic.
    ///
    /// # Errors
    /// The accelerator has no such memory, or fails.
    pub fn on(
        accelerator: A,
        limit: usize,
        planner: Option<Box<dyn SwapPlanner>>,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            memory: DeviceMemory::new(accelerator, limit)?,
            planner,
            made: 0,
            live: BTreeMap::new(),
            events: Vec::new(),
            timings: VecDeque::new(),
            detector: Detector::new(),
            run: None,
            load: 0,
            stats: DeviceStats::default(),
            failed: None,
        })
    }

    /// Creates a block of zeros, of at least one byte. It occupies no device memory until an operation uses it.
    pub fn malloc(&mut self, bytes: usize) -> BlockHandle {
        let (block, bytes) = (BlockHandle(self.made), bytes.max(1));
        self.made += 1;
        self.live.insert(block, LiveBlock { bytes, touched: self.events.len() });
        self.load = self.load.saturating_add(bytes);
        self.stats.peak_live = self.stats.peak_live.max(self.load);
        self.memory.add(block, bytes);
        let event = DeviceEvent::Malloc(block, bytes);
        // A block needs no device; if it failed, the next operation returns why.
        let _ = self.advance_to(&event);
        self.record(event, None);
        block
    }

    /// Frees a block. Operations that use it may be in progress.
    ///
    /// # Errors
    /// The block is unknown.
    pub fn free(&mut self, block: BlockHandle) -> Result<(), DeviceError> {
        let Some(&LiveBlock { bytes, .. }) = self.live.get(&block) else {
            return Err(DeviceError::Unknown(block));
        };
        let event = DeviceEvent::Free(block);
        let _ = self.advance_to(&event);
        self.record(event, None);
        self.live.remove(&block);
        self.load = self.load.saturating_sub(bytes);
        self.memory.remove(block);
        Ok(())
    }

    /// Issues an operation: it is given the addresses of the blocks that it reads and of those that it writes, in the given order, and the
    /// [handle](Accelerator::handle) of the compute queue, to which it issues all its work. A block that is both read and written belongs in
    /// `writes` alone; it comes with its contents. The addresses are valid for this operation only.
    ///
    /// Returns what the operation returns; the device takes it as done in any case.
    ///
    /// # Errors
    /// A block is unknown or named twice, the blocks exceed the device, there is no memory left for copies, or the device failed.
    ///
    /// # Safety
    /// The operation's work reads and writes only these bytes of the device, as declared, on that queue.
    pub unsafe fn launch<R>(
        &mut self,
        operation: impl FnOnce(&[usize], &[usize], *mut c_void) -> R,
        reads: &[BlockHandle],
        writes: &[BlockHandle],
    ) -> Result<R, DeviceError> {
        self.issue(|_, reads, writes, queue| operation(reads, writes, queue), reads, writes)
    }

    /// Writes a block from the host, as an operation of the program: in the order of operations. Returns at once.
    ///
    /// # Errors
    /// The size is not the block's, or as for [`launch`](Self::launch).
    pub fn upload(&mut self, block: BlockHandle, contents: &[u8]) -> Result<(), DeviceError> {
        self.require_device()?;
        self.require_size(block, contents.len())?;
        let mut slot = self.memory.staging(contents.len()).map_err(|error| self.note(error))?;
        if let Err(error) = self.memory.order.synchronize(slot.uses.any) {
            return Err(self.note(error));
        }
        // SAFETY: the slot is as long as the block, belongs to this transfer, and no task uses it any more.
        unsafe {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(slot.address);
            std::ptr::copy_nonoverlapping(contents.as_ptr(), to, contents.len());
        }
        let copy = |accelerator: &A, _: &[usize], to: &[usize], _: *mut c_void| {
            // SAFETY: the block's bytes and the slot's, which serves nothing else before the copy has ended.
            unsafe { accelerator.to_device(Queue::Compute, slot.address, to[0], contents.len()) }
        };
        let outcome = self.issue(copy, &[], &[block]);
        slot.uses.read(Queue::Compute, self.memory.order.issued(Queue::Compute));
        self.memory.end_staging(slot);
        outcome?.map_err(|error| self.note(error))
    }

    /// Reads a block to the host, as an operation of the program, and waits for it.
    ///
    /// # Errors
    /// The size is not the block's, or as for [`launch`](Self::launch).
    pub fn download(&mut self, block: BlockHandle, contents: &mut [u8]) -> Result<(), DeviceError> {
        self.require_device()?;
        self.require_size(block, contents.len())?;
        let mut slot = self.memory.staging(contents.len()).map_err(|error| self.note(error))?;
        if let Err(error) = self.memory.order.synchronize(slot.uses.any) {
            return Err(self.note(error));
        }
        let copy = |accelerator: &A, from: &[usize], _: &[usize], _: *mut c_void| {
            // SAFETY: as in `upload`.
            unsafe { accelerator.to_host(Queue::Compute, from[0], slot.address, contents.len()) }
        };
        let outcome = self.issue(copy, &[block], &[]);
        slot.uses.write(Queue::Compute, self.memory.order.issued(Queue::Compute));
        let outcome = match outcome {
            Ok(copied) => copied.and_then(|()| self.memory.order.synchronize(slot.uses.any)),
            Err(error) => {
                self.memory.end_staging(slot);
                return Err(error);
            }
        };
        if outcome.is_ok() {
            // SAFETY: the copy has ended, and the slot is as long as the block.
            unsafe {
                let from = std::ptr::with_exposed_provenance::<u8>(slot.address);
                std::ptr::copy_nonoverlapping(from, contents.as_mut_ptr(), contents.len());
            }
        }
        self.memory.end_staging(slot);
        outcome.map_err(|error| self.note(error))
    }

    /// Waits until everything issued has ended.
    ///
    /// # Errors
    /// The device failed.
    pub fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.require_device()?;
        self.memory.order.finish().map_err(|error| self.note(error))
    }

    /// The counters.
    pub fn stats(&self) -> DeviceStats {
        DeviceStats { waits: self.memory.order.waits, device_bytes: self.memory.height(), ..self.stats }
    }

    /// Bytes of the device.
    pub fn limit(&self) -> usize {
        self.memory.limit()
    }

    fn require_size(&self, block: BlockHandle, transfer: usize) -> Result<(), DeviceError> {
        let block = self.live.get(&block).ok_or(DeviceError::Unknown(block))?.bytes;
        if block == transfer { Ok(()) } else { Err(DeviceError::Size { block, transfer }) }
    }

    fn require_device(&self) -> Result<(), DeviceError> {
        self.failed.clone().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Keeps the error of a device that is of no use any more.
    fn note(&mut self, error: AcceleratorError) -> DeviceError {
        if matches!(error, AcceleratorError::Failed(_)) {
            self.failed.get_or_insert(error.clone());
        }
        self.abandon_plan();
        error.into()
    }

    /// Issues an operation, which is also given the accelerator.
    fn issue<R>(
        &mut self,
        operation: impl FnOnce(&A, &[usize], &[usize], *mut c_void) -> R,
        reads: &[BlockHandle],
        writes: &[BlockHandle],
    ) -> Result<R, DeviceError> {
        self.require_device()?;
        let unknown = |block: &&BlockHandle| !self.live.contains_key(block);
        if let Some(&block) = reads.iter().chain(writes).find(unknown) {
            return Err(DeviceError::Unknown(block));
        }
        for (at, block) in writes.iter().enumerate() {
            if reads.contains(block) || writes[..at].contains(block) {
                return Err(DeviceError::Twice(*block));
            }
        }
        let event = DeviceEvent::Exec(reads.to_vec(), writes.to_vec());
        let wanted: Vec<BlockHandle> = event.blocks().collect();
        self.advance_to(&event)?;
        let planned = self.run.is_some() && self.memory.has_all(&wanted);
        if !planned {
            self.abandon_plan();
            if let Err(error) = self.memory.make_resident(&wanted, &mut self.stats) {
                return Err(match error {
                    DeviceError::Accelerator(error) => self.note(error),
                    error => error,
                });
            }
        }
        let timed = !planned && self.planner.is_some();
        let (outcome, timing) =
            self.memory.run(operation, reads, writes, timed).map_err(|error| self.note(error))?;
        *(if planned { &mut self.stats.planned } else { &mut self.stats.dynamic }) += 1;
        if let Some(run) = &mut self.run
            && let Err(error) = run.done(&mut self.memory, &mut self.stats)
        {
            // The operation itself was issued. If the device failed, the next operation returns why.
            self.note(error);
        }
        self.record(event, timing);
        Ok(outcome)
    }

    /// Advances the plan in use, if there is one, and abandons it if the event is not the expected one.
    fn advance_to(&mut self, event: &DeviceEvent) -> Result<(), DeviceError> {
        let Some(run) = &mut self.run else { return Ok(()) };
        match run.advance_to(event, &mut self.memory, &mut self.stats) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.abandon_plan();
                Ok(())
            }
            Err(error) => Err(self.note(error)),
        }
    }

    /// Abandons the plan in use.
    fn abandon_plan(&mut self) {
        let Some(run) = self.run.take() else { return };
        self.stats.abandoned += 1;
        // A plan that did not last for one iteration is not made again soon.
        self.detector.require_run(if run.iterations > 0 { 0 } else { 2 * self.credible(run.period()) });
    }

    /// The run of equal events after which the detector would accept a period.
    fn credible(&self, period: usize) -> usize {
        self.detector.required_run().max(period).max(SHORTEST)
    }

    /// Records an event while there is no plan, and plans the iteration once it has repeated.
    fn record(&mut self, event: DeviceEvent, timing: Option<Timing<A>>) {
        if self.run.is_some() || self.planner.is_none() || self.failed.is_some() {
            return timing.into_iter().for_each(|timing| self.recycle(timing));
        }
        if self.events.len() == HISTORY {
            self.clear_record();
        }
        let now = self.events.len();
        let ago = |block| now - self.live.get(&block).map_or(0, |live| live.touched);
        let period = self.detector.observe_token(event.token(ago));
        for block in event.blocks() {
            if let Some(live) = self.live.get_mut(&block) {
                live.touched = now;
            }
        }
        self.events.push((event, Nanos::ZERO));
        self.timings.extend(timing.map(|timing| (now, timing)));
        let measured = self.measure().and_then(|()| match period {
            Some(period) => self.plan(period),
            None => Ok(()),
        });
        if let Err(error) = measured {
            self.note(error);
        }
    }

    fn recycle(&mut self, (start, end): Timing<A>) {
        self.memory.order.recycle(start);
        self.memory.order.recycle(end);
    }

    /// Takes down the durations of operations that have ended.
    fn measure(&mut self) -> Result<(), AcceleratorError> {
        while let Some((at, (start, end))) = self.timings.front() {
            let accelerator = &self.memory.order.accelerator;
            if !accelerator.is_done(end)? {
                break;
            }
            let nanos = accelerator.nanos(start, end)?;
            if let Some((_, time)) = self.events.get_mut(*at) {
                *time = Nanos(nanos);
            }
            if let Some((_, timing)) = self.timings.pop_front() {
                self.recycle(timing);
            }
        }
        Ok(())
    }

    /// Plans the last period of events.
    fn plan(&mut self, mut period: usize) -> Result<(), AcceleratorError> {
        // The durations of all operations are needed.
        self.memory.order.finish()?;
        self.measure()?;
        let succession = loop {
            match Succession::new(&self.events, period) {
                Err(longer) if longer > period && self.detector.repeats(longer) => period = longer,
                Err(longer) => {
                    period = period.max(longer);
                    break None;
                }
                Ok(succession) => break Some(succession),
            }
        };
        let size = |block| self.live.get(&block).map(|live| live.bytes);
        let iteration =
            succession.and_then(|succession| DeviceIteration::new(&self.events, &succession, size));
        let (limit, align) = (Bytes(self.memory.limit() as u64), Bytes(ALIGN as u64));
        let planned = iteration.and_then(|iteration| {
            let plan = self.planner.as_ref()?.plan(&iteration.trace, &iteration.costs, limit, align)?;
            Some((plan, iteration))
        });
        let run = match planned {
            Some((plan, iteration)) => PlannedRun::new(plan, iteration, &mut self.memory, &mut self.stats)?,
            None => None,
        };
        match run {
            Some(run) => {
                self.stats.plans += 1;
                self.run = Some(run);
                self.clear_record();
            }
            // An attempt at every event would cost more than it could gain.
            None => self.detector.require_run(2 * self.credible(period)),
        }
        Ok(())
    }

    /// Clears the record: all live blocks count as created and used before the new record begins.
    fn clear_record(&mut self) {
        self.events.clear();
        while let Some((_, timing)) = self.timings.pop_front() {
            self.recycle(timing);
        }
        self.detector.clear();
        self.live.values_mut().for_each(|live| live.touched = 0);
    }
}

impl<A: Accelerator> Drop for Device<A> {
    fn drop(&mut self) {
        // The events go with the queues.
        while let Some((_, timing)) = self.timings.pop_front() {
            self.recycle(timing);
        }
    }
}
