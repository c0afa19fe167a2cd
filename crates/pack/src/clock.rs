//! When a packer must stop before it is done.

use std::time::{Duration, Instant};

use elbowroom_ir::packing::Placement;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

/// Items placed between two looks at the clock and the observer.
const ITEMS_PER_LOOK: u32 = 64;

/// The time of a budget, from the beginning of a packer on, and the observer who may interrupt. For packers without a search, whose one
/// construction takes minutes on hundreds of thousands of blocks: what is not placed in time is no placement.
pub(crate) struct Clock<'a> {
    started: Instant,
    time: Option<Duration>,
    /// Whether the budget has no evaluation. A construction that a clock ended did none, and this repeats it.
    no_evaluation: bool,
    observer: &'a dyn Observer,
}

impl<'a> Clock<'a> {
    pub(crate) fn start(budget: &Budget, observer: &'a dyn Observer) -> Self {
        let no_evaluation = budget.evaluations == Some(0);
        Self { started: Instant::now(), time: budget.time, no_evaluation, observer }
    }

    /// Why to stop now, if it must be.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        if self.observer.interrupted() {
            return Some(StopReason::Interrupted);
        }
        if self.no_evaluation {
            return Some(StopReason::Evaluations);
        }
        self.time.filter(|&time| self.started.elapsed() >= time).map(|_| StopReason::Time)
    }

    /// Whether to stop, asked once for every item: looks at every sixty-fourth.
    pub(crate) fn stops(&self) -> impl FnMut() -> bool {
        let mut items = 0u32;
        move || {
            items = items.wrapping_add(1);
            items.is_multiple_of(ITEMS_PER_LOOK) && self.stop_reason().is_some()
        }
    }

    /// The outcome of a construction that was stopped.
    pub(crate) fn stopped(&self) -> Outcome<Placement> {
        Outcome { best: None, evaluations: 0, stop: self.stop_reason().unwrap_or(StopReason::Time) }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Interval, Problem, Window};
    use elbowroom_ir::search::Silent;

    use super::*;

    const WITHOUT_A_SEARCH: [&str; 7] = [
        "best-fit",
        "best-fit-paper",
        "best-fit-paper-merged",
        "conflict",
        "size",
        "smartpool-best",
        "smartpool-first",
    ];

    /// An observer that has interrupted before anything begins.
    struct Interrupting;

    impl Observer for Interrupting {
        fn interrupted(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_construction_ends_with_its_time_or_the_observer() {
        let block = |i: u64| Block::new(i, i + 9, Bytes(1 + i % 7));
        let plain: Vec<Block> = (0..200).map(block).collect();
        let window = Window { during: Interval::new(2, 3), from: Bytes(0), to: Bytes(1) };
        let alive = vec![Interval::new(0, 2), Interval::new(3, 9)];
        let windowed = [Block { windows: vec![window], alive, ..Block::new(0, 9, Bytes(3)) }];
        let windowed = windowed.into_iter().chain(plain.clone()).collect();
        for blocks in [plain, windowed] {
            let problem = Problem { blocks: blocks.into_iter().collect(), capacity: None };
            for name in WITHOUT_A_SEARCH {
                let packer = crate::PACKERS.iter().find(|packer| packer.name() == name).unwrap();
                let stop = |budget: &Budget, observer: &dyn Observer| {
                    let outcome = packer.pack(&problem, budget, observer);
                    (outcome.best.is_some(), outcome.stop.name())
                };
                assert!(stop(&Budget::evaluations(1), &Silent).0, "{name}");
                assert_eq!(stop(&Budget::time(Duration::ZERO), &Silent), (false, "time"), "{name}");
                assert_eq!(stop(&Budget::evaluations(0), &Silent), (false, "evaluations"), "{name}");
                assert_eq!(stop(&Budget::default(), &Interrupting), (false, "interrupted"), "{name}");
            }
        }
    }
}
