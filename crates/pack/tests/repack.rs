//! Placement after a change: what is moved is legal, and least against brute force.

use elbowroom_ir::packing::{Block, Packer, Problem};
use elbowroom_ir::search::{Budget, Infeasible, Silent, StopReason};
use elbowroom_ir::{BufferId, Bytes, Id};
use elbowroom_pack::{Auto, Repacked, csv, repack, validate};

#[path = "random/legal.rs"]
mod legal;
#[path = "random/mod.rs"]
mod random;
#[path = "random/table.rs"]
mod table;
use legal::{Rule, legal};
use random::Random;
use table::table;

/// The fewest bytes that a placement of at most `height` bytes moves, by trying every offset of every block.
fn fewest(blocks: &[Block], previous: &[Option<Bytes>], height: u64, rule: Rule) -> Option<u64> {
    fn extend(
        blocks: &[Block],
        previous: &[Option<Bytes>],
        offsets: &mut Vec<u64>,
        moved: u64,
        (height, rule): (u64, Rule),
        best: &mut Option<u64>,
    ) {
        if best.is_some_and(|best| moved >= best) {
            return;
        }
        let Some(block) = blocks.get(offsets.len()) else {
            *best = Some(moved);
            return;
        };
        for offset in 0..=height.saturating_sub(block.size.get()) {
            let fits = offset + block.size.get() <= height
                && offset.is_multiple_of(block.align.get())
                && block.fixed.is_none_or(|fixed| fixed.get() == offset)
                && blocks.iter().zip(offsets.iter()).all(|(b, &y)| legal(block, offset, b, y, rule));
            if fits {
                let before = previous[offsets.len()];
                let moves = before.is_some_and(|before| before.get() != offset);
                offsets.push(offset);
                let moved = moved + if moves { block.size.get() } else { 0 };
                extend(blocks, previous, offsets, moved, (height, rule), best);
                offsets.pop();
            }
        }
    }
    let mut best = None;
    extend(blocks, previous, &mut Vec::new(), 0, (height, rule), &mut best);
    best
}

/// A problem, its placement by `auto`, and a change of it: blocks are dropped, resized, and added.
fn changed(random: &mut Random, len: u64, kinds: u64) -> Option<(Problem, Vec<Option<Bytes>>)> {
    let before = csv::read(&table(random, len, kinds)).ok()?.problem;
    let placed = Auto.pack(&before, &Budget::evaluations(20), &Silent).best?;
    let mut blocks = Vec::new();
    let mut previous = Vec::new();
    for (id, block) in before.blocks.iter() {
        let mut block = block.clone();
        match random.below(6) {
            0 => continue,
            1 if block.windows.is_empty() => block.size = Bytes(random.below(6)),
            2 => block.fixed = None,
            _ => {}
        }
        blocks.push(block);
        previous.push(Some(placed.offsets[id]));
    }
    for _ in 0..random.below(3) {
        let start = random.below(8);
        blocks.push(Block::new(start, start + 1 + random.below(6), Bytes(random.below(6))));
        previous.push(None);
    }
    Some((Problem { blocks: blocks.into(), capacity: None }, previous))
}

/// What is claimed of the difference to the earlier placement.
fn judge(problem: &Problem, previous: &[Option<Bytes>], found: &Repacked) {
    assert_eq!(validate(problem, &found.placement), Ok(()), "{problem:?}");
    let moves = |id: &BufferId| previous[id.index()].is_some_and(|at| at != found.placement.offsets[*id]);
    let moved: Vec<BufferId> = problem.blocks.ids().filter(moves).collect();
    assert_eq!(moved, found.moved, "{problem:?}");
    assert_eq!(moved.iter().map(|&id| problem.blocks[id].size).sum::<Bytes>(), found.moved_bytes);
    assert!(found.least_moved <= found.moved_bytes);
}

fn fuzz(seed: u64, rounds: u64) -> [u64; 3] {
    let mut random = Random::new(seed);
    let [mut kept, mut moved, mut refused] = [0; 3];
    for round in 0..rounds {
        let Some((mut problem, previous)) = changed(&mut random, 4, round % 32) else { continue };
        let blocks = problem.blocks.as_slice().to_vec();
        let least =
            |height| [Rule::Bytes, Rule::Ordered].map(|rule| fewest(&blocks, &previous, height, rule));
        // Without a capacity, every block that is moved or new has room above the others.
        let room = blocks.iter().map(|block| block.size.get() + block.align.get()).sum::<u64>();
        let room = room + previous.iter().flatten().map(|at| at.get()).max().unwrap_or(0) + 6;
        let tallest = Auto.pack(&problem, &Budget::evaluations(20), &Silent).best.map(|p| p.height.get());
        for capacity in
            [None, tallest, tallest.map(|height| height.saturating_sub(1)), tallest.map(|h| h + 1)]
        {
            if capacity.is_none() && (room > 24 || blocks.len() > 4) {
                continue;
            }
            problem.capacity = capacity.map(Bytes);
            let budget = Budget { seed: round, ..Budget::evaluations(2_000) };
            let outcome = repack(&problem, &previous, &budget, &Silent);
            let [bytes, ordered] = least(capacity.unwrap_or(room));
            match (&outcome.best, &outcome.stop) {
                (Some(found), stop) => {
                    judge(&problem, &previous, found);
                    let at_least = ordered.expect("a placement exists");
                    assert!(found.moved_bytes.get() >= at_least, "{problem:?} {previous:?}");
                    assert!(found.least_moved.get() <= at_least, "{found:?} {problem:?} {previous:?}");
                    if *stop == StopReason::Optimal {
                        assert_eq!(found.moved_bytes.get(), at_least, "{found:?} {problem:?} {previous:?}");
                    }
                    // Where both rules for windows agree, nothing is left open.
                    let open = capacity.is_some() && *stop != StopReason::Optimal;
                    assert!(!open || bytes != ordered, "{stop:?} {found:?} {problem:?} {previous:?}");
                    kept += u64::from(found.moved.is_empty());
                    moved += u64::from(found.moved_bytes > Bytes::ZERO);
                }
                (None, StopReason::Infeasible(proof)) => {
                    let Infeasible::Blocks { blocks: core, .. } = proof.as_ref() else { panic!("{proof:?}") };
                    let core: Vec<Block> = core.iter().map(|&id| problem.blocks[id].clone()).collect();
                    let none = vec![None; core.len()];
                    let height = capacity.unwrap_or(room);
                    assert_eq!(fewest(&core, &none, height, Rule::Ordered), None, "{proof:?} {problem:?}");
                    refused += 1;
                }
                (None, stop) => assert!(bytes != ordered, "{stop:?} {problem:?} {previous:?}"),
            }
        }
    }
    [kept, moved, refused]
}

