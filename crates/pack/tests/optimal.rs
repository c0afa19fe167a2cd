//! `exact` against brute force and against the golden optima; capacities answered yes and no, with the blocks to blame.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use elbowroom_ir::packing::{Block, Packer, Problem};
use elbowroom_ir::search::{Budget, Infeasible, Observer, Silent, StopReason};
use elbowroom_ir::{BufferId, Bytes, Id};
use elbowroom_pack::{Auto, Exact, validate};

#[path = "../benches/generate.rs"]
#[expect(dead_code, reason = "other tests use the other kinds of problems")]
mod generate;
#[path = "random/mod.rs"]
mod random;
use random::Random;

/// The lowest height: for one height after another, every arrangement of the live blocks that can be reached, block by block in order of time.
fn brute_force(problem: &Problem) -> u64 {
    let mut blocks: Vec<(u64, u64, u64, u64)> = problem
        .blocks
        .values()
        .map(|b| (b.alive[0].start, b.alive[0].end, b.size.get(), b.align.get()))
        .collect();
    blocks.sort_unstable();
    let fits = |&height: &u64| {
        // An arrangement is the live blocks as (offset, size, end).
        let mut reached = BTreeSet::from([Vec::new()]);
        for &(start, end, size, align) in &blocks {
            let mut next = BTreeSet::new();
            for arrangement in &reached {
                let alive: Vec<(u64, u64, u64)> =
                    arrangement.iter().copied().filter(|&(_, _, until)| until > start).collect();
                for offset in
                    (0..(height + 1).saturating_sub(size)).filter(|offset| offset.is_multiple_of(align))
                {
                    if alive.iter().all(|&(at, other, _)| offset + size <= at || at + other <= offset) {
                        let mut more = alive.clone();
                        more.push((offset, size, end));
                        more.sort_unstable();
                        next.insert(more);
                    }
                }
            }
            reached = next;
        }
        !reached.is_empty()
    };
    (problem.peak_live().get()..).find(fits).expect("some height fits")
}

/// Blocks that fill `height` bytes at every position: whenever two end, others of the same total begin, often a single one, which needs
/// their bytes in one piece. Many such problems cannot be packed into their peak load. A third of them get alignments.
fn case(random: &mut Random, height: u64, steps: u64) -> Problem {
    let mut free = height;
    let mut alive: Vec<(u64, u64)> = Vec::new();
    let mut blocks = Vec::new();
    for now in 0..steps {
        while free > 0 {
            let whole = now > 0 && random.below(2) > 0;
            let size = if whole { free } else { 1 + random.below(free.min(2)) };
            alive.push((now, size));
            free -= size;
        }
        for _ in 0..alive.len().min(2) {
            let (start, size) = alive.remove(random.below(alive.len() as u64) as usize);
            blocks.push(Block::new(start, now + 1, Bytes(size)));
            free += size;
        }
    }
    blocks.extend(alive.into_iter().map(|(start, size)| Block::new(start, steps, Bytes(size))));
    if random.below(3) == 0 {
        for block in &mut blocks {
            block.align = Bytes(1 + random.below(2));
        }
    }
    Problem { blocks: blocks.into(), capacity: None }
}

#[test]
fn exact_agrees_with_brute_force_also_above_the_peak_load() {
    let mut random = Random::new(7);
    let (mut cases, mut above) = (0, 0);
    while cases < 200 || above < 50 {
        let mut problem = if cases < 150 { case(&mut random, 6, 8) } else { case(&mut random, 9, 24) };
        let aligned = problem.blocks.values().any(|block| block.align != Bytes(1));
        if cases >= 150 {
            // A placement at the peak load needs no brute force to be believed; the other cases are the rare ones wanted here.
            let budget = Budget::evaluations(12);
            let height = Exact.pack(&problem, &budget, &Silent).best.map(|placement| placement.height);
            if aligned || height == Some(problem.peak_live()) {
                continue;
            }
        }
        cases += 1;
        let optimum = brute_force(&problem);
        above += u32::from(!aligned && optimum > problem.peak_live().get());
        let outcome = Exact.pack(&problem, &Budget::default(), &Silent);
        assert_eq!(outcome.stop, StopReason::Optimal, "{problem:?}");
        let placement = outcome.best.expect("optimal means found");
        assert_eq!(validate(&problem, &placement), Ok(()));
        assert_eq!(placement.height, Bytes(optimum), "{problem:?}");
        // The portfolio is patient with proofs only as far as its budget goes, but what it claims must hold.
        let outcome = Auto.pack(&problem, &Budget::evaluations(60), &Silent);
        let height = outcome.best.expect("there is always a placement").height;
        assert!(
            height >= Bytes(optimum) && (height == Bytes(optimum) || outcome.stop != StopReason::Optimal),
            "{problem:?}"
        );
        problem.capacity = Some(Bytes(optimum));
        let fits = Exact.pack(&problem, &Budget::default(), &Silent);
        assert!(fits.best.is_some_and(|placement| validate(&problem, &placement).is_ok()));
        problem.capacity = Some(Bytes(optimum - 1));
        let outcome = Exact.pack(&problem, &Budget::default(), &Silent);
        let StopReason::Infeasible(why) = outcome.stop else { panic!("{:?} on {problem:?}", outcome.stop) };
        let Infeasible::Blocks { blocks, needed, limit } = *why else { panic!("blocks are to blame") };
        assert!(needed > limit && limit == Bytes(optimum - 1));
        if cases % 8 == 0 {
            irreducible(&problem, &blocks, optimum - 1);
        }
    }
}

