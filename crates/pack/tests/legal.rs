//! Every packer's placements pass the quadratic judge, on problems with gaps, alignments, fixed offsets and capacities in every combination.

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Block, Interval, Packer, Problem};
use elbowroom_ir::search::{Budget, Silent, StopReason};
use elbowroom_pack::{PACKERS, validate};

#[path = "random/mod.rs"]
mod random;
use random::Random;

/// A problem with up to `len` blocks; bits of `kinds` switch gaps, alignments and fixed offsets on. Fixed blocks never clash.
fn problem(random: &mut Random, len: u64, kinds: u64) -> Problem {
    let len = 1 + random.below(len);
    blocks(random, len, kinds)
}

fn blocks(random: &mut Random, len: u64, kinds: u64) -> Problem {
    let horizon = 2 + random.below(2 * len);
    let mut blocks: Vec<Block> = Vec::new();
    for _ in 0..len {
        let start = random.below(horizon);
        let end = start + 1 + random.below(horizon - start);
        let mut block = Block::new(start, end, Bytes(random.below(20)));
        if kinds & 1 != 0 && end - start >= 3 && random.below(3) == 0 {
            block.alive = vec![Interval::new(start, start + 1), Interval::new(end - 1, end)];
        }
        if kinds & 2 != 0 && random.below(2) == 0 {
            block.align = Bytes([2, 4, 3, 16][random.below(4) as usize]);
        }
        if kinds & 4 != 0 && random.below(4) == 0 {
            let offset = random.below(30).next_multiple_of(block.align.get());
            let clashes = |other: &Block| {
                let at = other.fixed.map_or(u64::MAX, Bytes::get);
                at < offset + block.size.get()
                    && offset < at.saturating_add(other.size.get())
                    && other.conflicts(&block)
            };
            if !blocks.iter().any(clashes) {
                block.fixed = Some(Bytes(offset));
            }
        }
        blocks.push(block);
    }
    Problem { blocks: blocks.into(), capacity: None }
}

#[test]
fn every_packer_is_legal_under_every_combination_of_switches() {
    let mut random = Random::new(1);
    for round in 0..400 {
        let mut problem = problem(&mut random, 20, round % 8);
        assert_eq!(problem.validate(), Ok(()));
        let budget = Budget { threads: 1 + (round % 2) as usize, seed: round, ..Budget::evaluations(24) };
        for packer in PACKERS {
            // The program takes minutes where a search takes moments; small problems have every switch too.
            if packer.name() == "mip" && (problem.blocks.len() > 7 || round > 200) {
                continue;
            }
            problem.capacity = None;
            let outcome = packer.pack(&problem, &budget, &Silent);
            let placement =
                outcome.best.unwrap_or_else(|| panic!("{} gave nothing: {:?}", packer.name(), outcome.stop));
            assert_eq!(validate(&problem, &placement), Ok(()), "{} on {problem:?}", packer.name());
            assert!(placement.height >= problem.peak_live());
            for slack in 0..2 {
                problem.capacity = Some(Bytes((placement.height.get() + slack).saturating_sub(1)));
                let limited = packer.pack(&problem, &budget, &Silent);
                match limited.best {
                    Some(placement) => {
                        assert_eq!(
                            validate(&problem, &placement),
                            Ok(()),
                            "{} on {problem:?}",
                            packer.name()
                        );
                    }
                    None => assert!(
                        matches!(limited.stop, StopReason::GaveUp { .. } | StopReason::Infeasible(_)),
                        "{} on {problem:?}: {:?}",
                        packer.name(),
                        limited.stop
                    ),
                }
            }
        }
    }
}

#[test]
fn clashing_fixed_blocks_are_infeasible_and_named() {
    let fixed = |start, end, offset| Block { fixed: Some(Bytes(offset)), ..Block::new(start, end, Bytes(4)) };
    let problem =
        Problem { blocks: vec![fixed(0, 2, 0), fixed(2, 4, 1), fixed(3, 5, 4)].into(), capacity: None };
    for packer in PACKERS {
        let outcome = packer.pack(&problem, &Budget::default(), &Silent);
        assert!(outcome.best.is_none(), "{}", packer.name());
        let text = format!("{:?}", outcome.stop);
        assert!(text.contains("[b1, b2]"), "{}: {text}", packer.name());
    }
}

