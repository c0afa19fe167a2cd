//! A link slowed down to given channels, so that overlap of copies and compute can be shown, and tested, on any machine.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Channel;

/// Copies that begin so soon after another one began when that one ended.
const AT_ONCE: Duration = Duration::from_micros(20);
/// No sleep is believed to have been this much too long: more than that is a processor that was busy otherwise.
const LATEST: Duration = Duration::from_millis(1);

/// One direction of a slowed-down link.
#[derive(Debug)]
pub(crate) struct Pace {
    channel: Channel,
    last: Mutex<Option<Last>>,
}

/// The end of a copy: when it came, and how long after it should have come.
#[derive(Clone, Copy, Debug)]
struct Last {
    end: Instant,
    late: Duration,
}

impl Pace {
    pub const fn new(channel: Channel) -> Self {
        Self { channel, last: Mutex::new(None) }
    }

    /// Sleeps until a copy that began at `start` has taken the channel's time: latency + bytes ÷ rate. The processor is free meanwhile.
    ///
    /// Sleeps end late, by more than a small copy takes. So a copy right after another one counts from when that one should have ended:
    /// a row of copies takes as long as the channel says.
    pub fn hold(&self, start: Instant, bytes: usize) {
        let time = Duration::from_nanos(self.channel.time(Bytes(bytes as u64)).get());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = due(start, time, *last);
        // Sleeping may end a little early where the system keeps several clocks.
        loop {
            let rest = due.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            std::thread::sleep(rest);
        }
        let end = Instant::now();
        *last = Some(Last { end, late: end.saturating_duration_since(due) });
    }
}

/// When a copy that began at `start` and takes `time` should end.
fn due(start: Instant, time: Duration, last: Option<Last>) -> Instant {
    let credit = match last {
        Some(Last { end, late }) if start.saturating_duration_since(end) < AT_ONCE => late.min(LATEST),
        _ => Duration::ZERO,
    };
    start + time.saturating_sub(credit)
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
            pace.hold(Instant::now(), 1_000);
        }
        assert!(start.elapsed() >= Duration::from_micros(10 * 1_100), "{:?}", start.elapsed());
    }

    #[test]
    fn only_a_copy_right_after_a_late_one_is_due_earlier() {
        let start = Instant::now();
        let micros = Duration::from_micros;
        let after = |gap, late| Some(Last { end: start - micros(gap), late: micros(late) });
        for (last, expected) in [
            (None, 100),
            (after(2, 60), 40),
            (after(2, 0), 100),
            (after(300, 60), 100),
            (after(2, 500), 0),
            (after(2, 5_000_000), 0),
        ] {
            assert_eq!(due(start, micros(100), last), start + micros(expected), "{last:?}");
        }
        assert_eq!(due(start, micros(5_000), after(2, 5_000_000)), start + micros(4_000));
    }
}