#[test]
fn the_fewest_bytes_are_moved() {
    let [kept, moved, refused] = fuzz(1, 640);
    assert!(kept > 100 && moved > 100 && refused > 50, "{kept} kept all, {moved} moved, {refused} refused");
}

#[test]
#[ignore = "ten thousand problems take minutes"]
fn the_fewest_bytes_are_moved_in_ten_thousand_problems() {
    let [kept, moved, refused] = fuzz(2, 10_000);
    assert!(kept > 1_000 && moved > 1_000 && refused > 500, "{kept} {moved} {refused}");
}

#[test]
fn results_repeat_on_any_number_of_threads() {
    let mut random = Random::new(9);
    for round in 0..20 {
        let Some((mut problem, previous)) = changed(&mut random, 40, round % 32) else { continue };
        let tallest = Auto.pack(&problem, &Budget::evaluations(20), &Silent).best.map(|best| best.height);
        problem.capacity = tallest;
        let pack = |threads| {
            let budget = Budget { threads, seed: round, ..Budget::evaluations(60) };
            repack(&problem, &previous, &budget, &Silent)
        };
        assert_eq!(pack(1), pack(2));
    }
}

/// Iterations of a pipeline: `len` buffers, ten alive at once.
fn pipeline(len: u64) -> Problem {
    let mut random = Random::new(4);
    let block = |i| Block::new(i, i + 5 + random.below(11), Bytes(64 * (1 + random.below(40))));
    Problem { blocks: (0..len).map(block).collect(), capacity: None }
}

#[test]
fn a_small_change_of_a_large_problem_moves_little() {
    let mut problem = pipeline(5_000);
    let placed = Auto.pack(&problem, &Budget::evaluations(60), &Silent).best.expect("a placement");
    let total: u64 = problem.blocks.values().map(|block| block.size.get()).sum();
    let mut previous: Vec<Option<Bytes>> = placed.offsets.values().copied().map(Some).collect();
    // Every 250th buffer grows by a tenth, and ten are new.
    let mut blocks = problem.blocks.as_slice().to_vec();
    blocks.iter_mut().step_by(250).for_each(|block| block.size = Bytes(block.size.get() * 11 / 10));
    for i in 0..10 {
        blocks.push(Block::new(500 * i, 500 * i + 4, Bytes(640)));
        previous.push(None);
    }
    problem.blocks = blocks.into();
    let height = placed.height.get();
    let free = repack(&problem, &previous, &Budget::evaluations(30), &Silent).best.expect("a placement");
    judge(&problem, &previous, &free);
    assert_eq!(free.moved_bytes, free.least_moved);
    for capacity in [height * 102 / 100, height * 110 / 100] {
        problem.capacity = Some(Bytes(capacity));
        let found = repack(&problem, &previous, &Budget::evaluations(60), &Silent).best.expect("a placement");
        judge(&problem, &previous, &found);
        assert!(found.moved_bytes >= free.moved_bytes);
        assert!(found.moved_bytes.get() * 20 < total, "{} of {total} bytes", found.moved_bytes.get());
    }
}

#[test]
fn an_unchanged_problem_stays_where_it_is() {
    let problem = pipeline(300);
    let placed = Auto.pack(&problem, &Budget::evaluations(60), &Silent).best.expect("a placement");
    let previous: Vec<_> = placed.offsets.values().copied().map(Some).collect();
    let outcome = repack(&problem, &previous, &Budget::evaluations(60), &Silent);
    let found = outcome.best.expect("a placement");
    assert_eq!((found.placement, found.moved, outcome.stop), (placed, vec![], StopReason::Optimal));
}

#[test]
fn a_capacity_that_only_another_placement_meets_is_met() {
    // At the peak of live memory nearly everything has to move; the clock must leave time for that.
    let mut problem = pipeline(3_000);
    let placed = Auto.pack(&problem, &Budget::evaluations(60), &Silent).best.expect("a placement");
    let mut previous: Vec<Option<Bytes>> = placed.offsets.values().copied().map(Some).collect();
    previous
        .iter_mut()
        .flatten()
        .for_each(|offset| *offset = Bytes(offset.get() + 64 * (offset.get() / 640)));
    let lowest = placed.height;
    problem.capacity = Some(lowest);
    let found = repack(&problem, &previous, &Budget::evaluations(400), &Silent).best.expect("a placement");
    judge(&problem, &previous, &found);
    assert!(found.least_moved > Bytes::ZERO && found.placement.height <= lowest);
}
