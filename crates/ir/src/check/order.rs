//! Which actions have finished when another one starts, by stream order and waits alone: vector clocks with one entry per stream.

use crate::schedule::{Lane, Schedule};
use crate::{ActionId, Table};

/// For every action, the number of actions of each stream that have finished when it has, itself included.
pub struct HappensBefore {
    clocks: Table<ActionId, [u32; 3]>,
    lanes: Table<ActionId, Option<Lane>>,
}

impl HappensBefore {
    /// Requires waits that point backwards (rule L10).
    pub fn new(schedule: &Schedule) -> Self {
        let mut clocks: Table<ActionId, [u32; 3]> = Table::new();
        let mut lanes = Table::new();
        let mut last: [[u32; 3]; 3] = [[0; 3]; 3];
        for step in schedule.steps.values() {
            let lane = step.action.lane();
            lanes.push(lane);
            let Some(lane) = lane else {
                clocks.push([0; 3]);
                continue;
            };
            let mut clock = last[lane.index()];
            for &wait in &step.waits {
                for (entry, waited) in clock.iter_mut().zip(clocks[wait]) {
                    *entry = waited.max(*entry);
                }
            }
            clock[lane.index()] += 1;
            last[lane.index()] = clock;
            clocks.push(clock);
        }
        Self { clocks, lanes }
    }

    /// Whether `earlier` has finished whenever `later` starts. Both run on streams, and `earlier` has the smaller position.
    pub fn before(&self, earlier: ActionId, later: ActionId) -> bool {
        self.lanes[earlier].is_some_and(|lane| {
            let lane = lane.index();
            self.clocks[later][lane] >= self.clocks[earlier][lane]
        })
    }
}
