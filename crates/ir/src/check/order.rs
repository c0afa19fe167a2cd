//! Which actions have finished when another one starts, by stream order and waits alone: vector clocks with one entry per stream.

use crate::schedule::{Schedule, Stream};
use crate::{ActionId, Table};

/// For every action, the number of actions of each stream that have finished when it has, itself included.
pub struct HappensBefore {
    clocks: Table<ActionId, [u32; 3]>,
    streams: Table<ActionId, Option<Stream>>,
}

impl HappensBefore {
    /// Requires waits that point backwards (rule L10).
    pub fn new(schedule: &Schedule) -> Self {
        let mut clocks: Table<ActionId, [u32; 3]> = Table::new();
        let mut streams = Table::new();
        let mut last: [[u32; 3]; 3] = [[0; 3]; 3];
        for step in schedule.steps.values() {
            let stream = step.action.stream();
            streams.push(stream);
            let Some(stream) = stream else {
                clocks.push([0; 3]);
                continue;
            };
            let mut clock = last[stream.index()];
            for &wait in &step.waits {
                for (entry, waited) in clock.iter_mut().zip(clocks[wait]) {
                    *entry = waited.max(*entry);
                }
            }
            clock[stream.index()] += 1;
            last[stream.index()] = clock;
            clocks.push(clock);
        }
        Self { clocks, streams }
    }

    /// Whether `earlier` has finished whenever `later` starts. Both run on streams, and `earlier` has the smaller position.
    pub fn before(&self, earlier: ActionId, later: ActionId) -> bool {
        self.streams[earlier].is_some_and(|stream| {
            let stream = stream.index();
            self.clocks[later][stream] >= self.clocks[earlier][stream]
        })
    }
}
