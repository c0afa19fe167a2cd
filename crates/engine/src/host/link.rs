//! A link slowed down to given channels, so that overlap of copies and compute can be shown, and tested, on any machine.

use std::time::{Duration, Instant};

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Channel;

/// Sleeps until a copy that began at `start` has taken the channel's time: latency + bytes ÷ rate. The processor is free meanwhile.
pub(crate) fn hold(start: Instant, channel: Channel, bytes: usize) {
    let end = start + Duration::from_nanos(channel.time(Bytes(bytes as u64)).get());
    // Sleeping may end a little early where the system keeps several clocks.
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return;
        }
        std::thread::sleep(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_at_least_the_channel_s_time() {
        let channel = Channel { latency: elbowroom_ir::Nanos(1_000_000), rate: 10_000_000 };
        let start = Instant::now();
        hold(start, channel, 50_000);
        assert!(start.elapsed() >= Duration::from_millis(6), "{:?}", start.elapsed());
        let (late, before) = (start, Instant::now());
        hold(late, channel, 10);
        assert!(before.elapsed() < Duration::from_millis(5), "the time was over already");
    }
}