/// The named blocks do not fit, and do without any one of them.
fn irreducible(problem: &Problem, blocks: &[BufferId], capacity: u64) {
    let only = |keep: &dyn Fn(BufferId) -> bool| {
        let blocks = blocks.iter().filter(|&&id| keep(id)).map(|&id| problem.blocks[id].clone()).collect();
        Problem { blocks, capacity: None }
    };
    assert!(brute_force(&only(&|_| true)) > capacity, "{blocks:?} of {problem:?}");
    let tight = problem.peak_live().get() > capacity;
    for &left_out in blocks {
        // A full section is named whole, as it is the plainest proof.
        assert!(
            tight || brute_force(&only(&|id| id != left_out)) <= capacity,
            "{blocks:?} without {left_out} of {problem:?}"
        );
    }
    assert!(blocks.iter().all(|id| id.index() < problem.blocks.len()));
}

/// Remembers the highest lower bound.
#[derive(Default)]
struct HighestBound(AtomicU64);

impl Observer for HighestBound {
    fn improved(&self, _: u64, bound: u64) {
        self.0.fetch_max(bound, Ordering::Relaxed);
    }
}

#[test]
fn a_short_stretch_of_time_proves_a_bound_above_the_peak() {
    let hard = generate::strip(150, 3);
    let mut random = Random::new(11);
    let mut tried = 0;
    while tried < 2 {
        let part = case(&mut random, 6, 6);
        let (peak, optimum) = (part.peak_live().get(), brute_force(&part));
        let last: Vec<u64> =
            part.blocks.values().filter(|b| b.alive[0].end == 6).map(|b| b.size.get()).collect();
        let aligned = part.blocks.values().any(|block| block.align.get() > 1);
        let Some(&smallest) = last.iter().min() else { continue };
        if aligned || optimum == peak || 2 * smallest > peak {
            continue;
        }
        tried += 1;
        // A hard problem follows, which no search here gets to the end of. It is a little lower, and one block connects the two.
        let unit = (100 * hard.peak_live().get()).div_ceil(98 * peak - 100 * smallest);
        let mut connected = false;
        let mut blocks: Vec<Block> = part
            .blocks
            .values()
            .map(|block| {
                let connects = !connected && block.alive[0].end == 6 && block.size.get() == smallest;
                connected |= connects;
                let end = block.alive[0].end + u64::from(connects);
                Block::new(block.alive[0].start, end, Bytes(unit * block.size.get()))
            })
            .collect();
        blocks.extend(
            hard.blocks
                .values()
                .map(|block| Block::new(6 + block.alive[0].start, 6 + block.alive[0].end, block.size)),
        );
        let problem = Problem { blocks: blocks.into(), capacity: None };
        assert_eq!(problem.peak_live().get(), unit * peak);
        let bound = HighestBound::default();
        let outcome = Auto.pack(&problem, &Budget { threads: 2, ..Budget::evaluations(900) }, &bound);
        let (bound, height) = (bound.0.into_inner(), outcome.best.expect("a placement").height.get());
        assert!(unit * peak < bound, "{bound} of {}", unit * optimum);
        // The hard part is lower than `peak`: the optimum of all is that of the first part, or what the search found.
        assert!(bound <= height && bound <= unit * optimum.max(height.div_ceil(unit)), "{bound}, {height}");
        // With the peak as the capacity, blocks of the first part are to blame.
        let tight = Problem { capacity: Some(Bytes(unit * peak)), ..problem };
        let outcome = Auto.pack(&tight, &Budget { threads: 2, ..Budget::evaluations(900) }, &Silent);
        let StopReason::Infeasible(why) = &outcome.stop else { panic!("{:?}", outcome.stop) };
        let Infeasible::Blocks { blocks, .. } = why.as_ref() else { panic!("blocks are to blame") };
        assert!(blocks.iter().all(|id| id.index() < part.blocks.len()), "{blocks:?}");
    }
}

#[test]
fn strips_with_missing_pieces_are_placed_at_their_optimum() {
    // Problems of which each defeats searches of corners for more than five seconds unless missing pieces are joined like those that are there.
    for seed in [58, 100, 140, 508] {
        let problem = generate::cuts(150 + seed as usize * 77 % 301, seed);
        let outcome = Auto.pack(&problem, &Budget { threads: 2, ..Budget::evaluations(400) }, &Silent);
        assert_eq!(outcome.stop, StopReason::Optimal, "seed {seed}");
        let placement = outcome.best.expect("optimal means found");
        assert_eq!(validate(&problem, &placement), Ok(()), "seed {seed}");
        assert_eq!(placement.height, problem.peak_live(), "seed {seed}");
        let alone = Auto.pack(&problem, &Budget::evaluations(400), &Silent);
        let evaluations = (alone.evaluations, outcome.evaluations);
        assert_eq!(alone.best, Some(placement), "seed {seed}, evaluations {evaluations:?}");
    }
}

#[test]
fn strips_with_much_missing_are_placed_low() {
    let height = |seed: u64, evaluations: u64| {
        let problem = generate::open(150 + seed as usize * 77 % 301, seed);
        let budget = Budget { threads: 2, ..Budget::evaluations(evaluations) };
        let outcome = Auto.pack(&problem, &budget, &Silent);
        let placement = outcome.best.expect("there is always a placement");
        assert_eq!(validate(&problem, &placement), Ok(()), "seed {seed}");
        (placement.height, problem.peak_live())
    };
    // Their mean load is 0.85 to 0.88 of the highest.
    for seed in [12, 20] {
        let (height, peak) = height(seed, 60);
        assert_eq!(height, peak, "seed {seed}");
    }
    // The peak load is out of reach of any search known; 15 % above it was found in ten seconds without trees of composites.
    let (height, peak) = height(26, 300);
    assert!(height.ratio(peak) < 1.10, "{height} of {peak}");
}
