//! Placement after a change: buffers keep the offsets of an earlier placement if they can.
//!
//! A kept block is a fixed block. Which blocks cannot keep their offsets together follows from pairs that clash ([`clash`]) and, with a
//! capacity, from sets that a packer proves impossible. [`crate::choice`] finds the fewest bytes that break all sets known so far; `exact`
//! places what is left around the kept blocks, or proves another set. Where that takes too long, ejection chains place the new blocks and
//! displace as few bytes as they can, and nothing is proved.

mod clash;

use std::time::Instant;

use elbowroom_ir::packing::{Block, Interval, Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Infeasible, InterruptOnly, Observer, Outcome, StopReason};
use elbowroom_ir::{BufferId, Bytes, Id, Table};

use self::clash::{Clashes, clashes, hull};
use crate::auto::Auto;
use crate::choice::{Choices, Literal};
use crate::ejection_chain::Request;
use crate::exact::Exact;
use crate::improver::MOST_ITEMS;
use crate::instance::{Instance, infeasible};
use crate::overlap::OverlapIndex;
use crate::random::Random;
use crate::validate::validate;
use crate::windowed::has_windows;

/// Evaluations of the first search around a set of kept blocks; doubled when they do not suffice.
const PROBE: u64 = 24;
/// Ejection chains with different random choices.
const CHAINS: u64 = 8;
/// Steps of a chain, and further ones for each block that has to be placed.
const STEPS: (u32, u32) = (20_000, 50);
/// Moved blocks that are tried one by one at their earlier offsets after a chain.
const RETURNS: usize = 64;

/// A placement and its difference from the earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repacked {
    /// The new offsets.
    pub placement: Placement,
    /// The blocks that had another offset before, ascending. Blocks without an earlier offset are not among them.
    pub moved: Vec<BufferId>,
    /// Their bytes, by their present sizes.
    pub moved_bytes: Bytes,
    /// Proved lower bound of the bytes that every legal placement moves.
    pub least_moved: Bytes,
}

/// Places a problem again after a change. `previous[i]` is the earlier offset of block `i`; `None`, or no entry, if it is new. Blocks may
/// have been resized, and their lifetimes and alignments may have changed.
///
/// The result moves as few bytes as the budget finds. If there is a capacity, it is met; if there is none, the arena is as low as the budget
/// finds for the blocks that keep their offsets, and may be higher than that of [`Auto`], which moves all blocks as it likes. `stop` is
/// `Optimal` if no legal placement moves fewer bytes and, without a capacity, none that keeps the same blocks is lower; `Infeasible` and
/// `GaveUp` mean what they mean for [`Packer::pack`]. The problem must be one that [`Problem::validate`] accepts.
///
/// # Example
///
/// ```
/// use elbowroom_ir::packing::{Block, Problem};
/// use elbowroom_ir::search::{Budget, Silent};
/// use elbowroom_ir::{BufferId, Bytes};
///
/// // Three buffers lay at 0, 10 and 20. The first has grown from 10 to 12 bytes.
/// let blocks = [12, 10, 10].map(|size| Block::new(0, 4, Bytes(size))).to_vec().into();
/// let problem = Problem { blocks, capacity: Some(Bytes(32)) };
/// let previous = [Some(Bytes(0)), Some(Bytes(10)), Some(Bytes(20))];
/// let repacked = elbowroom_pack::repack(&problem, &previous, &Budget::default(), &Silent).best.unwrap();
/// // 22 bytes are left beside what must move: one of the others keeps its offset.
/// assert_eq!((repacked.moved_bytes, repacked.least_moved), (Bytes(20), Bytes(20)));
/// ```
pub fn repack(
    problem: &Problem,
    previous: &[Option<Bytes>],
    budget: &Budget,
    observer: &dyn Observer,
) -> Outcome<Repacked> {
    let start = Instant::now();
    let mut repacking = match Repacking::new(problem, previous, budget, observer, start) {
        Ok(repacking) => repacking,
        Err(outcome) => return stopped(outcome),
    };
    repacking.run()
}

/// An outcome without a placement.
fn stopped(outcome: Outcome<Placement>) -> Outcome<Repacked> {
    Outcome { best: None, evaluations: outcome.evaluations, stop: outcome.stop }
}

/// What a search around a set of kept blocks found.
enum Probe {
    Placed(Placement, StopReason),
    /// These kept blocks cannot all be kept.
    Clash(Vec<Literal>),
    /// No placement exists, whatever is kept.
    Impossible(Outcome<Placement>),
    /// The budget of the search ended.
    Open(StopReason),
}

