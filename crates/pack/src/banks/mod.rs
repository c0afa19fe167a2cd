//! Several memories with capacities and costs: which block lies in which bank, and where.
//!
//! The least traffic outside of all banks comes first, then the least traffic times the cost of its bank. [`first_fit`] gives the first
//! placement, in which blocks are then promoted one by one to cheaper banks. In addition, [`crate::choice`] finds the cheapest assignment of
//! blocks to banks, `exact` places each bank's blocks, and the sets that it proves too large for a bank exclude the assignment. The first
//! assignment whose banks can all be placed is optimal; the cost of each is a lower bound.

mod first_fit;
mod model;

use std::cmp::Reverse;
use std::collections::HashMap;

use elbowroom_ir::packing::{Packer, Placement};
use elbowroom_ir::search::{Budget, Infeasible, InterruptOnly, Observer, Outcome, StopReason};
use elbowroom_ir::{BufferId, Bytes, Id, Table};

use crate::auto::Auto;
use crate::choice::{Choices, Literal};
use crate::clock::Clock;
use crate::exact::Exact;
use crate::improver::MOST_ITEMS;

pub use model::{Bank, BankedError, BankedPlacement, BankedPlacementError, BankedProblem, validate_banks};

/// Evaluations of the first search of a bank; doubled when they do not suffice.
const PROBE: u64 = 24;
/// Evaluations of a search that tries to add a block to a bank.
const PROMOTION: u64 = 2;
/// Blocks that are tried in cheaper banks.
const PROMOTIONS: usize = 256;
/// Problems with more blocks are not searched for a proof: the assignment takes a nogood for each full moment.
const MOST_PROVED: usize = 4_000;

/// Places blocks in several memories.
///
/// `best` is always a placement. Blocks that fit in no bank are *spilled*: they have no bank, and [`BankedPlacement::spilled`] names them. The
/// result spills as little traffic as the budget finds (a block without traffic counts as one byte), and then has as little traffic in costly
/// banks as it finds; it is never worse than first-fit by falling sizes with pins first. `stop` is `Optimal` if both are proved least. The
/// problem must be one that
/// [`BankedProblem::validate`] accepts.
///
/// # Example
///
/// ```
/// use elbowroom_ir::packing::Block;
/// use elbowroom_ir::search::{Budget, Silent};
/// use elbowroom_ir::{Bytes, Table};
/// use elbowroom_pack::{Bank, BankedProblem, pack_banks};
///
/// // Two buffers are alive together; the fast memory holds one of them. The smaller one is used more often.
/// let problem = BankedProblem {
///     blocks: [60, 50].map(|size| Block::new(0, 4, Bytes(size))).to_vec().into(),
///     banks: vec![
///         Bank { name: "fast".into(), capacity: Some(Bytes(64)), cost: 1 },
///         Bank { name: "slow".into(), capacity: None, cost: 10 },
///     ],
///     allowed: vec![vec![], vec![]].into(),
///     traffic: vec![Bytes(60), Bytes(500)].into(),
/// };
/// let placement = pack_banks(&problem, &Budget::default(), &Silent).best.unwrap();
/// assert_eq!((placement.banks.as_slice(), placement.cost), (&[Some(1), Some(0)][..], 60 * 10 + 500));
/// ```
pub fn pack_banks(
    problem: &BankedProblem,
    budget: &Budget,
    observer: &dyn Observer,
) -> Outcome<BankedPlacement> {
    let search = BankSearch {
        problem,
        budget,
        clock: Clock::start(budget, observer),
        evaluations: 0,
        known: HashMap::new(),
        best: BankedPlacement::default(),
    };
    search.run()
}

/// What is known of the blocks of one bank.
#[derive(Clone)]
enum Known {
    Placed(Placement),
    /// These of them, by their numbers in the problem, do not fit together.
    TooLarge(Vec<BufferId>),
    /// Not decided in this many evaluations; `None` if more would not help.
    Open(Option<u64>),
}

struct BankSearch<'a> {
    problem: &'a BankedProblem,
    budget: &'a Budget,
    clock: Clock<'a>,
    evaluations: u64,
    /// By bank and blocks.
    known: HashMap<(u32, Vec<BufferId>), Known>,
    best: BankedPlacement,
}

