//! Random blocks for several banks, and the cheapest placement by brute force.

use elbowroom_ir::packing::{Block, Problem};
use elbowroom_ir::{BufferId, Bytes, Id};
use elbowroom_pack::{Bank, BankedProblem, csv};

use crate::brute::brute_force;
use crate::legal::Rule;
use crate::random::Random;
use crate::table::table;

/// A bank.
pub fn bank(name: &str, capacity: Option<u64>, cost: u64) -> Bank {
    Bank { name: name.into(), capacity: capacity.map(Bytes), cost }
}

/// Blocks with random banks, preferences and traffic, and the table of the blocks. Bits of `kinds` are those of [`table`]. `None` if a gap leaves
/// nothing of a lifetime.
pub fn banked(random: &mut Random, kinds: u64) -> Option<(String, BankedProblem)> {
    let text = table(random, 4, kinds);
    let blocks = csv::read(&text).ok()?.problem.blocks;
    let banks: Vec<Bank> = (0..1 + random.below(3))
        .map(|_| {
            let capacity = (random.below(4) > 0).then(|| random.below(10));
            bank("b", capacity, random.below(4))
        })
        .collect();
    let allowed = blocks.values().map(|_| {
        let mut all: Vec<u32> = (0..banks.len() as u32).collect();
        for at in (1..all.len()).rev() {
            all.swap(at, random.below(at as u64 + 1) as usize);
        }
        all.truncate(random.below(banks.len() as u64 + 1) as usize);
        all
    });
    let allowed: Vec<Vec<u32>> = allowed.collect();
    let traffic: Vec<Bytes> = blocks.values().map(|_| Bytes(random.below(8))).collect();
    Some((text, BankedProblem { blocks, banks, allowed: allowed.into(), traffic: traffic.into() }))
}

/// What a byte of a block's traffic costs in each bank; `None` where it may not lie.
fn costs(problem: &BankedProblem, block: BufferId) -> Vec<Option<u64>> {
    let listed = &problem.allowed[block];
    let mut costs: Vec<Option<u64>> = vec![None; problem.banks.len()];
    let mut ranked: Vec<u64> = listed.iter().map(|&bank| problem.banks[bank as usize].cost).collect();
    ranked.sort_unstable();
    for (&bank, cost) in listed.iter().zip(ranked) {
        costs[bank as usize] = Some(cost);
    }
    if listed.is_empty() {
        costs = problem.banks.iter().map(|bank| Some(bank.cost)).collect();
    }
    costs
}

/// The least spilled traffic (at least a byte for each block) and cost, by trying every assignment.
pub fn cheapest(problem: &BankedProblem, rule: Rule) -> (u64, u64) {
    let blocks = problem.blocks.as_slice();
    let banks = problem.banks.len();
    // Whether a set of blocks fits a bank, by bits.
    let mut fits = vec![vec![true; 1 << blocks.len()]; banks];
    for (bank, fits) in fits.iter_mut().enumerate() {
        for (set, fits) in fits.iter_mut().enumerate() {
            let members: Vec<Block> =
                (0..blocks.len()).filter(|i| set >> i & 1 == 1).map(|i| blocks[i].clone()).collect();
            let most = problem.banks[bank].capacity.map_or(40, Bytes::get);
            *fits = brute_force(&Problem { blocks: members.into(), capacity: None }, rule, most).is_some();
        }
    }
    let mut best = (u64::MAX, u64::MAX);
    for number in 0..(banks + 1).pow(blocks.len() as u32) {
        let (mut rest, mut sets, mut cost) = (number, vec![0usize; banks], (0, 0));
        let mut allowed = true;
        for id in problem.blocks.ids() {
            let bank = rest % (banks + 1);
            rest /= banks + 1;
            let traffic = problem.traffic[id].get();
            if bank == banks {
                cost.0 += traffic.max(1);
                continue;
            }
            sets[bank] |= 1 << id.index();
            match costs(problem, id)[bank] {
                Some(each) => cost.1 += traffic * each,
                None => allowed = false,
            }
        }
        if allowed && (0..banks).all(|bank| fits[bank][sets[bank]]) {
            best = best.min(cost);
        }
    }
    best
}
