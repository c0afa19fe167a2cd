//! How long the requests of an iteration take on this machine: answered by a pool, and by a plan.

use std::time::{Duration, Instant};

use elbowroom::alloc::{Answer, CachingAllocator, Rehearsal, Request, Settings};
use elbowroom::ir::packing::Problem;

/// Iterations before the measured ones: both allocators have their blocks or their plan then.
const WARM_UP: usize = 4;
/// Measured iterations, of which the median counts.
const MEASURED: usize = 15;

/// What happens to a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Free(usize),
    Allocate(usize),
}

/// Time that all requests of an iteration take.
#[derive(Clone, Copy)]
pub(crate) struct RequestTimes {
    /// With PyTorch's caching allocator.
    pub pool: Duration,
    /// With the runtime of section 4.2: the next address of a plan.
    pub planned: Duration,
}

impl RequestTimes {
    /// Measures the blocks of an iteration, requested where they come alive.
    pub(crate) fn measure(problem: &Problem, align: u64) -> Self {
        let sizes: Vec<u64> = problem.blocks.values().map(|block| block.size.get()).collect();
        let mut events = Vec::new();
        for (number, block) in problem.blocks.values().enumerate() {
            for alive in &block.alive {
                events.extend([(alive.start, Event::Allocate(number)), (alive.end, Event::Free(number))]);
            }
        }
        // What ends at a position makes room for what begins there.
        events.sort_unstable();

        let (mut pool, mut addresses) = (CachingAllocator::new(), vec![0; sizes.len()]);
        let of_pool = median_of_iterations(|| {
            for &(_, event) in &events {
                match event {
                    Event::Allocate(block) => addresses[block] = pool.allocate(sizes[block]),
                    Event::Free(block) => pool.free(addresses[block]),
                }
            }
        });
        let mut plan = Rehearsal::new(Settings::default().granule(align as usize));
        let mut answers = vec![Answer::Fallback(None); sizes.len()];
        let of_plan = median_of_iterations(|| {
            plan.mark_iteration();
            for &(_, event) in &events {
                match event {
                    Event::Allocate(block) => {
                        answers[block] = plan.request(Request::new(sizes[block] as usize, align as usize));
                    }
                    Event::Free(block) => plan.free(answers[block]),
                }
            }
        });
        Self { pool: of_pool, planned: of_plan }
    }
}

fn median_of_iterations(mut iteration: impl FnMut()) -> Duration {
    (0..WARM_UP).for_each(|_| iteration());
    let mut times: Vec<Duration> = (0..MEASURED)
        .map(|_| {
            let started = Instant::now();
            iteration();
            started.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[MEASURED / 2]
}
