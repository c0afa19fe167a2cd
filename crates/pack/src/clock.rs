//! When a packer must stop before it is done.

use std::time::{Duration, Instant};

use elbowroom_ir::packing::Placement;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

/// Items placed between two looks at the clock and the observer.
const ITEMS_PER_LOOK: u32 = 64;

/// Packers that search place up to this many items whatever the time is: that takes milliseconds, and there is something to return.
pub(crate) const ALWAYS_PLACED: usize = 4_000;

/// The time of a budget, from the beginning of a packer on, and the observer who may interrupt.
///
/// A search may be cut short anywhere. Of a construction, which takes minutes on hundreds of thousands of blocks, what is not placed in time is
/// no placement.
#[derive(Clone, Copy)]
pub(crate) struct Clock<'a> {
    started: Instant,
    time: Option<Duration>,
    /// The evaluations of the budget. A construction that a clock ended did none, and a budget of none repeats it.
    evaluations: Option<u64>,
    observer: &'a dyn Observer,
}

impl<'a> Clock<'a> {
    pub(crate) fn start(budget: &Budget, observer: &'a dyn Observer) -> Self {
        Self { started: Instant::now(), time: budget.time, evaluations: budget.evaluations, observer }
    }

    /// Receives the progress of the packer.
    pub(crate) fn observer(&self) -> &'a dyn Observer {
        self.observer
    }

    /// Why to stop now, if it must be: the observer interrupts, or time is up.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        if self.observer.interrupted() {
            return Some(StopReason::Interrupted);
        }
        self.time_left().filter(Duration::is_zero).map(|_| StopReason::Time)
    }

    /// The same, or the evaluations are used up once this many are done.
    pub(crate) fn stop_reason_after(&self, evaluations: u64) -> Option<StopReason> {
        let used_up = || self.evaluations.is_some_and(|limit| evaluations >= limit);
        self.stop_reason().or_else(|| used_up().then_some(StopReason::Evaluations))
    }

    /// What is left of the time, if it is limited.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.time.map(|time| time.saturating_sub(self.started.elapsed()))
    }

    /// Whether a construction must stop now.
    pub(crate) fn ends_constructions(&self) -> bool {
        self.stop_reason_after(0).is_some()
    }

    /// Whether a construction must stop, asked once for every item: looks at every sixty-fourth.
    pub(crate) fn stops(&self) -> impl FnMut() -> bool {
        let mut items = 0u32;
        move || {
            items = items.wrapping_add(1);
            items.is_multiple_of(ITEMS_PER_LOOK) && self.ends_constructions()
        }
    }

    /// The same for the first construction of a search over `items` items: few are always placed.
    pub(crate) fn stops_above(&self, items: usize) -> impl FnMut() -> bool {
        let mut stops = self.stops();
        move || items > ALWAYS_PLACED && stops()
    }

    /// The outcome of a construction that was stopped.
    pub(crate) fn stopped(&self) -> Outcome<Placement> {
        let evaluations = (self.evaluations == Some(0)).then_some(StopReason::Evaluations);
        let interrupted = self.observer.interrupted().then_some(StopReason::Interrupted);
        let stop = interrupted.or(evaluations).unwrap_or(StopReason::Time);
        Outcome { best: None, evaluations: 0, stop }
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

    #[test]
    fn a_search_begins_only_in_its_time_but_always_places_few_blocks() {
        for (blocks, always) in [(ALWAYS_PLACED as u64, true), (ALWAYS_PLACED as u64 + 1, false)] {
            let block = |i: u64| Block::new(i, i + 9, Bytes(1 + i % 7));
            let plain: Vec<Block> = (0..blocks).map(block).collect();
            let hinted = plain.iter().map(|block| Block { hint: Some(Bytes(1)), ..block.clone() }).collect();
            let window = Window { during: Interval::new(2, 3), from: Bytes(0), to: Bytes(1) };
            let mut windowed = plain.clone();
            windowed[1] = Block { windows: vec![window], ..Block::new(0, 9, Bytes(3)) };
            for blocks in [plain, hinted, windowed] {
                let problem = Problem { blocks: blocks.into_iter().collect(), capacity: None };
                for name in ["auto", "exact"] {
                    let packer = crate::PACKERS.iter().find(|packer| packer.name() == name).unwrap();
                    let stop = |budget: &Budget, observer: &dyn Observer| {
                        let outcome = packer.pack(&problem, budget, observer);
                        (outcome.best.is_some(), outcome.stop.name())
                    };
                    for (budget, observer, reason) in [
                        (Budget::time(Duration::ZERO), &Silent as &dyn Observer, "time"),
                        (Budget::evaluations(0), &Silent, "evaluations"),
                        (Budget::default(), &Interrupting, "interrupted"),
                    ] {
                        let (placed, stop) = stop(&budget, observer);
                        assert_eq!(placed, always, "{name}: {reason}");
                        assert!(placed || stop == reason, "{name}: {stop} instead of {reason}");
                    }
                }
            }
        }
    }
}
