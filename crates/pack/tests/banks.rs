//! Placement in several banks: legal, never worse than first-fit, and proved rightly against brute force.

use elbowroom_ir::packing::Block;
use elbowroom_ir::search::{Budget, Silent, StopReason};
use elbowroom_ir::{BufferId, Bytes};
use elbowroom_pack::{
    BankedError, BankedPlacement, BankedPlacementError, BankedProblem, pack_banks, validate_banks,
};

#[path = "random/banked.rs"]
mod banked;
#[path = "random/brute.rs"]
mod brute;
#[path = "random/legal.rs"]
mod legal;
#[path = "random/mod.rs"]
mod random;
#[path = "random/table.rs"]
mod table;
use banked::{bank, banked, cheapest};
use legal::Rule;
use random::Random;

fn measure(problem: &BankedProblem, placement: &BankedPlacement) -> (u64, u64) {
    let spilled = placement.spilled.iter().map(|&id| problem.traffic[id].get().max(1)).sum();
    (spilled, placement.cost)
}

fn fuzz(seed: u64, files: u64) -> [u64; 3] {
    let mut random = Random::new(seed);
    let [mut proved, mut spilled, mut split] = [0; 3];
    for number in 0..files {
        let Some((_, problem)) = banked(&mut random, number % 32) else { continue };
        assert_eq!(problem.validate(), Ok(()), "{problem:?}");
        let [bytes, ordered] = [Rule::Bytes, Rule::Ordered].map(|rule| cheapest(&problem, rule));
        let budget = Budget { seed: number, ..Budget::evaluations(2_000) };
        let outcome = pack_banks(&problem, &budget, &Silent);
        let best = outcome.best.expect("there is always a placement");
        assert_eq!(validate_banks(&problem, &best), Ok(()), "{problem:?} {best:?}");
        let found = measure(&problem, &best);
        assert!(found >= ordered, "{found:?} {ordered:?} {problem:?}");
        if outcome.stop == StopReason::Optimal {
            assert_eq!(found, ordered, "{problem:?} {best:?}");
            proved += 1;
        } else {
            // Where both rules for windows agree, nothing is left open.
            assert!(bytes != ordered, "{:?} {problem:?} {best:?}", outcome.stop);
        }
        spilled += u64::from(!best.spilled.is_empty());
        let used = best.heights.iter().filter(|height| **height > Bytes::ZERO).count();
        split += u64::from(used > 1);
    }
    [proved, spilled, split]
}

#[test]
fn random_problems_are_placed_legally_and_proved_rightly() {
    let [proved, spilled, split] = fuzz(1, 640);
    assert!(proved > 500 && spilled > 100 && split > 50, "{proved} {spilled} {split}");
}

#[test]
#[ignore = "ten thousand problems take minutes"]
fn ten_thousand_random_problems_are_placed_legally_and_proved_rightly() {
    let [proved, spilled, split] = fuzz(2, 10_000);
    assert!(proved > 8_000 && spilled > 1_000 && split > 500, "{proved} {spilled} {split}");
}

/// A network on a microcontroller: tightly coupled memory, SRAM, and DRAM without a limit.
fn network(len: u64) -> BankedProblem {
    let mut random = Random::new(8);
    let block = |i| Block::new(i, i + 2 + random.below(6), Bytes(256 * (1 + random.below(60))));
    let blocks: Vec<Block> = (0..len).map(block).collect();
    let traffic = blocks.iter().map(|block| Bytes(block.size.get() * (1 + random.below(9)))).collect();
    let allowed = (0..len).map(|i| if i % 17 == 3 { vec![1] } else { vec![] }).collect();
    BankedProblem {
        blocks: blocks.into(),
        banks: vec![bank("tcm", Some(16 << 10), 1), bank("sram", Some(28 << 10), 3), bank("dram", None, 20)],
        allowed,
        traffic,
    }
}