struct Repacking<'a> {
    problem: &'a Problem,
    /// The earlier offset of every block that may keep it.
    homes: Vec<Option<u64>>,
    /// The earlier offset of every block.
    previous: &'a [Option<Bytes>],
    /// Bytes of the blocks that cannot keep their offsets whatever the others do, as a cost.
    forced: u128,
    choices: Choices,
    budget: Budget,
    observer: &'a dyn Observer,
    start: Instant,
    evaluations: u64,
}

/// What moving a block costs: its bytes, and then as few blocks as possible.
fn cost(block: &Block) -> u128 {
    (u128::from(block.size.get()) << 32) + 1
}

/// The option of a variable, whose number is that of its block: to keep its offset, or to move.
const KEEP: u32 = 0;

impl<'a> Repacking<'a> {
    /// The error is the outcome if fixed offsets clash or exceed the capacity.
    fn new(
        problem: &'a Problem,
        previous: &'a [Option<Bytes>],
        budget: &Budget,
        observer: &'a dyn Observer,
        start: Instant,
    ) -> Result<Self, Outcome<Placement>> {
        let before = |id: BufferId| previous.get(id.index()).copied().flatten();
        let blocks = &problem.blocks;
        let mut forced = 0;
        let mut homes = vec![None; blocks.len()];
        for (id, block) in blocks.iter() {
            if let (Some(fixed), Some(capacity)) = (block.fixed, problem.capacity)
                && fixed + block.size > capacity
            {
                return Err(infeasible(vec![id.0], (fixed + block.size).get(), problem.capacity));
            }
            let Some(offset) = before(id) else { continue };
            let end = offset.get().checked_add(block.size.get()).filter(|&end| end < 1 << 62);
            let fits = end.is_some_and(|end| problem.capacity.is_none_or(|capacity| end <= capacity.get()));
            let stays = block.fixed.is_none_or(|fixed| fixed == offset);
            if fits && stays && offset.get() % block.align.get() == 0 {
                homes[id.index()] = Some(offset.get());
            } else {
                forced += cost(block);
            }
        }
        let pinned = |id: BufferId| problem.blocks[id].fixed.is_some();
        let offsets: Vec<Option<u64>> = problem
            .blocks
            .iter()
            .map(|(id, block)| block.fixed.map(Bytes::get).or(homes[id.index()]))
            .collect();
        let Clashes { pairs, movers } = clashes(&problem.blocks, &offsets, pinned);
        for block in movers {
            homes[block.index()] = None;
        }
        // A variable without an offset to keep has one free option.
        let costs = problem.blocks.iter().map(|(id, block)| match homes[id.index()] {
            Some(_) if !pinned(id) => vec![0, cost(block)],
            _ => vec![0],
        });
        let mut choices = Choices::new(costs.collect());
        let mut nogoods = Vec::with_capacity(pairs.len());
        for (a, b) in pairs {
            let keepers = [a, b].into_iter().filter(|&id| !pinned(id));
            if keepers.clone().all(|id| homes[id.index()].is_some()) {
                let nogood: Vec<Literal> = keepers.map(|id| (id.0, KEEP)).collect();
                if nogood.is_empty() {
                    let end = |id: BufferId| blocks[id].fixed.unwrap_or_default() + blocks[id].size;
                    return Err(infeasible(vec![a.0, b.0], end(a).max(end(b)).get() + 1, problem.capacity));
                }
                nogoods.push(nogood);
            }
        }
        choices.forbid_new(nogoods);
        Ok(Self {
            problem,
            homes,
            previous,
            forced,
            choices,
            budget: budget.clone(),
            observer,
            start,
            evaluations: 0,
        })
    }

    fn time_left(&self) -> Option<std::time::Duration> {
        self.budget.time.map(|limit| limit.saturating_sub(self.start.elapsed()))
    }

    /// Why the search must stop now, if it must.
    fn stop_reason(&self) -> Option<StopReason> {
        if self.observer.interrupted() {
            return Some(StopReason::Interrupted);
        }
        self.budget.exhausted(self.evaluations, self.start)
    }

