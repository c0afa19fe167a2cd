//! A host tier slowed down to a given link, so that overlap of copies and compute can be shown, and tested, on any machine.

use std::time::{Duration, Instant};

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Channel;

use super::HostTier;
use crate::error::HostError;

/// Another tier whose copies take at least as long as a channel says: latency + bytes ÷ rate. It sleeps, so the processor is free.
#[derive(Debug)]
pub struct Paced<T> {
    tier: T,
    to_host: Channel,
    to_device: Channel,
}

impl<T: HostTier> Paced<T> {
    /// Slows a tier down to a link: device → host, host → device.
    pub fn new(tier: T, (to_host, to_device): (Channel, Channel)) -> Self {
        Self { tier, to_host, to_device }
    }
}

fn sleep_until(start: Instant, channel: Channel, bytes: usize) {
    let end = start + Duration::from_nanos(channel.time(Bytes(bytes as u64)).get());
    // Sleeping never ends early, except that the system's clock for sleeping may differ by a little.
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return;
        }
        std::thread::sleep(rest);
    }
}

impl<T: HostTier> HostTier for Paced<T> {
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), HostError> {
        let start = Instant::now();
        self.tier.store(offset, bytes)?;
        sleep_until(start, self.to_host, bytes.len());
        Ok(())
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), HostError> {
        let start = Instant::now();
        self.tier.load(offset, bytes)?;
        sleep_until(start, self.to_device, bytes.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::MemoryTier;

    #[test]
    fn copies_take_at_least_the_link_s_time_in_each_direction() {
        let link = (Channel::with_rate(10_000_000), Channel::with_rate(50_000_000));
        let tier = Paced::new(MemoryTier::new(Bytes(1 << 20)).unwrap(), link);
        let mut value = vec![3; 200_000];
        let start = Instant::now();
        tier.store(0, &value).unwrap();
        let stored = start.elapsed();
        tier.load(0, &mut value).unwrap();
        let loaded = start.elapsed() - stored;
        assert!(stored >= Duration::from_millis(20), "{stored:?}");
        assert!(loaded >= Duration::from_millis(4), "{loaded:?}");
        assert!(loaded < stored, "{loaded:?} {stored:?}");
    }
}
