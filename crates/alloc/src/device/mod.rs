//! Zhang's device (section V) for programs that declare what an operation uses: `malloc`, `free`, and `exec` with the blocks that it reads
//! and writes.
//!
//! The device has a fixed number of bytes; its blocks may be larger than that together, because they are offloaded to the host and
//! prefetched. Until the program has repeated an iteration, execution is dynamic: if bytes are missing, the least recently used block is
//! offloaded. A repeated iteration becomes a [`Trace`]. A [`SwapPlanner`] decides when each block is offloaded and prefetched, and then its
//! offset, which is the order in which Zhang combines the two. The following iterations run by that plan as long as the program repeats
//! itself. After a departure from the plan, execution is dynamic again, from the current state, until another iteration repeats.
//!
//! The device's memory is host memory, so that every program can use it and every test can inspect it. Copies are made at their positions
//! in the plan and do not overlap with operations. The contents of blocks do not depend on the plan: a block loses its bytes only if an
//! equal copy exists or it is freed, and a new block holds zeros.
//!
//! In some programs a block's role passes to another block that was alive before, as in a ring of buffers. Such a program is planned only
//! if the planner can move the block; otherwise its execution stays dynamic.

mod events;
mod memory;
mod planned;

use std::collections::BTreeMap;
use std::time::Instant;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::planning::Costs;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Nanos};

use crate::detect::{Detector, SHORTEST};
use events::{DeviceEvent, DeviceIteration, Succession};
use memory::DeviceMemory;
use planned::PlannedRun;

/// Alignment of blocks, in bytes.
pub const ALIGN: usize = 64;

/// Maximum number of recorded events.
const HISTORY: usize = 1 << 16;

/// A block of the device. A handle: only operations access its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHandle(u64);

/// Why a call is rejected. The device is unchanged.
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
pub struct Device {
    memory: DeviceMemory,
    planner: Option<Box<dyn SwapPlanner>>,
    /// Number of blocks created; the next block's handle.
    made: u64,
    live: BTreeMap<BlockHandle, LiveBlock>,
    /// The recorded events, each operation with its duration.
    events: Vec<(DeviceEvent, Nanos)>,
    detector: Detector,
    run: Option<PlannedRun>,
    load: usize,
    stats: DeviceStats,
}

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    bytes: usize,
    /// Index in `events` of the latest event that used it.
    touched: usize,
}

impl Device {
    /// A device of `limit` bytes. Without a planner its execution stays dynamic.
    pub fn new(limit: usize, planner: Option<Box<dyn SwapPlanner>>) -> Self {
        Self {
            memory: DeviceMemory::new(limit),
            planner,
            made: 0,
            live: BTreeMap::new(),
            events: Vec::new(),
            detector: Detector::new(),
            run: None,
            load: 0,
            stats: DeviceStats::default(),
        }
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
        self.advance_to(&event);
        self.record(event, Nanos::ZERO);
        block
    }

    /// Frees a block.
    ///
    /// # Errors
    /// The block is unknown.
    pub fn free(&mut self, block: BlockHandle) -> Result<(), DeviceError> {
        let Some(&LiveBlock { bytes, .. }) = self.live.get(&block) else {
            return Err(DeviceError::Unknown(block));
        };
        let event = DeviceEvent::Free(block);
        self.advance_to(&event);
        self.record(event, Nanos::ZERO);
        self.live.remove(&block);
        self.load = self.load.saturating_sub(bytes);
        self.memory.remove(block);
        Ok(())
    }

    /// Runs an operation on the bytes of the blocks that it reads and of those that it writes, in the given order. A block that is both
    /// read and written belongs in `writes` alone; it comes with its contents.
    ///
    /// # Errors
    /// A block is unknown or named twice, or the blocks exceed the device.
    pub fn exec(
        &mut self,
        operation: impl FnOnce(&[&[u8]], &mut [&mut [u8]]),
        reads: &[BlockHandle],
        writes: &[BlockHandle],
    ) -> Result<(), DeviceError> {
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
        self.advance_to(&event);
        let planned = self.run.is_some() && self.memory.has_all(&wanted);
        if !planned {
            self.abandon_plan();
            self.memory.make_resident(&wanted, &mut self.stats)?;
        }
        let started = Instant::now();
        self.memory.run(operation, reads, writes);
        let time = Nanos::from(started.elapsed());
        *(if planned { &mut self.stats.planned } else { &mut self.stats.dynamic }) += 1;
        if let Some(run) = &mut self.run {
            run.done(&mut self.memory, &mut self.stats);
        }
        self.stats.device_bytes = self.memory.height();
        self.record(event, time);
        Ok(())
    }

    /// The counters.
    pub fn stats(&self) -> DeviceStats {
        self.stats
    }

    /// Bytes of the device.
    pub fn limit(&self) -> usize {
        self.memory.limit()
    }

    /// Advances the plan in use, if there is one, and abandons it if the event is not the expected one.
    fn advance_to(&mut self, event: &DeviceEvent) {
        if let Some(run) = &mut self.run
            && !run.advance_to(event, &mut self.memory, &mut self.stats)
        {
            self.abandon_plan();
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
    fn record(&mut self, event: DeviceEvent, time: Nanos) {
        if self.run.is_some() || self.planner.is_none() {
            return;
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
        self.events.push((event, time));
        if let Some(period) = period {
            self.plan(period);
        }
    }

    /// Plans the last period of events.
    fn plan(&mut self, mut period: usize) {
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
        let run = iteration.and_then(|iteration| {
            let (limit, align) = (Bytes(self.memory.limit() as u64), Bytes(ALIGN as u64));
            let plan = self.planner.as_ref()?.plan(&iteration.trace, &iteration.costs, limit, align)?;
            PlannedRun::new(plan, iteration, &mut self.memory, &mut self.stats)
        });
        match run {
            Some(run) => {
                self.stats.plans += 1;
                self.run = Some(run);
                self.clear_record();
            }
            // An attempt at every event would cost more than it could gain.
            None => self.detector.require_run(2 * self.credible(period)),
        }
    }

    /// Clears the record: all live blocks count as created and used before the new record begins.
    fn clear_record(&mut self) {
        self.events.clear();
        self.detector.clear();
        self.live.values_mut().for_each(|live| live.touched = 0);
    }
}
