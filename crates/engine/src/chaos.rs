//! A device with fault injection: streams are delayed, copies are made by varying threads, and freed bytes are overwritten.
//!
//! A plan's results must depend neither on durations nor on the contents of unused bytes. This device varies both; a run on it must equal
//! any other run to the bit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use elbowroom_graph::Graph;
use elbowroom_ir::schedule::Stream;
use elbowroom_ir::{ActionId, Bytes};

use crate::arena::Extent;
use crate::device::{Call, Device, Stopped, Waiting};
use crate::error::{EngineError, HostError};
use crate::host::HostTier;

/// What to inject; by default nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChaosOptions {
    /// Seed of the delays. They also depend on the order in which the streams ask for them.
    pub seed: u64,
    /// Upper bound of the random sleep before every op and copy; about half of them do not sleep.
    pub longest_delay: Duration,
    /// Whether freed bytes are overwritten with `0xFF`: NaN as floats, −1 as integers.
    pub poison: bool,
    /// The number of a copy that fails as if the disk were full; offloads and prefetches are counted together, from zero.
    pub failing_copy: Option<u64>,
}

impl ChaosOptions {
    /// Sets the seed of the delays.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets the upper bound of the random sleep before every op and copy.
    #[must_use]
    pub fn longest_delay(self, longest_delay: Duration) -> Self {
        Self { longest_delay, ..self }
    }

    /// Chooses whether freed bytes are overwritten.
    #[must_use]
    pub fn poison(self, poison: bool) -> Self {
        Self { poison, ..self }
    }

    /// Selects the copy that fails.
    #[must_use]
    pub fn failing_copy(self, failing_copy: impl Into<Option<u64>>) -> Self {
        Self { failing_copy: failing_copy.into(), ..self }
    }
}

/// The byte that overwrites freed memory.
const POISON: u8 = 0xFF;
/// Freed memory is overwritten in pieces of this size.
static PIECE: [u8; 4096] = [POISON; 4096];

/// Another device with faults added.
pub(crate) struct Chaos<D> {
    device: D,
    options: ChaosOptions,
    draws: AtomicU64,
    copies: AtomicU64,
}

impl<D: Device> Chaos<D> {
    /// Wraps a device. Its whole arena is overwritten first, if that was chosen.
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

/// The folder that an injected failure names.
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

    fn copy_start(&self, stream: Stream, ready: Instant) -> Instant {
        self.device.copy_start(stream, ready)
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

    /// Varies the device's limit, so that copies of every size are made by the compute stream, by their streams' own threads, and by both
    /// in turn.
    fn inline_copy_limit(&self) -> usize {
        let prompt = self.device.inline_copy_limit();
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

    fn wait(&self, stream: Stream, action: ActionId) -> Result<(), Stopped> {
        self.device.wait(stream, action)
    }

    fn reached(&self, stream: Stream, action: ActionId) -> bool {
        self.device.reached(stream, action)
    }

    fn signal(&self, stream: Stream, action: ActionId) -> Waiting {
        self.device.signal(stream, action)
    }

    fn wake(&self, stream: Stream) {
        self.device.wake(stream);
    }

    fn drain(&self, stream: Stream) -> Result<(), EngineError> {
        self.device.drain(stream)
    }

    fn stop(&self) {
        self.device.stop();
    }

    fn set_program(&mut self, graph: Arc<Graph>, actions: usize) {
        self.device.set_program(graph, actions);
    }

    fn replace_host(&mut self, host: Box<dyn HostTier>) -> Box<dyn HostTier> {
        self.device.replace_host(host)
    }

    fn move_within(&self, from: Extent, to: usize) {
        self.device.move_within(from, to);
    }

    fn host(&self) -> &dyn HostTier {
        self.device.host()
    }

    fn read(&self, from: Extent, into: &mut [u8]) {
        self.device.read(from, into);
    }

    fn starts_as_zeros(&self) -> bool {
        !self.options.poison && self.device.starts_as_zeros()
    }

    fn write(&self, to: Extent, bytes: &[u8]) {
        self.device.write(to, bytes);
    }

    fn guard(&self, from: Bytes) {
        self.device.guard(from);
    }

    fn commit(&self, bytes: Bytes) {
        self.device.commit(bytes);
    }

    fn first_overwritten(&self, from: Bytes) -> Option<Bytes> {
        self.device.first_overwritten(from)
    }
}
