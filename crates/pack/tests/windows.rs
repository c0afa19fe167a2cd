//! Files with gaps, windows, fixed offsets, hints and alignments: every placement is legal, and every proof agrees with brute force.

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Infeasible, Silent, StopReason};
use elbowroom_pack::{Auto, Exact, PACKERS, PlacementError, csv, validate};

#[path = "random/brute.rs"]
mod brute;
#[path = "random/legal.rs"]
mod legal;
#[path = "random/mod.rs"]
mod random;
#[path = "random/table.rs"]
mod table;
use brute::brute_force;
use legal::Rule;
use random::Random;
use table::table;

/// What is claimed of a problem, against brute force. Returns whether a height was proved.
fn judge(packer: &dyn Packer, problem: &Problem, text: &str, optimum: &[Option<u64>; 2], seed: u64) -> bool {
    let budget = Budget { seed, ..Budget::evaluations(40) };
    let outcome = packer.pack(problem, &budget, &Silent);
    let [bytes, ordered] = *optimum;
    let name = packer.name();
    match (&outcome.best, &outcome.stop) {
        (Some(placement), stop) => {
            assert_eq!(validate(problem, placement), Ok(()), "{name} on\n{text}");
            let height = placement.height.get();
            assert!(ordered.is_some_and(|ordered| height >= ordered), "{name}: {height} on\n{text}");
            if *stop == StopReason::Optimal && problem.capacity.is_none() {
                assert_eq!(Some(height), bytes, "{name} on\n{text}");
            }
            *stop == StopReason::Optimal
        }
        (None, StopReason::Infeasible(why)) => {
            let Infeasible::Blocks { blocks, .. } = why.as_ref() else { panic!("blocks are to blame") };
            let only = blocks.iter().map(|&id| problem.blocks[id].clone()).collect();
            let only = Problem { blocks: only, capacity: None };
            let limit = problem.capacity.map_or(40, Bytes::get);
            assert_eq!(brute_force(&only, Rule::Ordered, limit), None, "{name}: {blocks:?} of\n{text}");
            true
        }
        (None, stop) => {
            assert!(problem.capacity.is_some(), "{name}: {stop:?} on\n{text}");
            false
        }
    }
}

/// Random files from a seed, on two threads: returns how many had a proved height that windows make lower than whole blocks would be.
fn fuzz(seed: u64, files: u64) -> u64 {
    let mut random = Random::new(seed);
    let files: Vec<_> = (0..files).map(|number| (number, table(&mut random, 5, number % 32))).collect();
    let [first, second] = [0, 1].map(|half| files.iter().skip(half).step_by(2));
    std::thread::scope(|scope| {
        let second = scope.spawn(|| proved_lower(second));
        proved_lower(first) + second.join().unwrap()
    })
}

/// As [`fuzz`], of these files.
fn proved_lower<'a>(files: impl Iterator<Item = &'a (u64, String)>) -> u64 {
    let mut lowered = 0;
    for (number, text) in files {
        let buffers = match csv::read(text) {
            Ok(buffers) => buffers,
            // A gap with an empty window may leave nothing of a lifetime.
            Err(csv::CsvError::NeverAlive { .. }) => continue,
            Err(error) => panic!("{error} in\n{text}"),
        };
        let mut problem = buffers.problem.clone();
        let optimum = [Rule::Bytes, Rule::Ordered].map(|rule| brute_force(&problem, rule, 40));
        for packer in PACKERS {
            let proved = judge(*packer, &problem, text, &optimum, *number);
            if packer.name() == "exact" {
                // Where the two rules agree, nothing is left open.
                assert!(proved || optimum[0] != optimum[1], "open:\n{text}");
                let outcome = packer.pack(&problem, &Budget::evaluations(40), &Silent);
                if let Some(placement) = outcome.best {
                    let written = csv::write(&buffers, &placement);
                    let again = csv::read(&written).unwrap_or_else(|error| panic!("{error} in\n{written}"));
                    assert_eq!(validate(&again.problem, &placement), Ok(()), "{text}\n{written}");
                    let parts = |p: &Problem| {
                        p.blocks.values().map(|b| (b.alive.clone(), b.windows.clone())).collect::<Vec<_>>()
                    };
                    assert_eq!(parts(&again.problem), parts(&problem), "{text}\n{written}");
                    let whole = problem.blocks.values().map(|b| (b.size.get(), b)).map(|(size, b)| {
                        let mut b = b.clone();
                        b.alive = b.parts().map(|(during, ..)| during).collect();
                        b.alive.sort_unstable();
                        b.windows.clear();
                        b.size = Bytes(size);
                        b
                    });
                    let whole = Problem { blocks: whole.collect(), capacity: None };
                    lowered += u64::from(proved && placement.height < whole.peak_live());
                }
            }
        }
        let Some(ordered) = optimum[1] else { continue };
        for capacity in [ordered, ordered.saturating_sub(1)] {
            problem.capacity = Some(Bytes(capacity));
            let found = Exact.pack(&problem, &Budget::evaluations(40), &Silent);
            let fits = capacity >= ordered;
            assert_eq!(found.best.is_some(), fits, "capacity {capacity}: {:?} on\n{text}", found.stop);
            if optimum[0] == optimum[1] || !fits {
                judge(&Auto, &problem, text, &optimum, *number);
            }
        }
    }
    lowered
}

