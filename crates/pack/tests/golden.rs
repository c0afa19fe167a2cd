//! The small golden cases: stated heights of the seed heuristics, stated peak loads.

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Block, Problem};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_pack::{packer, validate};

#[path = "../../../golden/mod.rs"]
mod golden;

fn cases() -> Vec<serde_json::Value> {
    let cases = golden::json("dsa_small.json")["cases"].as_array().expect("cases are a list").clone();
    assert_eq!(cases.len(), 30);
    cases
}

fn number(value: &serde_json::Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} is a number"))
}

fn problem(case: &serde_json::Value) -> Problem {
    let blocks = case["blocks"].as_array().expect("blocks are a list");
    let blocks =
        blocks.iter().map(|b| Block::new(number(b, "alloc"), number(b, "free"), Bytes(number(b, "size"))));
    Problem { blocks: blocks.collect(), capacity: None }
}

#[test]
fn seed_heuristics_give_the_stated_heights() {
    for case in &cases() {
        let problem = problem(case);
        assert_eq!(problem.peak_live(), Bytes(number(case, "peak_load")), "{}", case["id"]);
        for (name, key) in [
            ("best-fit", "sekiyama_bestfit_nomerge"),
            ("best-fit", "sekiyama_bestfit_merge"),
            ("best-fit-paper", "sekiyama_bestfit_nomerge"),
            ("best-fit-paper-merged", "sekiyama_bestfit_merge"),
            ("smartpool-best", "smartpool_bestfit"),
            ("smartpool-first", "smartpool_firstfit"),
        ] {
            let outcome = packer(name).expect(name).pack(&problem, &Budget::default(), &Silent);
            let placement = outcome.best.expect("without a capacity there is always a placement");
            assert_eq!(validate(&problem, &placement), Ok(()), "{name} on {}", case["id"]);
            assert_eq!(placement.height, Bytes(number(case, key)), "{name} on {}", case["id"]);
        }
    }
}

#[test]
fn exact_finds_every_stated_optimum() {
    for case in &cases() {
        let outcome = packer("exact").expect("exact").pack(&problem(case), &Budget::default(), &Silent);
        assert_eq!(outcome.stop.name(), "optimal", "{}", case["id"]);
        assert_eq!(
            outcome.best.map(|best| best.height),
            Some(Bytes(number(case, "optimum"))),
            "{}",
            case["id"]
        );
    }
}

#[cfg(feature = "highs")]
#[test]
fn mip_agrees_with_every_stated_optimum() {
    for case in &cases() {
        let problem = problem(case);
        let best = packer("mip")
            .expect("mip")
            .pack(&problem, &Budget::default(), &Silent)
            .best
            .expect("a placement");
        assert_eq!(validate(&problem, &best), Ok(()), "{}", case["id"]);
        assert_eq!(best.height, Bytes(number(case, "optimum")), "{}", case["id"]);
    }
}

/// Interrupts after a millisecond, and says so beforehand.
#[cfg(feature = "highs")]
struct Soon(std::time::Instant);

#[cfg(feature = "highs")]
impl elbowroom_ir::search::Observer for Soon {
    fn interrupted(&self) -> bool {
        std::time::Instant::now() >= self.0
    }
    fn deadline(&self) -> Option<std::time::Instant> {
        Some(self.0)
    }
}

#[cfg(feature = "highs")]
#[test]
fn mip_stops_within_a_solve_at_the_deadline_of_its_observer() {
    // Sizes that share no divisor and lifetimes that cross each other: after 20 seconds the solver has not finished.
    let block = |i: u64| {
        let start = 37 * i % 61;
        Block::new(start, start + 4 + 11 * i % 23, Bytes(1_000 + 7_919 * i * i % 9_973))
    };
    let problem = Problem { blocks: (0..110).map(block).collect(), capacity: None };
    let soon = Soon(std::time::Instant::now() + std::time::Duration::from_millis(1));
    let outcome = packer("mip").expect("mip").pack(&problem, &Budget::default(), &soon);
    assert_eq!(outcome.stop.name(), "interrupted");
    assert_eq!(validate(&problem, &outcome.best.expect("the heuristic's placement")), Ok(()));
}
