//! All that planning may know of the hardware.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Nanos};

/// One direction of the link between device and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Channel {
    /// Fixed cost of a copy.
    pub latency: Nanos,
    /// Bytes per second; not zero.
    pub rate: u64,
}

impl Channel {
    /// A channel without a fixed cost.
    pub const fn with_rate(rate: u64) -> Self {
        Self { latency: Nanos::ZERO, rate }
    }

    /// Duration of one copy: latency + ⌈bytes × 10⁹ ÷ rate⌉.
    pub const fn time(self, bytes: Bytes) -> Nanos {
        let nanos = (bytes.get() as u128 * 1_000_000_000).div_ceil(self.rate as u128);
        Nanos(self.latency.get() + nanos as u64)
    }
}

/// A device with its memory, its link to the host and its speed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// For people: `v100`.
    pub name: String,
    /// Device memory: the hard limit, in bytes of arena.
    pub memory: Bytes,
    /// Every buffer's offset is a multiple of this; a power of two.
    pub align: Bytes,
    /// Host memory that copies may take together.
    pub host_memory: Bytes,
    /// Device → host.
    pub to_host: Channel,
    /// Host → device.
    pub to_device: Channel,
    /// Whether both directions share one lane (Beaumont's assumption B) or have one each (two streams, as in Zhang).
    pub shared_link: bool,
    /// Arithmetic that ops reach, for traces without measured times.
    pub flops_per_second: u64,
    /// Memory traffic that ops reach, for traces without measured times.
    pub bytes_per_second: u64,
    /// Fixed cost of an op, for traces without measured times.
    pub launch: Nanos,
}

impl Machine {
    /// The same machine with another amount of memory.
    pub fn with_memory(self, memory: Bytes) -> Self {
        Self { memory, ..self }
    }
}
