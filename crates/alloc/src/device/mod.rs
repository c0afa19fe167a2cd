//! Zhang's device (section V) for programs that can say what an operation touches: `malloc`, `free`, and `exec` with what it reads and writes.
//!
//! The device has a fixed number of bytes. Blocks may be more than that together: they leave for the host and come back. Until the program
//! has repeated an iteration this happens on demand: whatever was used longest ago leaves when there is no room. Once an iteration has
//! repeated, it becomes a [`Trace`], a [`SwapPlanner`] decides when each block leaves and returns and then where it lies, in the order in
//! which Zhang combines the two, and the iterations that follow run by that plan, as long as the program does what it did. When it does
//! something else, the device goes on on demand, from where it is, and looks for the next iteration.
//!
//! The memory here is the host's, so that every program can use it and every test can look into it; copies are made at their places in the
//! plan's order and nothing overlaps. Contents never depend on any of this: a block that is written reads as written, a new block is all
//! zeros, and no plan can make it otherwise, because a block gives up its bytes only when an equal copy is elsewhere or it is freed.
//!
//! A block whose place an iteration later is taken by one that was alive before it, as in a ring of buffers, is planned only if the
//! planner can move it there; otherwise such a program stays on demand.

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

/// Offsets of blocks are multiples of this.
pub const ALIGN: usize = 64;

/// Events recorded at most while nothing repeats.
const HISTORY: usize = 1 << 16;

/// A block of the device. A handle, not memory: only an operation sees its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(u64);

/// Why the device cannot do what was asked. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The blocks of one operation are larger than the device.
    #[error("the operation needs {needed} bytes at once, and the device has {limit}")]
    TooSmall {
        /// Bytes of its blocks, aligned.
        needed: usize,
        /// Bytes of the device.
        limit: usize,
    },
    /// A block that was freed, or is another device's.
    #[error("{0:?} is not a live block of this device")]
    Unknown(Block),
    /// A block that is named twice among what an operation writes, or there and among what it reads.
    #[error("{0:?} is written by an operation that names it twice")]
    Twice(Block),
}

/// Decides when blocks leave and return, and where they lie.
pub trait SwapPlanner {
    /// A proved plan for a trace on a device of `limit` bytes whose offsets are multiples of `align`; `None` if there is none. The plan
    /// runs the trace's ops in their order and none again, or it is not used.
    fn plan(&self, trace: &Trace, costs: &Costs, limit: Bytes, align: Bytes) -> Option<CheckedPlan>;
}

/// Counts of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Operations run on demand.
    pub reactive: u64,
    /// Operations run by a plan.
    pub planned: u64,
    /// Bytes copied to the host.
    pub to_host: u64,
    /// Bytes copied back from the host.
    pub to_device: u64,
    /// Plans made.
    pub plans: u64,
    /// Times that the program did not go on as planned.
    pub left: u64,
    /// The highest byte of the device ever used.
    pub height: usize,
    /// Largest sum of the bytes of live blocks, wherever they were.
    pub peak_load: usize,
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
    /// Blocks made so far: the next one's handle.
    made: u64,
    live: BTreeMap<Block, LiveBlock>,
    /// What happened since recording began, each operation with its time.
    events: Vec<(DeviceEvent, Nanos)>,
    detector: Detector,
    run: Option<PlannedRun>,
    load: usize,
    stats: DeviceStats,
}

#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    bytes: usize,
    /// The latest event that named it, in `events`.
    touched: usize,
}

impl Device {
    /// A device of `limit` bytes. Without a planner it stays on demand.
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

    /// A block of zeros, of one byte at least. It takes no room until an operation touches it.
    pub fn malloc(&mut self, bytes: usize) -> Block {
        let (block, bytes) = (Block(self.made), bytes.max(1));
        self.made += 1;
        self.live.insert(block, LiveBlock { bytes, touched: self.events.len() });
        self.load = self.load.saturating_add(bytes);
        self.stats.peak_load = self.stats.peak_load.max(self.load);
        self.memory.add(block, bytes);
        let event = DeviceEvent::Malloc(block, bytes);
        self.advance_to(&event);
        self.record(event, Nanos::ZERO);
        block
    }

    /// Gives a block back.
    pub fn free(&mut self, block: Block) -> Result<(), DeviceError> {
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

    /// Runs an operation on the bytes of the blocks that it reads and those that it writes, in their order. A block that it both reads and
    /// writes is named among `writes` alone: it comes with its contents.
    pub fn exec(
        &mut self,
        operation: impl FnOnce(&[&[u8]], &mut [&mut [u8]]),
        reads: &[Block],
        writes: &[Block],
    ) -> Result<(), DeviceError> {
        let unknown = |block: &&Block| !self.live.contains_key(block);
        if let Some(&block) = reads.iter().chain(writes).find(unknown) {
            return Err(DeviceError::Unknown(block));
        }
        for (at, block) in writes.iter().enumerate() {
            if reads.contains(block) || writes[..at].contains(block) {
                return Err(DeviceError::Twice(*block));
            }
        }
        let event = DeviceEvent::Exec(reads.to_vec(), writes.to_vec());
        let wanted: Vec<Block> = event.blocks().collect();
        self.advance_to(&event);
        let planned = self.run.is_some() && self.memory.has_all(&wanted);
        if !planned {
            self.abandon_plan();
            self.memory.make_resident(&wanted, &mut self.stats)?;
        }
        let started = Instant::now();
        self.memory.run(operation, reads, writes);
        let time = Nanos::from(started.elapsed());
        *(if planned { &mut self.stats.planned } else { &mut self.stats.reactive }) += 1;
        if let Some(run) = &mut self.run {
            run.done(&mut self.memory, &mut self.stats);
        }
        self.stats.height = self.memory.height();
        self.record(event, time);
        Ok(())
    }

    /// Counts so far.
    pub fn stats(&self) -> DeviceStats {
        self.stats
    }

    /// Bytes of the device.
    pub fn limit(&self) -> usize {
        self.memory.limit()
    }

    /// Goes on by the plan, if there is one, and leaves it if the event is not the expected one.
    fn advance_to(&mut self, event: &DeviceEvent) {
        if let Some(run) = &mut self.run
            && !run.advance_to(event, &mut self.memory, &mut self.stats)
        {
            self.abandon_plan();
        }
    }

    /// Leaves the plan in use.
    fn abandon_plan(&mut self) {
        let Some(run) = self.run.take() else { return };
        self.stats.left += 1;
        // A plan that was of no use is not made again so soon.
        self.detector.require_run(if run.iterations > 0 { 0 } else { 2 * self.credible(run.period()) });
    }

    /// The run of equal events that makes the detector believe in a period.
    fn credible(&self, period: usize) -> usize {
        self.detector.required_run().max(period).max(SHORTEST)
    }

    /// Records an event while there is no plan, and makes one when an iteration has repeated.
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

    /// Plans the last events, which look as those a period before them.
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
            // Asking again at every event would cost more than it can bring.
            None => self.detector.require_run(2 * self.credible(period)),
        }
    }

    /// Forgets what was recorded: from here on, everything alive was made and touched before the record began.
    fn clear_record(&mut self) {
        self.events.clear();
        self.detector.clear();
        self.live.values_mut().for_each(|live| live.touched = 0);
    }
}
