//! Several walks side by side, in slices, so that the result depends on the seed and the number of moves only.
//!
//! There is a fixed number of walks, whatever the threads. A slice is a fixed number of moves of every walk; between slices the clock and
//! the observer are asked. Slices make cycles, each cooling from hot to cold and twice as long as the one before; at the end of a cycle
//! the best sequence so far is handed to the walks that have fallen behind.

use std::time::Instant;

use elbowroom_ir::search::{Budget, Observer, StopReason};

use super::anneal::Walk;
use super::instance::Instance;
use super::state::State;

/// Walks, whatever the number of threads.
const WALKS: usize = 4;
/// Moves of each walk between two looks at the clock.
const SLICE: u64 = 2_000;
/// Slices of the first cycle and of the longest.
const FIRST_CYCLE: u64 = 10;
const LONGEST_CYCLE: u64 = 640;
/// Where each walk starts to cool, in mean durations of an op; all of them cool by the same factor.
const HEAT: [f64; WALKS] = [1.0, 2.0, 0.5, 4.0];
const COOLING: f64 = 1.0 / 60.0;

/// Repeats as (stage, op), ascending.
pub(crate) type Repeats = Vec<(u32, u32)>;

/// What a search found.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The shortest time without excess, with its repeats.
    pub best: Option<(u64, Repeats)>,
    /// Moves tried.
    pub evaluations: u64,
    /// Why it ended.
    pub stop: StopReason,
}

/// Searches until the budget ends. Warm starts are repeats from elsewhere; the first walks begin with them.
pub(crate) fn search(
    inst: &Instance,
    warm: &[Repeats],
    bound: u64,
    budget: &Budget,
    observer: &dyn Observer,
) -> Found {
    let start = Instant::now();
    let mut walks: Vec<Walk<'_>> = (0..WALKS as u64)
        .map(|i| Walk::new(State::new(inst), budget.seed.wrapping_mul(WALKS as u64) + i))
        .collect();
    for (walk, repeats) in walks.iter_mut().zip(warm) {
        walk.jump(repeats);
    }
    let mean = inst.total as f64 / inst.ops.len().max(1) as f64;
    let mut best: Option<(u64, Repeats)> = None;
    let mut evaluations = 0;
    let mut cycle = FIRST_CYCLE;
    let mut slice = 0;
    let stop = loop {
        if best.as_ref().is_some_and(|(time, _)| *time <= bound) {
            break StopReason::Optimal;
        }
        if observer.interrupted() {
            break StopReason::Interrupted;
        }
        if let Some(stop) = budget.exhausted(evaluations, start) {
            break stop;
        }
        let left = budget.evaluations.map_or(u64::MAX, |limit| limit - evaluations);
        let moves = SLICE.min(left.div_ceil(WALKS as u64));
        let length = (cycle * SLICE) as f64;
        let done = (slice * SLICE) as f64;
        side_by_side(&mut walks, budget.threads, &|index, walk| {
            let hot = mean * HEAT[index];
            walk.run(moves, |step| hot * COOLING.powf((done + step as f64) / length));
        });
        evaluations += (moves * WALKS as u64).min(left);
        for walk in &mut walks {
            if let Some(found) = &walk.best
                && best.as_ref().is_none_or(|best| found.0 < best.0)
            {
                best = Some(found.clone());
                observer.improved(found.0, bound);
            }
        }
        observer.progress(evaluations);
        slice += 1;
        if slice == cycle {
            slice = 0;
            cycle = (2 * cycle).min(LONGEST_CYCLE);
            hand_over(&mut walks, best.as_ref());
        }
    };
    Found { best, evaluations, stop }
}

/// Every other walk continues from the best sequence of all.
fn hand_over(walks: &mut [Walk<'_>], best: Option<&(u64, Repeats)>) {
    if let Some((_, repeats)) = best {
        for walk in walks.iter_mut().step_by(2) {
            walk.jump(repeats);
        }
    }
}

/// Runs every walk once, on so many threads. Walks share nothing, so who runs which does not matter.
fn side_by_side(walks: &mut [Walk<'_>], threads: usize, run: &(dyn Fn(usize, &mut Walk<'_>) + Sync)) {
    let threads = threads.clamp(1, walks.len());
    if threads == 1 {
        walks.iter_mut().enumerate().for_each(|(index, walk)| run(index, walk));
        return;
    }
    let share = walks.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (chunk, walks) in walks.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                walks.iter_mut().enumerate().for_each(|(index, walk)| run(chunk * share + index, walk));
            });
        }
    });
}