    fn run(&mut self) -> Outcome<Repacked> {
        let mut best: Option<Repacked> = None;
        let mut bound = self.forced;
        let mut probe = PROBE;
        let mut chained = false;
        let ending = loop {
            let stop = || self.observer.interrupted() || self.time_left().is_some_and(|left| left.is_zero());
            let chosen = self.choices.cheapest(&stop);
            bound = bound.max(self.forced + chosen.bound);
            if best.as_ref().is_some_and(|best| self.cost(&best.moved) <= bound) {
                break StopReason::Optimal;
            }
            let kept: Vec<bool> =
                (0..self.homes.len()).map(|i| self.homes[i].is_some() && chosen.options[i] == KEEP).collect();
            // Without a capacity the height is improved for as long as the budget lasts.
            let evaluations = self.problem.capacity.map(|_| probe);
            let packer: &dyn Packer = if self.problem.capacity.is_some() { &Exact } else { &Auto };
            match self.probe(&kept, packer, evaluations) {
                Probe::Placed(placement, stop) => {
                    let proved = chosen.bound == chosen.cost;
                    let repacked = self.repacked(placement);
                    if best.as_ref().is_none_or(|b| self.cost(&repacked.moved) < self.cost(&b.moved)) {
                        best = Some(repacked);
                    }
                    break match stop {
                        stop if self.problem.capacity.is_none() && stop != StopReason::Optimal => stop,
                        _ if proved => StopReason::Optimal,
                        _ => StopReason::Finished,
                    };
                }
                Probe::Clash(nogood) => {
                    if !self.choices.forbid(nogood) {
                        break StopReason::Finished;
                    }
                }
                Probe::Impossible(outcome) => {
                    return stopped(Outcome { evaluations: self.evaluations, ..outcome });
                }
                Probe::Open(stop) => {
                    if !chained {
                        chained = true;
                        best = self.by_chains(&kept).or_else(|| self.anew());
                    } else {
                        probe = probe.saturating_mul(2);
                    }
                    if let Some(reason) = self.stop_reason() {
                        break reason;
                    }
                    if stop == StopReason::Finished {
                        break stop;
                    }
                }
            }
            if let Some(best) = &best {
                self.observer.improved(best.moved_bytes.get(), (bound >> 32) as u64);
            }
            if let Some(reason) = self.stop_reason() {
                if best.is_none() {
                    best = self.by_chains(&kept);
                }
                break reason;
            }
        };
        match best {
            Some(mut repacked) => {
                repacked.least_moved = Bytes((bound >> 32) as u64).min(repacked.moved_bytes);
                let proved = self.problem.capacity.is_some() && self.cost(&repacked.moved) <= bound;
                let stop = if proved { StopReason::Optimal } else { ending };
                Outcome { best: Some(repacked), evaluations: self.evaluations, stop }
            }
            None => self.place_all(ending, bound),
        }
    }

    fn cost(&self, moved: &[BufferId]) -> u128 {
        moved.iter().map(|&id| cost(&self.problem.blocks[id])).sum()
    }

    /// A placement, and which blocks it moves.
    fn repacked(&self, placement: Placement) -> Repacked {
        let moved: Vec<BufferId> = (self.problem.blocks.ids())
            .filter(|&id| {
                let before = self.previous.get(id.index()).copied().flatten();
                before.is_some_and(|before| before != placement.offsets[id])
            })
            .collect();
        let moved_bytes = moved.iter().map(|&id| self.problem.blocks[id].size).sum();
        Repacked { placement, moved, moved_bytes, least_moved: Bytes::ZERO }
    }