#[test]
fn blocks_that_are_used_most_lie_in_the_fastest_bank() {
    for len in [40, 400, 6_000] {
        let problem = network(len);
        let outcome = pack_banks(&problem, &Budget::evaluations(600), &Silent);
        let best = outcome.best.expect("a placement");
        assert_eq!(validate_banks(&problem, &best), Ok(()));
        assert!(best.spilled.is_empty(), "{:?}", best.spilled);
        // First-fit by size puts the largest first, whatever their traffic.
        let first = pack_banks(&problem, &Budget::evaluations(3), &Silent).best.expect("a placement");
        assert!(best.cost <= first.cost, "{} {}", best.cost, first.cost);
        let all_slow: u64 = problem.traffic.values().map(|traffic| 20 * traffic.get()).sum();
        assert!(best.cost < all_slow / 2, "{} of {all_slow}", best.cost);
    }
}

#[test]
fn pins_come_first_and_what_does_not_fit_is_named() {
    let mut problem = BankedProblem {
        blocks: [8, 8, 6].map(|size| Block::new(0, 2, Bytes(size))).to_vec().into(),
        banks: vec![bank("fast", Some(10), 1), bank("slow", Some(8), 5)],
        allowed: vec![vec![], vec![0], vec![]].into(),
        traffic: vec![Bytes(80), Bytes(8), Bytes(6)].into(),
    };
    let best = pack_banks(&problem, &Budget::default(), &Silent).best.expect("a placement");
    // The pin takes the fast bank although others are used more; the least used of the others fits nowhere.
    assert_eq!(best.banks.as_slice(), [Some(1), Some(0), None]);
    assert_eq!((best.spilled.as_slice(), best.spilled_bytes), (&[BufferId(2)][..], Bytes(6)));
    problem.banks[1].capacity = Some(Bytes(14));
    let outcome = pack_banks(&problem, &Budget::default(), &Silent);
    let best = outcome.best.expect("a placement");
    assert_eq!((best.spilled.len(), best.cost, outcome.stop), (0, 80 * 5 + 8 + 6 * 5, StopReason::Optimal));
    // A bank of its own, without a limit, holds nothing that is not pinned there.
    problem.banks.push(bank("dma", None, 100));
    problem.allowed[BufferId(0)] = vec![0, 1];
    problem.allowed[BufferId(2)] = vec![2];
    let best = pack_banks(&problem, &Budget::default(), &Silent).best.expect("a placement");
    assert_eq!(best.banks.as_slice(), [Some(1), Some(0), Some(2)]);
}

#[test]
fn the_validator_refuses_what_is_wrong() {
    let problem = BankedProblem {
        blocks: [8, 8].map(|size| Block::new(0, 2, Bytes(size))).to_vec().into(),
        banks: vec![bank("fast", Some(10), 1), bank("slow", None, 5)],
        allowed: vec![vec![0], vec![]].into(),
        traffic: vec![Bytes(8), Bytes(8)].into(),
    };
    let place = |banks: [Option<u32>; 2], offsets: [u64; 2]| {
        BankedPlacement::new(&problem, banks.to_vec().into(), offsets.map(Bytes).to_vec().into())
    };
    assert_eq!(validate_banks(&problem, &place([Some(0), Some(1)], [0, 0])), Ok(()));
    let wrong = |placement: &BankedPlacement| validate_banks(&problem, placement).expect_err("it is illegal");
    assert!(matches!(wrong(&place([Some(1), Some(1)], [0, 8])), BankedPlacementError::Forbidden { .. }));
    assert!(matches!(wrong(&place([Some(0), Some(0)], [0, 4])), BankedPlacementError::Bank { bank: 0, .. }));
    assert!(matches!(wrong(&place([Some(0), Some(0)], [0, 8])), BankedPlacementError::Bank { bank: 0, .. }));
    let mut stated = place([Some(0), Some(1)], [0, 0]);
    stated.cost -= 1;
    assert_eq!(wrong(&stated), BankedPlacementError::Stated);
    let mut bad = problem.clone();
    bad.allowed[BufferId(1)] = vec![2];
    assert!(matches!(bad.validate(), Err(BankedError::UnknownBank { bank: 2, banks: 2, .. })));
    bad.banks.clear();
    assert_eq!(bad.validate(), Err(BankedError::NoBanks));
    let mut costly = problem;
    costly.banks[1].cost = u64::MAX;
    assert_eq!(costly.validate(), Err(BankedError::TooCostly));
}

#[test]
fn results_repeat_on_any_number_of_threads() {
    let problem = network(60);
    let pack = |threads| pack_banks(&problem, &Budget { threads, ..Budget::evaluations(90) }, &Silent);
    assert_eq!(pack(1), pack(2));
}
