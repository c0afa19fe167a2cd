//! A device that makes trouble on purpose: lanes run late, copies are made by one thread or another, and freed bytes are overwritten.
//!
//! A plan's results must not depend on how long anything takes, nor on what lies in bytes that nobody holds. Under this device both
//! vary; a run under it must equal any other run to the bit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use elbowroom_graph::Graph;
use elbowroom_ir::schedule::Lane;
use elbowroom_ir::{ActionId, Bytes};

use crate::arena::Extent;
use crate::device::{Call, Device, Stopped, Waiting};
use crate::error::{EngineError, HostError};
use crate::host::HostTier;

/// How much trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChaosOptions {
    /// Determines the delays, together with the order in which the lanes ask for them.
    pub seed: u64,
    /// Before every op and every copy its lane sleeps for a random time below this; about half of the times it does not sleep.
    pub longest_delay: Duration,
    /// Whether freed bytes are overwritten with `0xFF`: not-a-number as floats, −1 as integers.
    pub poison: bool,
    /// The copy of this number fails as if the disk were full; offloads and prefetches count together, from zero.
    pub failing_copy: Option<u64>,
}

/// What freed bytes are overwritten with.
const POISON: u8 = 0xFF;
/// Poison is written in pieces of this size.
static PIECE: [u8; 4096] = [POISON; 4096];

/// Another device with trouble added.
pub(crate) struct Chaos<D> {
    device: D,
    options: ChaosOptions,
    draws: AtomicU64,
    copies: AtomicU64,
}

impl<D: Device> Chaos<D> {
    /// Adds trouble to a device. All of its memory is poisoned at once.
    pub fn new(device: D, options: ChaosOptions) -> Self {
        let this = Self { device, options, draws: AtomicU64::new(0), copies: AtomicU64::new(0) };
        this.retire(Extent { offset: 0, len: this.device.limit().get() as usize });
        this
    }

    fn draw(&self) -> u64 {
        mix(self.options.seed ^ self.draws.fetch_add(1, Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn delay(&self) {
        let word = self.draw();
        let longest = u64::try_from(self.options.longest_delay.as_nanos()).unwrap_or(u64::MAX);
        if word & 1 == 0 && longest > 0 {
            std::thread::sleep(Duration::from_nanos((word >> 1) % longest));
        }
    }

    fn fail_if_due(&self, bytes: usize) -> Result<(), HostError> {
        let number = self.copies.fetch_add(1, Relaxed);
        if self.options.failing_copy != Some(number) {
            return Ok(());
        }
        let source = std::io::ErrorKind::StorageFull.into();
        Err(HostError::Write { folder: NOWHERE.into(), bytes, source })
    }
}

/// Where a copy fails that was made to fail.
const NOWHERE: &str = "(made to fail)";

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

impl<D: Device> Device for Chaos<D> {
    fn limit(&self) -> Bytes {
        self.device.limit()
    }

    fn begin(&self) {
        self.device.begin();
    }

    fn launch(&self, call: Call<'_>) -> Result<(), EngineError> {
        self.delay();
        self.device.launch(call)
    }

    fn begun(&self, lane: Lane, ready: Instant) -> Instant {
        self.device.begun(lane, ready)
    }

    fn store(&self, from: Extent, to: usize, start: Instant) -> Result<(), HostError> {
        self.delay();
        self.fail_if_due(from.len)?;
        self.device.store(from, to, start)
    }

    fn load(&self, from: usize, to: Extent, start: Instant) -> Result<(), HostError> {
        self.delay();
        self.fail_if_due(to.len)?;
        self.device.load(from, to, start)
    }

    /// Sometimes less than the device says, so that copies of every size are made by the compute lane, by their lanes' own threads, and by
    /// one after the other.
    fn prompt(&self) -> usize {
        let prompt = self.device.prompt();
        [0, 0, prompt.min(256), prompt][(self.draw() % 4) as usize]
    }

    fn retire(&self, extent: Extent) {
        if self.options.poison {
            for skip in (0..extent.len).step_by(PIECE.len()) {
                let part = extent.part(skip, PIECE.len());
                self.device.write(part, &PIECE[..part.len]);
            }
        }
    }

    fn retires(&self) -> bool {
        self.options.poison
    }

    fn wait(&self, lane: Lane, action: ActionId) -> Result<(), Stopped> {
        self.device.wait(lane, action)
    }

    fn reached(&self, lane: Lane, action: ActionId) -> bool {
        self.device.reached(lane, action)
    }

    fn signal(&self, lane: Lane, action: ActionId) -> Waiting {
        self.device.signal(lane, action)
    }

    fn wake(&self, lane: Lane) {
        self.device.wake(lane);
    }

    fn drain(&self, lane: Lane) -> Result<(), EngineError> {
        self.device.drain(lane)
    }

    fn stop(&self) {
        self.device.stop();
    }

    fn serve(&mut self, graph: Arc<Graph>, actions: usize) {
        self.device.serve(graph, actions);
    }

    fn rehost(&mut self, host: Box<dyn HostTier>) -> Box<dyn HostTier> {
        self.device.rehost(host)
    }

    fn shift(&self, from: Extent, to: usize) {
        self.device.shift(from, to);
    }

    fn host(&self) -> &dyn HostTier {
        self.device.host()
    }

    fn read(&self, from: Extent, into: &mut [u8]) {
        self.device.read(from, into);
    }

    fn write(&self, to: Extent, bytes: &[u8]) {
        self.device.write(to, bytes);
    }

    fn paint(&self, from: Bytes) {
        self.device.paint(from);
    }

    fn first_stain(&self, from: Bytes) -> Option<Bytes> {
        self.device.first_stain(from)
    }
}
