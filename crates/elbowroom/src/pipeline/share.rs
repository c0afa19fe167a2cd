//! The time that planning may take before a training: a share of its length.

use std::time::Duration;

use elbowroom_ir::Nanos;

/// The share of a training that planning may take.
const SHARE: u32 = 10;
/// The time that planning may take, however short the training is.
const LEAST: Duration = Duration::from_secs(1);

/// The time that all planning for a training of this many iterations, each of about this duration, may take together.
pub(crate) fn planning_share(iteration: Nanos, iterations: u64) -> Duration {
    (Duration::from_nanos(iteration.get().saturating_mul(iterations)) / SHARE).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planning_takes_a_tenth_of_the_training_or_a_second() {
        let seconds = |seconds: u64| Nanos(1_000_000_000 * seconds);
        assert_eq!(planning_share(seconds(2), 100), Duration::from_secs(20));
        assert_eq!(planning_share(seconds(2), 1), LEAST);
        assert_eq!(planning_share(Nanos::ZERO, u64::MAX), LEAST);
        assert_eq!(planning_share(seconds(10), u64::MAX), Duration::from_nanos(u64::MAX) / SHARE);
    }
}
