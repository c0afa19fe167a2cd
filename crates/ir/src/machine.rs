//! The hardware, as planning sees it.

use serde::{Deserialize, Serialize};

use crate::trace::LONGEST_NAME;
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

    /// Duration of one copy: latency + ⌈bytes × 10⁹ ÷ rate⌉. Capped at 2^48 ns (78 hours), so that sums of durations stay far below 2^64.
    pub const fn time(self, bytes: Bytes) -> Nanos {
        const LONGEST: u64 = 1 << 48;
        // Planners ask this for every tensor again and again, and a division of 128 bits takes many times longer.
        let nanos = match bytes.get().checked_mul(1_000_000_000) {
            Some(scaled) => scaled.div_ceil(self.rate),
            None => {
                let nanos = (bytes.get() as u128 * 1_000_000_000).div_ceil(self.rate as u128);
                if nanos < LONGEST as u128 { nanos as u64 } else { LONGEST }
            }
        };
        let nanos = self.latency.get().saturating_add(nanos);
        Nanos(if nanos < LONGEST { nanos } else { LONGEST })
    }
}

/// Why a machine is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// Alignment that is zero or not a power of two.
    #[error("its alignment is {0}; it must be a power of two")]
    Align(u64),
    /// A name that no file can hold.
    #[error("its name is longer than {LONGEST_NAME} bytes; shorten it")]
    LongName,
    /// A rate of zero.
    #[error("its {0} is zero; leave no rate at zero")]
    ZeroRate(&'static str),
    /// More memory than any machine has.
    #[error("its {0} is 2^62 bytes or more; no machine is that large")]
    TooLarge(&'static str),
    /// A latency above any plausible one.
    #[error("its {0} is 2^40 ns (18 minutes) or more; it is in nanoseconds")]
    TooSlow(&'static str),
}

/// A device: its memory, its link to the host and its speed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// For people: `v100`.
    pub name: String,
    /// Device memory: the hard limit, in bytes of arena.
    pub memory: Bytes,
    /// Every buffer's offset is a multiple of this; a power of two.
    pub align: Bytes,
    /// Limit on the sum of host copies, in bytes.
    pub host_memory: Bytes,
    /// Device → host.
    pub to_host: Channel,
    /// Host → device.
    pub to_device: Channel,
    /// Whether both directions share one stream (Beaumont's assumption B) or have one each (two streams, as in Zhang).
    pub shared_link: bool,
    /// Achievable arithmetic rate, for traces without measured times.
    pub flops_per_second: u64,
    /// Achievable arithmetic rate of products of numbers of 16 bits (tensor cores); `None` if they are no faster than others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half_flops_per_second: Option<u64>,
    /// Achievable memory bandwidth, in bytes per second, for traces without measured times.
    pub bytes_per_second: u64,
    /// Fixed cost of an op, for traces without measured times.
    pub launch: Nanos,
}

impl Machine {
    /// Checks that planning and simulation can use the machine.
    ///
    /// # Errors
    /// The first property that is unusable.
    pub fn validate(&self) -> Result<(), MachineError> {
        if !self.align.get().is_power_of_two() {
            return Err(MachineError::Align(self.align.get()));
        }
        if self.name.len() > LONGEST_NAME {
            return Err(MachineError::LongName);
        }
        let rates = [
            ("rate to the host", self.to_host.rate),
            ("rate to the device", self.to_device.rate),
            ("flops per second", self.flops_per_second),
            ("16-bit flops per second", self.half_rate()),
            ("bytes per second", self.bytes_per_second),
        ];
        if let Some((name, _)) = rates.into_iter().find(|&(_, rate)| rate == 0) {
            return Err(MachineError::ZeroRate(name));
        }
        let sizes = [("memory", self.memory), ("host memory", self.host_memory), ("alignment", self.align)];
        if let Some((name, _)) = sizes.into_iter().find(|&(_, bytes)| bytes.get() >= 1 << 62) {
            return Err(MachineError::TooLarge(name));
        }
        let costs = [
            ("latency to the host", self.to_host.latency),
            ("latency to the device", self.to_device.latency),
            ("cost of a launch", self.launch),
        ];
        match costs.into_iter().find(|&(_, cost)| cost.get() >= 1 << 40) {
            Some((name, _)) => Err(MachineError::TooSlow(name)),
            None => Ok(()),
        }
    }

    /// The arithmetic rate of products of 16-bit numbers.
    pub fn half_rate(&self) -> u64 {
        self.half_flops_per_second.unwrap_or(self.flops_per_second)
    }

    /// The same machine with another amount of memory.
    pub fn with_memory(self, memory: Bytes) -> Self {
        Self { memory, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_size_take_their_share_of_the_rate_rounded_up() {
        // Around the size whose product with 10⁹ exceeds 64 bits, and at the cap.
        for bytes in [0, 1, 999, 18_446_744_073, 18_446_744_074, 1 << 40, u64::MAX] {
            for rate in [1, 3, 12_000_000_000, u64::MAX] {
                for latency in [0, 10_000, u64::MAX] {
                    let exact = latency as u128 + (bytes as u128 * 1_000_000_000).div_ceil(rate as u128);
                    let channel = Channel { rate, latency: Nanos(latency) };
                    assert_eq!(channel.time(Bytes(bytes)), Nanos(exact.min(1 << 48) as u64), "{channel:?}");
                }
            }
        }
    }
}