    /// Places the blocks that are not kept around the kept ones, within a number of evaluations.
    fn probe(&mut self, kept: &[bool], packer: &dyn Packer, evaluations: Option<u64>) -> Probe {
        let blocks = &self.problem.blocks;
        let fixed = |id: BufferId| {
            let home = self.homes[id.index()].filter(|_| kept[id.index()]).map(Bytes);
            blocks[id].fixed.or(home)
        };
        // Fixed blocks that no free one meets cannot be in its way.
        let mut free: Vec<Interval> =
            blocks.iter().filter(|(id, _)| fixed(*id).is_none()).map(|(_, block)| hull(block)).collect();
        free.sort_unstable();
        let mut busy: Vec<Interval> = Vec::new();
        for interval in free {
            match busy.last_mut() {
                Some(last) if interval.start <= last.end => last.end = last.end.max(interval.end),
                _ => busy.push(interval),
            }
        }
        let meets = |block: &Block| {
            let hull = hull(block);
            let at = busy.partition_point(|interval| interval.end <= hull.start);
            busy.get(at).is_some_and(|interval| interval.start < hull.end)
        };
        let within: Vec<BufferId> = blocks
            .iter()
            .filter(|(id, block)| fixed(*id).is_none() || meets(block))
            .map(|(id, _)| id)
            .collect();
        let part = within.iter().map(|&id| {
            let hint = blocks[id].hint.or(self.homes[id.index()].map(Bytes));
            Block { fixed: fixed(id), hint, ..blocks[id].clone() }
        });
        let part = Problem { blocks: part.collect(), capacity: self.problem.capacity };
        let left = self.budget.evaluations.map(|limit| limit.saturating_sub(self.evaluations));
        let limit = [left, evaluations].into_iter().flatten().min();
        let budget = Budget { evaluations: limit, time: self.time_left(), ..self.budget.clone() };
        let outcome = if part.blocks.is_empty() {
            Outcome { best: Some(Placement::default()), evaluations: 0, stop: StopReason::Optimal }
        } else {
            // Trees of that many blocks are not searched; `auto` has other means.
            let packer = if part.blocks.len() > MOST_ITEMS { &Auto } else { packer };
            packer.pack(&part, &budget, &InterruptOnly(self.observer))
        };
        self.evaluations += outcome.evaluations.max(1);
        self.observer.progress(self.evaluations);
        match (outcome.best, outcome.stop) {
            (Some(placement), stop) => {
                let mut offsets: Vec<Bytes> = blocks.ids().map(|id| fixed(id).unwrap_or_default()).collect();
                for (&id, &offset) in within.iter().zip(placement.offsets.values()) {
                    offsets[id.index()] = offset;
                }
                Probe::Placed(Placement::new(self.problem, Table::from(offsets)), stop)
            }
            (None, StopReason::Infeasible(proof)) => {
                let Infeasible::Blocks { blocks: core, needed, limit } = *proof else {
                    return Probe::Open(StopReason::Finished);
                };
                let core: Vec<BufferId> = core.iter().map(|id| within[id.index()]).collect();
                let movable = core.iter().filter(|id| kept[id.index()] && blocks[**id].fixed.is_none());
                let nogood: Vec<Literal> = movable.map(|id| (id.0, KEEP)).collect();
                if nogood.is_empty() {
                    let proof = Infeasible::Blocks { blocks: core, needed, limit };
                    let stop = StopReason::Infeasible(Box::new(proof));
                    return Probe::Impossible(Outcome { best: None, evaluations: self.evaluations, stop });
                }
                Probe::Clash(nogood)
            }
            (None, stop) => {
                let used_up = limit.is_some_and(|limit| outcome.evaluations >= limit);
                let cut = used_up || self.stop_reason().is_some();
                Probe::Open(if cut { stop } else { StopReason::Finished })
            }
        }
    }

    /// Places by ejection chains what is not kept, displacing as few bytes as they can.
    fn by_chains(&mut self, kept: &[bool]) -> Option<Repacked> {
        let capacity = self.problem.capacity?.get();
        if has_windows(self.problem) {
            return None;
        }
        let instance = Instance::cut(self.problem);
        if instance.bound > capacity {
            return None;
        }
        let overlaps = OverlapIndex::new(&instance);
        let block = |item: usize| instance.items[item].block as usize;
        let homes: Vec<Option<u64>> = (0..instance.len())
            .map(|i| self.homes[block(i)].filter(|_| instance.items[i].fixed.is_none()))
            .collect();
        let offsets: Vec<u64> =
            (0..instance.len()).map(|i| instance.items[i].fixed.or(homes[i]).unwrap_or(0)).collect();
        let unplaced: Vec<u32> = (0..instance.len())
            .filter(|&i| instance.items[i].fixed.is_none() && !kept[block(i)])
            .map(|i| i as u32)
            .collect();
        let steps = STEPS.0.saturating_add((unplaced.len() as u32).saturating_mul(STEPS.1));
        let request =
            Request { instance: &instance, overlaps: &overlaps, ceiling: capacity, homes: &homes, steps };
        let mut best: Option<Repacked> = None;
        for chain in 0..CHAINS {
            let stop = || self.observer.interrupted() || self.time_left().is_some_and(|left| left.is_zero());
            // The first chain is not cut short: it is what there is to return.
            let stop: &dyn Fn() -> bool = if chain == 0 { &|| self.observer.interrupted() } else { &stop };
            if chain > 0 && self.stop_reason().is_some() {
                break;
            }
            let mut random = Random::new(self.budget.seed, chain);
            let placed = request.place(&offsets, unplaced.clone(), &mut random, stop);
            self.evaluations += 1;
            let Some(mut placed) = placed else { continue };
            go_home(&instance, &overlaps, &homes, &mut placed);
            let placement = instance.placement(self.problem, &placed);
            if validate(self.problem, &placement).is_err() {
                continue;
            }
            let repacked = self.repacked(placement);
            if best.as_ref().is_none_or(|b| self.cost(&repacked.moved) < self.cost(&b.moved)) {
                best = Some(repacked);
            }
        }
        best.map(|best| self.returned(best))
    }

