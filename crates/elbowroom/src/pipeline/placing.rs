//! One attempt to place a schedule: how long the packer searches, by work or by the clock, and what it is asked for.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_ir::Bytes;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::packing::{Placement, Problem};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Infeasible, InterruptOnly, Observer, StopReason};
use elbowroom_sched::deadline::Until;
use elbowroom_sched::retry::PACKING_EVALUATIONS;
use elbowroom_sim::liveness;

use super::{Method, Rounds, Task};

/// The work of one packing attempt, in evaluations × blocks, and in evaluations × pairs of blocks that are alive together, whichever is done
/// first. Not a time: a placement that is found on an idle machine must be found on a busy one.
const PLACEMENT_WORK: u64 = 300_000;
const PLACEMENT_WORK_BY_PAIRS: u64 = 40_000_000;
/// The work of packing the iteration without a limit, in evaluations × pairs of blocks that are alive together: about a second of processor
/// time, because a node of a search looks at the blocks that are alive together with one. Shares of the unconstrained peak refer to what is
/// found, so no clock may decide it.
const UNLIMITED_WORK: u64 = 2_500_000;
/// Evaluations of that attempt however many pairs there are: the moves with which `auto` reorders a large problem, which are cheap, and a few
/// searches. [`PLACEMENT_WORK`] permits fewer with more than 4,285 blocks, but never fewer than [`FIRST_ORDERS`].
const FEWEST_UNLIMITED: u64 = 70;
/// The first orders of `auto`, which place a large problem within a fraction of a percent of its peak load.
const FIRST_ORDERS: u64 = 8;
/// Evaluations of an attempt in a series, however much work they are, and the most of them in evaluations × blocks: the moves with which `auto`
/// reorders a large problem, which are cheap.
const FEWEST_IN_SERIES: u64 = 66;
const FEWEST_IN_SERIES_WORK: u64 = 400_000;
/// The most evaluations of an attempt in a series on the lowest level, in evaluations × pairs, where these are fewer than
/// [`PACKING_EVALUATIONS`]: there an evaluation takes as long as several steps of the planner. At least [`FIRST_ORDERS`]: what they miss by is
/// known then, and later rounds take more.
const CROWDED_WORK_BY_PAIRS: u64 = 20_000_000_000;
/// The first searches behind them, which place many a schedule that the moves alone do not, and the most of them on the lowest level in searches
/// × blocks²: with many blocks each takes as long as ten moves, and a second of attempts that fail would be missing to rounds that plan.
const SEARCHES_IN_SERIES: u64 = 14;
const SEARCHES_IN_SERIES_WORK: u64 = 1 << 22;
/// An attempt that no clock ends and that is one of many, in later rounds and in the searches of peers, does this share of the work in
/// evaluations × blocks, and this share of that in evaluations × pairs.
const BRIEFLY: u64 = 16;
const BRIEFLY_BY_PAIRS: u64 = 64;

/// How long the packer searches.
#[derive(Clone, Copy)]
pub(super) enum Placing {
    /// [`PACKING_EVALUATIONS`].
    AtOnce,
    /// Until a share of its work is done.
    Briefly,
    /// Until a fixed amount of work or `most` evaluations are done, or until `end`, but at least [`PACKING_EVALUATIONS`].
    /// Nothing continues after `last`.
    Search { most: Option<u64>, end: Option<Instant>, last: Option<Instant> },
}

impl Placing {
    pub(super) const PATIENT: Self = Self::Search { most: None, end: None, last: None };

    /// The evaluations of an attempt in a series: a share of a long attempt, which doubles with each level, or the fewest.
    pub(super) fn at_level(problem: &Problem, level: u32) -> u64 {
        let pairs = pairs(problem);
        let all = work(problem, pairs);
        let crowded = (CROWDED_WORK_BY_PAIRS / pairs.max(1)).max(FIRST_ORDERS);
        let first = brief(pairs, all).min(crowded);
        let share = first.checked_shl(level).map_or(all, |evaluations| evaluations.min(all));
        let blocks = problem.blocks.len().max(1) as u64;
        let searches = (SEARCHES_IN_SERIES_WORK << level.min(40)) / (blocks * blocks);
        let fewest = FEWEST_IN_SERIES + searches.min(SEARCHES_IN_SERIES);
        share.max(fewest.min(FEWEST_IN_SERIES_WORK / blocks))
    }

    /// The attempt for the iteration without a limit.
    pub(super) fn unlimited(problem: &Problem) -> Self {
        let most = (UNLIMITED_WORK / pairs(problem).max(1)).max(FEWEST_UNLIMITED);
        let most = most.min(work_by_blocks(problem).max(FIRST_ORDERS));
        Self::Search { most: Some(most), end: None, last: None }
    }
}

