//! The order of samples: every sample once an epoch, shuffled by seed and epoch alone.

/// SplitMix64 (Steele, Lea, Flood 2014): one well-mixed number from a counter.
pub(crate) fn mix(seed: u64, counter: u64) -> u64 {
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Shuffled sample numbers, one epoch at a time.
#[derive(Debug)]
pub(super) struct EpochOrder {
    seed: u64,
    epoch: Option<u64>,
    samples: Vec<u32>,
}

impl EpochOrder {
    /// An order over `samples` samples; at least one.
    pub(super) fn new(samples: u32, seed: u64) -> Self {
        Self { seed, epoch: None, samples: (0..samples).collect() }
    }

    /// The sample at a position of the endless sequence of epochs.
    pub(super) fn sample(&mut self, position: u64) -> u32 {
        let len = self.samples.len() as u64;
        let epoch = position / len;
        if self.epoch != Some(epoch) {
            // From the identity each time: the order must not depend on which epochs were visited before.
            self.samples.sort_unstable();
            let epoch_seed = mix(self.seed, epoch);
            for i in (1..self.samples.len()).rev() {
                self.samples.swap(i, (mix(epoch_seed, i as u64) % (i as u64 + 1)) as usize);
            }
            self.epoch = Some(epoch);
        }
        self.samples[(position % len) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_visits_every_sample_once_in_its_own_order() {
        let mut order = EpochOrder::new(100, 7);
        let epochs: Vec<Vec<u32>> =
            (0..3).map(|e| (0..100).map(|i| order.sample(e * 100 + i)).collect()).collect();
        for epoch in &epochs {
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_eq!(EpochOrder::new(100, 7).sample(205), epochs[2][5], "an order can be entered anywhere");
    }
}
