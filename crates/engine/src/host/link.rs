//! A link slowed down to given channels, so that the overlap of copies with compute can be demonstrated and tested on any machine.

use std::time::{Duration, Instant};

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Channel;

use crate::system::sleep;

/// Greatest delay of a copy's thread that is not charged to the link. Longer delays mean that the processor was busy with something else.
const MAX_WAKE_DELAY: Duration = Duration::from_millis(1);
/// A sleep overruns by about this much even with the smallest timer slack. The last part of a copy's time is therefore spent spinning.
const SPIN_TIME: Duration = Duration::from_micros(40);

/// One direction of a slowed-down link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(Channel);

impl Pace {
    pub const fn new(channel: Channel) -> Self {
        Self(channel)
    }

    /// The moment from which a copy that could start at `ready` occupies the link. The time that its thread took to wake up is not counted.
    pub fn copy_start(ready: Instant) -> Instant {
        copy_start(Instant::now(), ready)
    }

    /// Blocks until a copy that started at `start` has taken the channel's time: latency + bytes ÷ rate. The thread sleeps, except for the
    /// last [`SPIN_TIME`].
    pub fn hold(self, start: Instant, bytes: usize) {
        let due = start + Duration::from_nanos(self.0.time(Bytes(bytes as u64)).get());
        loop {
            let rest = due.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            match rest.checked_sub(SPIN_TIME) {
                Some(rest) if !rest.is_zero() => sleep(rest),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

/// The start of a copy that could start at `ready` and actually starts `now`.
fn copy_start(now: Instant, ready: Instant) -> Instant {
    ready.clamp(now.checked_sub(MAX_WAKE_DELAY).unwrap_or(now), now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Channel = Channel { latency: elbowroom_ir::Nanos(1_000_000), rate: 10_000_000 };

    #[test]
    fn a_copy_takes_at_least_the_channel_s_time() {
        let start = Instant::now();
        Pace::new(RATE).hold(start, 50_000);
        assert!(start.elapsed() >= Duration::from_millis(6), "{:?}", start.elapsed());
        let (late, before) = (start, Instant::now());
        Pace::new(RATE).hold(late, 10);
        assert!(before.elapsed() < Duration::from_millis(5), "the time was over already");
    }

    #[test]
    fn a_row_of_copies_takes_at_least_the_sum_of_their_times() {
        let pace = Pace::new(RATE);
        let start = Instant::now();
        for _ in 0..10 {
            let begun = Pace::copy_start(Instant::now());
            pace.hold(begun, 1_000);
        }
        assert!(start.elapsed() >= Duration::from_micros(10 * 1_100), "{:?}", start.elapsed());
    }

    #[test]
    fn a_copy_counts_from_when_it_could_begin_within_reason() {
        let now = Instant::now();
        let ago = |micros| now - Duration::from_micros(micros);
        for (ready, expected) in [(0, 0), (70, 70), (900_000, 1_000)] {
            assert_eq!(copy_start(now, ago(ready)), ago(expected), "{ready}");
        }
        assert_eq!(copy_start(now, now + MAX_WAKE_DELAY), now, "a copy begins when it begins");
    }
}