#[test]
fn random_files_are_placed_legally_and_proved_rightly() {
    let lowered = fuzz(1, 640);
    assert!(lowered > 10, "{lowered} proved heights are lower than those of whole blocks");
}

#[test]
#[ignore = "ten thousand files take half a minute"]
fn ten_thousand_random_files_are_placed_legally_and_proved_rightly() {
    let lowered = fuzz(2, 10_000);
    assert!(lowered > 100, "{lowered} proved heights are lower than those of whole blocks");
}

fn problem(text: &str) -> Problem {
    csv::read(text).expect("a table").problem
}

#[test]
fn a_window_is_used_and_not_lost() {
    // While `a` keeps 4 of its 10 bytes, `b` needs 6: 10 bytes together, where a window read as "all" made 16.
    let mut problem = problem("id,lower,upper,size,gaps\na,0,9,10,3-6@0:4\nb,3,6,6,\n");
    for packer in PACKERS {
        let outcome = packer.pack(&problem, &Budget::evaluations(20), &Silent);
        let placement = outcome.best.expect("there is always a placement");
        assert_eq!(placement.height, Bytes(10), "{}", packer.name());
        assert_eq!(outcome.stop, StopReason::Optimal, "{}", packer.name());
    }
    problem.capacity = Some(Bytes(10));
    assert!(Auto.pack(&problem, &Budget::default(), &Silent).best.is_some());
}

#[test]
fn the_validator_reads_windows() {
    let place = |problem: &Problem, offsets: &[u64]| {
        let offsets: Vec<Bytes> = offsets.iter().copied().map(Bytes).collect();
        validate(problem, &Placement::new(problem, offsets.into()))
    };
    let windowed = problem("id,lower,upper,size,gaps\na,0,9,10,3-6@0:4\nb,3,6,6,\n");
    assert_eq!(place(&windowed, &[0, 4]), Ok(()));
    assert!(matches!(place(&windowed, &[0, 3]), Err(PlacementError::Overlap { .. })));
    // `a` occupies its lowest byte at one position and its highest at the next, `b` lies between the two.
    let passing = problem("id,lower,upper,size,gaps\na,0,2,9,0-1@0:1 1-2@8:9\nb,0,2,3,\n");
    assert!(matches!(place(&passing, &[0, 3]), Err(PlacementError::Passing { .. })));
    assert_eq!(place(&passing, &[0, 9]), Ok(()));
}

#[test]
fn many_buffers_with_windows_are_packed_at_the_peak() {
    // A sliding window: each buffer keeps its lower half while a later one uses the upper half.
    let mut text = String::from("id,lower,upper,size,gaps\n");
    for i in 0..2_000 {
        text += &format!("a{i},{},{},{},{}-{}@0:50\n", 10 * i, 10 * i + 9, 100, 10 * i + 3, 10 * i + 7);
        text += &format!("b{i},{},{},50,\n", 10 * i + 3, 10 * i + 7);
    }
    let problem = problem(&text);
    for packer in [&Auto as &dyn Packer, &Exact] {
        let outcome = packer.pack(&problem, &Budget::evaluations(70), &Silent);
        let placement = outcome.best.expect("there is always a placement");
        assert_eq!(validate(&problem, &placement), Ok(()));
        assert_eq!((placement.height, outcome.stop), (Bytes(100), StopReason::Optimal), "{}", packer.name());
    }
}

#[test]
fn results_with_windows_repeat() {
    let mut random = Random::new(3);
    let buffers =
        csv::read(&table(&mut random, 300, 31 - 4)).or_else(|_| csv::read(&table(&mut random, 300, 27)));
    let problem = buffers.expect("a table").problem;
    let pack = |evaluations| {
        let budget = Budget { seed: 5, threads: 2, ..Budget::evaluations(evaluations) };
        Auto.pack(&problem, &budget, &Silent)
    };
    assert_eq!(pack(90), pack(90));
}
