//! A link slowed down to given channels, so that overlap of copies and compute can be shown, and tested, on any machine.

use std::time::{Duration, Instant};

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Channel;

/// Nobody is believed to have been this much too late: more than that is a processor that was busy otherwise.
const LATEST: Duration = Duration::from_millis(1);
/// Sleep ends late by about as much, even where the system was asked to be exact. The last bit of a copy's time is spent awake.
const AWAKE: Duration = Duration::from_micros(40);

/// One direction of a slowed-down link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(Channel);

impl Pace {
    pub const fn new(channel: Channel) -> Self {
        Self(channel)
    }

    /// From when on a copy takes the link's time that nothing kept from beginning at `ready`: the link does not know how long the thread
    /// that makes its copies took to wake up.
    pub fn begun(ready: Instant) -> Instant {
        begun(Instant::now(), ready)
    }

    /// Sleeps until a copy that began at `start` has taken the channel's time: latency + bytes ÷ rate. The processor is free meanwhile,
    /// but for the end.
    pub fn hold(self, start: Instant, bytes: usize) {
        let due = start + Duration::from_nanos(self.0.time(Bytes(bytes as u64)).get());
        loop {
            let rest = due.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            match rest.checked_sub(AWAKE) {
                Some(rest) if !rest.is_zero() => sleep(rest),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

/// Sleeps and wakes up as soon after as the system can.
fn sleep(time: Duration) {
    // Linux may otherwise let a sleeper wait 50 µs longer so as to wake several at once. Refused, it is late, which is no failure.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    std::thread::sleep(time);
}

/// From when on a copy counts that could begin at `ready` and begins `now`.
fn begun(now: Instant, ready: Instant) -> Instant {
    ready.clamp(now.checked_sub(LATEST).unwrap_or(now), now)
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
            let begun = Pace::begun(Instant::now());
            pace.hold(begun, 1_000);
        }
        assert!(start.elapsed() >= Duration::from_micros(10 * 1_100), "{:?}", start.elapsed());
    }

    #[test]
    fn a_copy_counts_from_when_it_could_begin_within_reason() {
        let now = Instant::now();
        let ago = |micros| now - Duration::from_micros(micros);
        for (ready, expected) in [(0, 0), (70, 70), (900_000, 1_000)] {
            assert_eq!(begun(now, ago(ready)), ago(expected), "{ready}");
        }
        assert_eq!(begun(now, now + LATEST), now, "a copy begins when it begins");
    }
}