    /// Places everything again in half of the budget that is left, and returns what can return.
    fn anew(&mut self) -> Option<Repacked> {
        let whole = self.budget.clone();
        let half = whole.evaluations.map(|limit| limit.saturating_sub(self.evaluations).div_ceil(2));
        if let Some(left) = self.time_left() {
            self.budget.time = Some(self.start.elapsed() + left / 2);
        }
        let probe = self.probe(&vec![false; self.homes.len()], &Auto, half);
        self.budget = whole;
        let Probe::Placed(placement, _) = probe else { return None };
        let repacked = self.repacked(placement);
        if has_windows(self.problem) {
            return Some(repacked);
        }
        let instance = Instance::cut(self.problem);
        let block = |item: usize| instance.items[item].block as usize;
        let homes: Vec<Option<u64>> = (0..instance.len())
            .map(|i| self.homes[block(i)].filter(|_| instance.items[i].fixed.is_none()))
            .collect();
        let offsets = repacked.placement.offsets.as_slice();
        let mut placed: Vec<u64> = (0..instance.len()).map(|i| offsets[block(i)].get()).collect();
        go_home(&instance, &OverlapIndex::new(&instance), &homes, &mut placed);
        let returned = self.repacked(instance.placement(self.problem, &placed));
        let better = self.cost(&returned.moved) < self.cost(&repacked.moved);
        let legal = validate(self.problem, &returned.placement).is_ok();
        Some(if better && legal { returned } else { repacked })
    }

    /// Tries moved blocks one by one, the largest first, at their earlier offsets, and places the other moved ones around them.
    fn returned(&mut self, mut best: Repacked) -> Repacked {
        let mut candidates = best.moved.clone();
        candidates.retain(|id| self.homes[id.index()].is_some());
        candidates.sort_by_key(|&id| std::cmp::Reverse((self.problem.blocks[id].size, id)));
        for id in candidates.into_iter().take(RETURNS) {
            if self.stop_reason().is_some() {
                break;
            }
            if best.moved.binary_search(&id).is_err() {
                continue;
            }
            let mut kept: Vec<bool> = self.homes.iter().map(Option::is_some).collect();
            best.moved.iter().for_each(|moved| kept[moved.index()] = false);
            kept[id.index()] = true;
            if let Probe::Placed(placement, _) = self.probe(&kept, &Auto, Some(2)) {
                let repacked = self.repacked(placement);
                if self.cost(&repacked.moved) < self.cost(&best.moved) {
                    best = repacked;
                }
            }
        }
        best
    }

    /// Places everything again, with the earlier offsets as hints.
    fn place_all(&mut self, ending: StopReason, bound: u128) -> Outcome<Repacked> {
        let kept = vec![false; self.homes.len()];
        if self.stop_reason().is_some() {
            // The budget has ended; the heuristics run nevertheless, because they may find what the searches did not.
            self.budget =
                Budget { evaluations: Some(self.evaluations + 1), time: None, ..self.budget.clone() };
        }
        let probe = self.probe(&kept, &Auto, None);
        match probe {
            Probe::Placed(placement, _) => {
                let mut repacked = self.repacked(placement);
                repacked.least_moved = Bytes((bound >> 32) as u64).min(repacked.moved_bytes);
                let stop = if ending == StopReason::Optimal { StopReason::Finished } else { ending };
                Outcome { best: Some(repacked), evaluations: self.evaluations, stop }
            }
            Probe::Impossible(outcome) => stopped(Outcome { evaluations: self.evaluations, ..outcome }),
            Probe::Open(stop) => Outcome { best: None, evaluations: self.evaluations, stop },
            Probe::Clash(_) => {
                Outcome { best: None, evaluations: self.evaluations, stop: StopReason::GaveUp { best: None } }
            }
        }
    }
}

/// Returns items to their homes where nothing is in the way, the largest first, until none can return.
fn go_home(instance: &Instance, overlaps: &OverlapIndex, homes: &[Option<u64>], offsets: &mut [u64]) {
    let mut away: Vec<usize> =
        (0..instance.len()).filter(|&i| homes[i].is_some_and(|home| home != offsets[i])).collect();
    away.sort_by_key(|&i| std::cmp::Reverse(instance.items[i].size));
    loop {
        let before = away.len();
        away.retain(|&i| {
            let Some(home) = homes[i] else { return false };
            let end = home + instance.items[i].size;
            let mut blocked = false;
            overlaps.each_in(instance.items[i].hull, |other| {
                let j = other as usize;
                blocked |= j != i
                    && offsets[j] < end
                    && home < offsets[j] + instance.items[j].size
                    && instance.conflict(i, j);
            });
            if !blocked {
                offsets[i] = home;
            }
            blocked
        });
        if away.len() == before {
            return;
        }
    }
}