#[test]
fn nothing_to_place_is_placed() {
    let empty = Problem::default();
    let hollow = Problem { blocks: vec![Block::new(0, 3, Bytes(0))].into(), capacity: Some(Bytes(1)) };
    for packer in PACKERS {
        for problem in [&empty, &hollow] {
            let outcome = packer.pack(problem, &Budget::default(), &Silent);
            assert_eq!(outcome.best.map(|placement| placement.height), Some(Bytes(0)), "{}", packer.name());
            assert_eq!(outcome.stop, StopReason::Optimal, "{}", packer.name());
        }
    }
}

#[path = "../benches/generate.rs"]
mod generate;

#[test]
fn seed_and_evaluations_reproduce_the_result_on_any_number_of_threads() {
    // Some problems for the tree search, two large enough for orders and ejection chains, and one so large that most moves are advances.
    let tile: Vec<Block> = generate::training(400, 1).blocks.iter().map(|(_, block)| block.clone()).collect();
    for (problem, evaluations) in [
        (generate::tiling(120, 1 << 16, 5), 40),
        (generate::strip(150, 4), 90),
        (generate::cuts(180, 7), 90),
        (generate::open(311, 6), 140),
        (generate::full(160, 2), 140),
        (generate::training(1_800, 5), 12),
        (generate::overlapping(&tile, 2_600, 5, 3), 40),
        (generate::overlapping(&tile, 12_000, 5, 2), 40),
    ] {
        let pack = |threads| {
            let budget = Budget { threads, seed: 3, ..Budget::evaluations(evaluations) };
            elbowroom_pack::Auto.pack(&problem, &budget, &Silent)
        };
        let alone = pack(1);
        assert_eq!(alone, pack(2));
        assert_eq!(alone, pack(3));
        let placement = alone.best.expect("there is always a placement");
        assert_eq!(validate(&problem, &placement), Ok(()));
    }
}

#[test]
fn a_larger_budget_continues_a_smaller_one() {
    let problem = generate::strip(60, 5);
    let mut last = (0, Bytes::MAX);
    for evaluations in 1..120 {
        let budget = Budget { threads: 1 + (evaluations % 3) as usize, ..Budget::evaluations(evaluations) };
        let outcome = elbowroom_pack::Auto.pack(&problem, &budget, &Silent);
        let placement = outcome.best.expect("there is always a placement");
        assert_eq!(validate(&problem, &placement), Ok(()));
        assert!(
            outcome.evaluations <= evaluations && placement.height <= last.1,
            "{evaluations} after {last:?}"
        );
        last = (evaluations, placement.height);
    }
}

#[test]
fn strips_have_their_stated_optimum_as_the_peak() {
    for seed in 0..20 {
        let problem = generate::strip(150 + 15 * seed as usize, seed);
        assert_eq!((problem.validate(), problem.peak_live()), (Ok(()), Bytes(1 << 20)));
    }
}

#[test]
fn mending_long_problems_is_legal_under_every_combination_of_switches() {
    let mut random = Random::new(2);
    for kinds in 0..8 {
        let problem = blocks(&mut random, 1_600, kinds);
        let budget = Budget { seed: kinds, threads: 2, ..Budget::evaluations(64) };
        let outcome = elbowroom_pack::Auto.pack(&problem, &budget, &Silent);
        let placement = outcome.best.expect("there is always a placement");
        assert_eq!(validate(&problem, &placement), Ok(()), "switches {kinds}");
    }
}

#[test]
fn auto_is_never_worse_than_the_greedy_packers() {
    // Up to 4,000 blocks from the first evaluation on; beyond, once each of them has had its turn.
    for (problem, evaluations) in [
        (generate::tiling(200, 1 << 16, 5), 1),
        (generate::training(1_200, 5), 1),
        (generate::training(4_500, 5), 24),
    ] {
        let height = |name: &str| {
            let packer = elbowroom_pack::packer(name).expect(name);
            packer.pack(&problem, &Budget::evaluations(evaluations), &Silent).best.map(|best| best.height)
        };
        for greedy in ["best-fit", "smartpool-best", "smartpool-first", "size", "conflict"] {
            assert!(height("auto") <= height(greedy), "{greedy} on {} blocks", problem.blocks.len());
        }
    }
}

#[test]
fn generated_iterations_defeat_largest_first_and_not_auto() {
    let problem = generate::training(12_000, 1);
    let peak = problem.peak_live();
    let height = |packer: &dyn Packer| {
        packer
            .pack(&problem, &Budget::evaluations(60), &Silent)
            .best
            .map_or(u64::MAX, |best| best.height.get())
    };
    assert!(height(&elbowroom_pack::GreedyBySize) > peak.get());
    let auto = height(&elbowroom_pack::Auto);
    assert!(auto <= peak.get() + peak.get() / 1_000, "{auto} bytes, peak load {peak:?}");
}
