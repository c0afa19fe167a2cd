//! Placement in banks by one pass: every block goes to the cheapest bank that has a hole for it. In order of falling sizes this is the planner
//! `banked_greedy` of ExecuTorch (pull request 21821), whose pins come first too.

use std::cmp::Reverse;

use elbowroom_ir::packing::{Block, Problem};
use elbowroom_ir::{BufferId, Bytes, Id};

use super::model::{BankedPlacement, BankedProblem};
use crate::clock::Clock;
use crate::instance::Instance;
use crate::order_keys::order_by;
use crate::partial_placement::{Fit, PartialPlacement};
use crate::windowed::without_windows;

/// A block's measures, by which passes are ordered.
struct Measure {
    pinned: bool,
    size: u64,
    traffic: u64,
    /// What its traffic costs more in its second cheapest bank.
    loss: u64,
}

/// The order of a pass: the key of a block.
type Key = fn(&Measure) -> Reverse<u128>;

/// By size; by what is lost for each byte if the best bank is full; by traffic for each byte.
const KEYS: [Key; 3] = [
    |m| Reverse(u128::from(m.size)),
    |m| Reverse((u128::from(m.loss) << 40) / u128::from(m.size.max(1))),
    |m| Reverse((u128::from(m.traffic) << 40) / u128::from(m.size.max(1))),
];

/// The placements of all passes, in the order of [`KEYS`], up to the first that stops before its end.
pub(super) fn passes(problem: &BankedProblem, clock: &Clock<'_>) -> Vec<BankedPlacement> {
    // Windows are taken as whole here: what is legal then is legal with them.
    let blocks =
        problem.blocks.values().map(|block| Block { hint: None, ..without_windows(block, None) }).collect();
    let instance = Instance::cut(&Problem { blocks, capacity: None });
    let measure = |i: usize| {
        let id = BufferId::new(instance.items[i].block as usize);
        let mut costs: Vec<u64> = problem.options(id).iter().map(|&(_, cost)| cost).collect();
        costs.sort_unstable();
        let traffic = problem.traffic[id].get();
        let step = costs.get(1).map_or(u64::MAX >> 8, |second| second - costs[0]);
        Measure {
            pinned: costs.len() == 1,
            size: instance.items[i].size,
            traffic,
            loss: traffic.max(1).saturating_mul(step),
        }
    };
    let measures: Vec<Measure> = (0..instance.len()).map(measure).collect();
    let mut stops = clock.stops_above(instance.len());
    let mut pass = |key: &Key| {
        let order = order_by(&instance, |i| {
            let block = &problem.blocks.as_slice()[instance.items[i].block as usize];
            (block.fixed.is_none(), !measures[i].pinned, key(&measures[i]))
        });
        let mut banks: Vec<PartialPlacement<'_>> =
            problem.banks.iter().map(|_| PartialPlacement::new(&instance, Fit::First)).collect();
        // Blocks of zero bytes are no items; they lie anywhere.
        let mut chosen = vec![None; problem.blocks.len()];
        let mut offsets = vec![Bytes::ZERO; problem.blocks.len()];
        for (id, block) in problem.blocks.iter().filter(|(_, block)| block.size.is_zero()) {
            let at = block.fixed.unwrap_or_default();
            let mut options = problem.options(id);
            options.retain(|&(bank, _)| problem.banks[bank as usize].capacity.is_none_or(|most| at <= most));
            chosen[id.index()] = options.iter().min_by_key(|(_, cost)| *cost).map(|&(bank, _)| bank);
            offsets[id.index()] = if chosen[id.index()].is_some() { at } else { Bytes::ZERO };
        }
        for item in order {
            if stops() {
                return None;
            }
            let item = item as usize;
            let id = BufferId::new(instance.items[item].block as usize);
            let mut options = problem.options(id);
            options.sort_by_key(|&(_, cost)| cost);
            for (bank, _) in options {
                let ceiling = problem.banks[bank as usize].capacity.map_or(1 << 62, Bytes::get);
                let placed = &mut banks[bank as usize];
                let offset = match problem.blocks[id].fixed.map(Bytes::get) {
                    Some(at) => {
                        let ends = at + instance.items[item].bytes;
                        (ends <= ceiling && placed.place_at(item, at)).then_some(at)
                    }
                    None => placed.place_within(item, ceiling),
                };
                if let Some(offset) = offset {
                    chosen[id.index()] = Some(bank);
                    offsets[id.index()] = Bytes(offset);
                    break;
                }
            }
        }
        Some(BankedPlacement::new(problem, chosen.into(), offsets.into()))
    };
    KEYS.iter().map_while(&mut pass).collect()
}