impl BankSearch<'_> {
    fn stop_reason(&self) -> Option<StopReason> {
        self.clock.stop_reason_after(self.evaluations)
    }

    /// What is least: spilled traffic, of which each block has at least a byte; then cost.
    fn measure(&self, placement: &BankedPlacement) -> (u64, u64) {
        let spilled = placement.spilled.iter().map(|&id| self.problem.traffic[id].get().max(1));
        (spilled.sum(), placement.cost)
    }

    fn offer(&mut self, placement: BankedPlacement) {
        if self.measure(&placement) < self.measure(&self.best) {
            self.best = placement;
            self.clock.observer().improved(self.best.cost, 0);
        }
    }

    fn run(mut self) -> Outcome<BankedPlacement> {
        let mut passes = first_fit::passes(self.problem, &self.clock);
        passes.sort_by_key(|placement| self.measure(placement));
        self.evaluations += passes.len() as u64;
        match passes.into_iter().next() {
            Some(best) => self.best = best,
            None => {
                let Outcome { evaluations, stop, .. } = self.clock.stopped();
                return Outcome { best: None, evaluations, stop };
            }
        }
        let stop = match self.stop_reason() {
            Some(stop) => stop,
            None => {
                let proof = self.prove(PROBE);
                match proof {
                    Some(stop) => stop,
                    None => {
                        self.promote();
                        self.stop_reason().or_else(|| self.prove(u64::MAX)).unwrap_or(StopReason::Finished)
                    }
                }
            }
        };
        Outcome { best: Some(self.best), evaluations: self.evaluations, stop }
    }

    /// Places the blocks of one bank.
    fn place(&mut self, bank: u32, members: &[BufferId], evaluations: u64) -> Known {
        let key = (bank, members.to_vec());
        match self.known.get(&key) {
            Some(Known::Open(tried)) if tried.is_some_and(|tried| tried < evaluations) => {}
            Some(known) => return known.clone(),
            None => {}
        }
        let part = self.problem.within(bank as usize, members);
        let left = self.budget.evaluations.map(|limit| limit.saturating_sub(self.evaluations));
        // Without a limit every placement will do.
        let evaluations = if part.capacity.is_none() { 1 } else { evaluations };
        let limit = left.map_or(evaluations, |left| left.min(evaluations));
        let time = self.clock.time_left();
        let budget = Budget { evaluations: Some(limit), time, ..self.budget.clone() };
        let large = part.blocks.len() > MOST_ITEMS;
        let packer: &dyn Packer = if large || part.capacity.is_none() { &Auto } else { &Exact };
        let outcome = packer.pack(&part, &budget, &InterruptOnly(self.clock.observer()));
        self.evaluations += outcome.evaluations.max(1);
        self.clock.observer().progress(self.evaluations);
        let known = match (outcome.best, outcome.stop) {
            (Some(placement), _) => Known::Placed(placement),
            (None, StopReason::Infeasible(proof)) => match *proof {
                Infeasible::Blocks { blocks, .. } => {
                    let core = blocks.iter().map(|id| members[id.index()]).collect();
                    Known::TooLarge(self.smaller(bank, core))
                }
                Infeasible::Op { .. } => Known::Open(None),
            },
            (None, _) => {
                let cut = outcome.evaluations >= limit || self.stop_reason().is_some();
                Known::Open(cut.then_some(limit))
            }
        };
        self.known.insert(key, known.clone());
        known
    }

    /// Fewer blocks of a set that is too large for a bank, if the live bytes alone show it: the largest ones until the bank overflows.
    fn smaller(&self, bank: u32, mut core: Vec<BufferId>) -> Vec<BufferId> {
        let Some(capacity) = self.problem.banks[bank as usize].capacity else { return core };
        let within = self.problem.within(bank as usize, &core);
        if within.peak_live() <= capacity {
            return core;
        }
        // One block after another is left out, the smallest first, while the rest still overflows.
        core.sort_by_key(|&id| Reverse((self.problem.blocks[id].size, id)));
        let mut at = core.len();
        while at > 0 {
            at -= 1;
            let mut without = core.clone();
            without.remove(at);
            if self.problem.within(bank as usize, &without).peak_live() > capacity {
                core = without;
            }
        }
        core
    }

    /// The blocks of every bank.
    fn members(&self, banks: impl Fn(BufferId) -> Option<u32>) -> Vec<Vec<BufferId>> {
        let mut members = vec![Vec::new(); self.problem.banks.len()];
        for id in self.problem.blocks.ids() {
            if let Some(bank) = banks(id) {
                members[bank as usize].push(id);
            }
        }
        members
    }

    /// Looks for the cheapest assignment that can be placed, with searches of at most `most` evaluations. Returns why it ended; `None` if longer
    /// searches are needed.
    fn prove(&mut self, most: u64) -> Option<StopReason> {
        let problem = self.problem;
        if problem.blocks.len() > MOST_PROVED {
            return None;
        }
        let options: Vec<Vec<(u32, u64)>> = problem.blocks.ids().map(|id| problem.options(id)).collect();
        let traffic = |v: usize| u128::from(problem.traffic.as_slice()[v].get());
        let dearest = |v: usize| options[v].iter().map(|&(_, cost)| u128::from(cost)).max().unwrap_or(0);
        // A spilled byte costs more than all that is placed together.
        let spill: u128 = 1 + (0..options.len()).map(|v| traffic(v) * dearest(v)).sum::<u128>();
        let costs = options.iter().enumerate().map(|(v, options)| {
            let placed = options.iter().map(|&(_, cost)| traffic(v) * u128::from(cost));
            placed.chain([traffic(v).max(1) * spill]).collect()
        });
        let mut choices = Choices::new(costs.collect());
        let mut evaluations = PROBE;
        loop {
            let clock = self.clock;
            let stop = || clock.stop_reason().is_some();
            let chosen = choices.cheapest(&stop);
            let bank = |id: BufferId| {
                let v = id.index();
                options[v].get(chosen.options[v] as usize).map(|&(bank, _)| bank)
            };
            let members = self.members(bank);
            let mut placed: Vec<Option<Placement>> = Vec::new();
            let (mut learned, mut open) = (false, None);
            for (bank, members) in (0..).zip(&members) {
                placed.push(None);
                match self.place(bank, members, evaluations) {
                    Known::Placed(placement) => placed[bank as usize] = Some(placement),
                    Known::TooLarge(core) => {
                        for nogood in self.nogoods(bank, &core, &options) {
                            learned |= choices.forbid(nogood);
                        }
                    }
                    Known::Open(tried) => open = open.max(Some(tried.unwrap_or(u64::MAX))),
                }
                if let Some(stop) = self.stop_reason() {
                    return Some(stop);
                }
            }
            if let Some(placed) = placed.into_iter().collect::<Option<Vec<Placement>>>() {
                self.offer(self.assembled(&members, &placed));
                let proved = chosen.bound == chosen.cost;
                return Some(if proved { StopReason::Optimal } else { StopReason::Finished });
            }
            if learned {
                continue;
            }
            match open {
                // Nothing was learned, and longer searches would not help.
                None | Some(u64::MAX) => return Some(StopReason::Finished),
                Some(_) if evaluations >= most => return None,
                Some(_) => evaluations = evaluations.saturating_mul(2),
            }
        }
    }

    /// The placement from those of the banks.
    fn assembled(&self, members: &[Vec<BufferId>], placed: &[Placement]) -> BankedPlacement {
        let mut banks: Table<BufferId, Option<u32>> = vec![None; self.problem.blocks.len()].into();
        let mut offsets: Table<BufferId, Bytes> = vec![Bytes::ZERO; self.problem.blocks.len()].into();
        for (bank, (members, placement)) in (0..).zip(members.iter().zip(placed)) {
            for (&id, &offset) in members.iter().zip(placement.offsets.values()) {
                banks[id] = Some(bank);
                offsets[id] = offset;
            }
        }
        BankedPlacement::new(self.problem, banks, offsets)
    }

    /// What is too large for a bank is too large for each bank that is no larger.
    fn nogoods(&self, bank: u32, core: &[BufferId], options: &[Vec<(u32, u64)>]) -> Vec<Vec<Literal>> {
        let room = |bank: u32| self.problem.banks[bank as usize].capacity.unwrap_or(Bytes::MAX);
        let banks = (0..self.problem.banks.len() as u32).filter(|&other| room(other) <= room(bank));
        let nogood = |bank: u32| -> Option<Vec<Literal>> {
            let literal = |id: &BufferId| {
                let option = options[id.index()].iter().position(|&(other, _)| other == bank)?;
                Some((id.0, option as u32))
            };
            core.iter().map(literal).collect()
        };
        banks.filter_map(nogood).collect()
    }

    /// Moves blocks one by one to cheaper banks, those that gain the most for each byte first.
    fn promote(&mut self) {
        let problem = self.problem;
        let gain = |best: &BankedPlacement, id: BufferId| {
            let options = problem.options(id);
            let traffic = u128::from(problem.traffic[id].get());
            let least = options.iter().map(|&(_, cost)| cost).min().unwrap_or(0);
            let now = best.banks[id].and_then(|bank| options.iter().find(|option| option.0 == bank));
            match now {
                Some(&(_, cost)) => traffic * u128::from(cost - least),
                None => (traffic + 1) << 64,
            }
        };
        let mut order: Vec<BufferId> = problem.blocks.ids().filter(|&id| gain(&self.best, id) > 0).collect();
        order.sort_by_cached_key(|&id| {
            let size = u128::from(problem.blocks[id].size.get().max(1));
            (Reverse(gain(&self.best, id) / size), id)
        });
        for id in order.into_iter().take(PROMOTIONS) {
            let mut options = problem.options(id);
            options.sort_by_key(|&(_, cost)| cost);
            for (bank, _) in options {
                if self.best.banks[id] == Some(bank) {
                    break;
                }
                if self.stop_reason().is_some() {
                    return;
                }
                let members =
                    self.members(|other| if other == id { Some(bank) } else { self.best.banks[other] });
                let members = &members[bank as usize];
                let room = problem.banks[bank as usize].capacity;
                let live = problem.within(bank as usize, members).peak_live();
                if room.is_some_and(|room| live > room) {
                    continue;
                }
                if let Known::Placed(placement) = self.place(bank, members, PROMOTION) {
                    let (mut banks, mut offsets) = (self.best.banks.clone(), self.best.offsets.clone());
                    banks[id] = Some(bank);
                    for (&member, &offset) in members.iter().zip(placement.offsets.values()) {
                        offsets[member] = offset;
                    }
                    self.offer(BankedPlacement::new(problem, banks, offsets));
                    break;
                }
            }
        }
    }
}