/// A placement, with the evaluations of the packer.
pub(super) struct Placed {
    pub placement: Placement,
    pub evaluations: u64,
    /// Those of a long attempt, which finds the placement again.
    pub long: u64,
}

/// No placement within the limit was found.
pub(super) struct Unplaced {
    /// The smallest arena size that the packer reached. Its excess over the limit is the amount by which live memory must fall.
    pub height: Bytes,
    /// Evaluations of the packer if the clock stopped it, in this run or in the recorded one.
    pub cut: Option<u64>,
}

/// The placement of a [known plan](Method::placed) whose buffers live as long as those of this problem.
pub(super) fn known_placement(task: &Task, method: &Method<'_>, problem: &Problem) -> Option<Placement> {
    let machine = &task.machine;
    let same = |plan: &&Arc<CheckedPlan>| {
        let known = plan.placement().height <= machine.memory;
        known && liveness::problem(plan.schedule(), machine).blocks == problem.blocks
    };
    method.placed.iter().find(same).map(|plan| plan.placement().clone())
}

/// The evaluations of a long packing attempt at a problem with so many [`pairs`].
fn work(problem: &Problem, pairs: u64) -> u64 {
    work_by_blocks(problem).min(work_by_pairs(pairs)).max(PACKING_EVALUATIONS)
}

/// Those of a brief attempt, of the `work` of a long one.
fn brief(pairs: u64, work: u64) -> u64 {
    (work / BRIEFLY).min(work_by_pairs(pairs) / BRIEFLY_BY_PAIRS).max(PACKING_EVALUATIONS)
}

fn work_by_pairs(pairs: u64) -> u64 {
    PLACEMENT_WORK_BY_PAIRS / pairs.max(1)
}

fn work_by_blocks(problem: &Problem) -> u64 {
    PLACEMENT_WORK / problem.blocks.len().max(1) as u64
}

/// Pairs of intervals, of different blocks or of the same, that overlap. The intervals of a block do not, so these are pairs of blocks, each as
/// often as both are alive together anew.
fn pairs(problem: &Problem) -> u64 {
    let intervals = || problem.blocks.values().flat_map(|block| &block.alive);
    let mut starts: Vec<u64> = intervals().map(|alive| alive.start).collect();
    let mut ends: Vec<u64> = intervals().map(|alive| alive.end).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    let (mut ended, mut pairs) = (0, 0);
    for (begun, &start) in starts.iter().enumerate() {
        while ended < begun && ends[ended] <= start {
            ended += 1;
        }
        pairs += (begun - ended) as u64;
    }
    pairs
}

/// The problem of packing a schedule into a machine's memory. Blocks are rounded up to the alignment, buffers are not: what fits the last multiple of
/// the alignment within the memory fits the memory. What fits the multiple above fits it only if the buffer on top ends early enough, which no packer
/// cares for, so that this is the capacity for no other schedules than those whose live memory needs it.
pub(super) fn problem_within(schedule: &Schedule, machine: &Machine) -> Problem {
    let problem = liveness::problem(schedule, machine);
    let (memory, align) = (machine.memory, machine.align);
    let within = Bytes(memory.get() - memory.get() % align.get());
    let capacity = if problem.peak_live() <= within { within } else { memory.align_up(align) };
    Problem { capacity: Some(capacity), ..problem }
}

/// Returns a placement within the problem's capacity, or without a capacity the smallest that was found. The error is the smallest arena size
/// that the packer reached.
pub(super) fn place(
    problem: Problem,
    schedule: &Schedule,
    method: &Method<'_>,
    placing: Placing,
    observer: &dyn Observer,
) -> Result<Placed, Unplaced> {
    let pack = |evaluations: u64, observer: &dyn Observer| {
        let budget = Budget { evaluations: Some(evaluations), time: None, ..method.budget.clone() };
        method.packer.pack(&problem, &budget, &InterruptOnly(observer))
    };
    let pairs = pairs(&problem);
    let all = work(&problem, pairs);
    // A budget of evaluations holds for the packer, too: who grants 20 evaluations does not want to wait half a minute for placements.
    let counted = method.budget.evaluations.filter(|_| !matches!(method.rounds, Rounds::Recorded(_)));
    let work = counted.map_or(all, |evaluations| all.min(evaluations.max(PACKING_EVALUATIONS)));
    let (outcome, cut) = match placing {
        Placing::AtOnce => (pack(PACKING_EVALUATIONS, observer), None),
        Placing::Briefly => {
            let most = brief(pairs, work);
            (pack(most, observer), Some(most))
        }
        Placing::Search { most, end, last } => {
            let watch = Until::new(observer, end);
            let outcome = pack(most.unwrap_or(work), &watch);
            if outcome.best.is_some() || !watch.cut() {
                // The record is repeated with all of the work.
                (outcome, most.or((work < all).then_some(work)))
            } else if outcome.evaluations < PACKING_EVALUATIONS {
                let watch = Until::new(observer, last);
                let outcome = pack(PACKING_EVALUATIONS, &watch);
                let made = if watch.cut() { outcome.evaluations } else { PACKING_EVALUATIONS };
                (outcome, Some(made))
            } else {
                let evaluations = outcome.evaluations;
                (outcome, Some(evaluations))
            }
        }
    };
    let Some(placement) = outcome.best else {
        // The next height that blocks can have.
        let align = problem.blocks.values().map(|block| block.align).max().unwrap_or(Bytes(1));
        let unknown = problem.capacity.unwrap_or_default() + align;
        let height = match outcome.stop {
            StopReason::GaveUp { best: Some(best) } => best.max(unknown),
            StopReason::Infeasible(proof) => match *proof {
                Infeasible::Blocks { needed, .. } => needed.max(unknown),
                Infeasible::Op { .. } => unknown,
            },
            _ => unknown,
        };
        return Err(Unplaced { height, cut });
    };
    let offsets = placement.offsets;
    let placement = Placement { height: liveness::height(schedule, &offsets), offsets };
    Ok(Placed { placement, evaluations: outcome.evaluations, long: all })
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::packing::{Block, Interval};

    use super::*;

    /// Blocks of one byte with these lifetimes.
    fn problem(lifetimes: impl Iterator<Item = Vec<Interval>>) -> Problem {
        let block = |alive| Block {
            size: Bytes(1),
            alive,
            windows: Vec::new(),
            align: Bytes(1),
            fixed: None,
            hint: None,
        };
        Problem { blocks: lifetimes.map(block).collect(), capacity: None }
    }

    /// Blocks that begin one after the other and live equally long.
    fn staggered(blocks: u64, length: u64) -> Problem {
        problem((0..blocks).map(|k| vec![Interval::new(k, k + length)]))
    }

    #[test]
    fn pairs_are_those_of_overlapping_intervals() {
        // Intervals that begin, end and touch at the same positions, some blocks with two of them.
        let lifetimes: Vec<Vec<Interval>> = (0..60u64)
            .map(|k| {
                let (start, end) = (k * 7 % 30, k * 7 % 30 + 1 + k * 5 % 9);
                let later = Interval::new(end + 3, end + 5 + k % 4);
                [Interval::new(start, end)].into_iter().chain((k % 3 == 0).then_some(later)).collect()
            })
            .collect();
        let all: Vec<Interval> = lifetimes.iter().flatten().copied().collect();
        let overlap = |a: &Interval, b: &Interval| a.start < b.end && b.start < a.end;
        let expected = (0..all.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        let expected = expected.filter(|&(a, b)| overlap(&all[a], &all[b])).count();
        assert_eq!(pairs(&problem(lifetimes.into_iter())), expected as u64);
        assert_eq!(pairs(&problem(std::iter::empty())), 0);
    }

    #[test]
    fn attempts_in_a_series_are_short_at_first_where_an_evaluation_takes_long() {
        let crowded = staggered(90_000, 40_000);
        let most: Vec<u64> = (0..4).map(|level| Placing::at_level(&crowded, level)).collect();
        assert_eq!(most, [8, 16, PACKING_EVALUATIONS, PACKING_EVALUATIONS]);
        // As many blocks that hardly meet.
        assert_eq!(Placing::at_level(&staggered(90_000, 100), 0), PACKING_EVALUATIONS);
    }

    #[test]
    fn a_crowded_iteration_is_packed_with_fewer_searches() {
        let most = |blocks: u64, length: u64| match Placing::unlimited(&staggered(blocks, length)) {
            Placing::Search { most: Some(most), end: None, last: None } => most,
            _ => panic!("a clock decides"),
        };
        // Short lifetimes hardly meet; long ones meet nearly everywhere.
        let sparse = staggered(200, 4);
        assert_eq!(most(200, 4), work(&sparse, pairs(&sparse)));
        assert!(most(300, 200) < most(300, 20));
        assert_eq!(most(1_000, 1_000), FEWEST_UNLIMITED);
        assert_eq!([20_000, 100_000].map(|blocks| most(blocks, 10)), [15, FIRST_ORDERS]);
    }
}
