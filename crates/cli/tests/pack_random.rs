//! `elbowroom pack` on random tables with gaps, windows, pins, alignments and banks: every placement that it writes is legal, and every proof agrees
//! with brute force.

#[path = "../../pack/tests/random/banked.rs"]
mod banked;
#[path = "../../pack/tests/random/brute.rs"]
mod brute;
#[path = "../../pack/tests/random/legal.rs"]
mod legal;
#[path = "../../pack/tests/random/mod.rs"]
mod random;
mod support;
#[path = "../../pack/tests/random/table.rs"]
mod table;

use std::path::Path;

use banked::{banked, cheapest};
use brute::brute_force;
use elbowroom_ir::Bytes;
use elbowroom_ir::packing::Problem;
use elbowroom_pack::BankedProblem;
use elbowroom_pack::csv::{self, Buffers, CsvError};
use legal::{Rule, legal};
use random::Random;
use serde_json::Value;
use table::table;

/// No height of the tables is above this one.
const MOST: u64 = 40;

/// Packs a table. Returns the exit status, what was printed, and the placement, whose offsets read as fixed ones, if one was written.
fn pack(folder: &Path, text: &str, options: &str) -> (i32, Value, Option<Buffers>) {
    let placed = folder.join("placed.csv");
    std::fs::write(folder.join("buffers.csv"), text).unwrap();
    std::fs::remove_file(&placed).ok();
    let line = format!("pack buffers.csv -o placed.csv --keep-missed --json {options}");
    let output = support::run(folder, &line);
    let status = output.status.code().unwrap();
    let printed = serde_json::from_slice(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    let printed = printed.unwrap_or_else(|_| panic!("{line} ends with {status}: {error}\n{text}"));
    let read = |text: String| csv::read(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
    (status, printed, std::fs::read_to_string(placed).ok().map(read))
}

/// Panics if two of some placed blocks share a byte, or if one is not where its table and its alignment let it be.
fn judge(problem: &Problem, placed: &Buffers, members: &[usize], most: u64, text: &str) {
    let (blocks, offset) = (problem.blocks.as_slice(), |i: usize| {
        placed.problem.blocks.as_slice()[i]
            .fixed
            .unwrap_or_else(|| panic!("no offset for row {i} of\n{text}"))
            .get()
    });
    for (at, &i) in members.iter().enumerate() {
        let block = &blocks[i];
        assert!(block.fixed.is_none_or(|fixed| fixed.get() == offset(i)), "row {i} of\n{text}");
        assert!(
            offset(i).is_multiple_of(block.align.get()) && offset(i) + block.size.get() <= most,
            "row {i} of\n{text}"
        );
        for &j in &members[..at] {
            assert!(
                legal(block, offset(i), &blocks[j], offset(j), Rule::Bytes),
                "rows {i} and {j} of\n{text}"
            );
        }
    }
}

/// One table in one arena. Returns whether the command claims a proof.
fn one_arena(folder: &Path, text: &str) -> bool {
    let problem = match csv::read(text) {
        Ok(buffers) => buffers.problem,
        // A gap with an empty window may leave nothing of a lifetime.
        Err(CsvError::NeverAlive { .. }) => return false,
        Err(error) => panic!("{error} in\n{text}"),
    };
    let [bytes, ordered] = [Rule::Bytes, Rule::Ordered].map(|rule| brute_force(&problem, rule, MOST));
    let (status, printed, placed) = pack(folder, text, "--evaluations 40");
    let Some(placed) = placed else {
        assert_eq!((status, ordered), (1, None), "{printed}\n{text}");
        return true;
    };
    let height = printed["arena_bytes"].as_u64().unwrap();
    let all: Vec<usize> = (0..problem.blocks.len()).collect();
    judge(&problem, &placed, &all, height, text);
    assert!(status == 0 && ordered.is_some_and(|ordered| height >= ordered), "{printed}\n{text}");
    let proved = printed["proved_optimal"].as_bool().unwrap();
    assert!(!proved || Some(height) == bytes, "{printed}\n{bytes:?} {text}");
    proved
}

/// The table of a problem with the columns that say which banks a buffer may lie in, and its traffic.
fn with_banks(text: &str, problem: &BankedProblem) -> String {
    let mut rows = text.lines();
    let mut table = format!("{},bank,traffic\n", rows.next().unwrap());
    for (row, id) in rows.zip(problem.blocks.ids()) {
        let banks: Vec<String> = problem.allowed[id].iter().map(|bank| format!("bank{bank}")).collect();
        table += &format!("{row},{},{}\n", banks.join(" "), problem.traffic[id].get());
    }
    table
}

/// One table in several banks. Returns whether the command claims a proof.
fn several_banks(folder: &Path, text: &str, problem: &BankedProblem) -> bool {
    let least = cheapest(problem, Rule::Ordered);
    let options: Vec<String> = (0..)
        .zip(&problem.banks)
        .map(|(number, bank): (usize, _)| {
            let capacity = bank.capacity.map_or("unlimited".to_owned(), |most| most.get().to_string());
            format!("--bank bank{number}={capacity}@{}", bank.cost)
        })
        .collect();
    let text = with_banks(text, problem);
    let (status, printed, placed) = pack(folder, &text, &format!("--evaluations 2000 {}", options.join(" ")));
    let placed = placed.unwrap_or_else(|| panic!("{printed}\n{text}"));
    let columns = placed.other_columns.len();
    let column = placed.other_columns.iter().position(|title| title == "bank").unwrap();
    let bank_of = |row: usize| placed.other_fields[row * columns + column].as_str();
    let whole = Problem { blocks: problem.blocks.clone(), capacity: None };
    let (mut spilled, mut rows) = (0, 0..problem.blocks.len());
    for (number, bank) in problem.banks.iter().enumerate() {
        let name = format!("bank{number}");
        let members: Vec<usize> = rows.clone().filter(|&row| bank_of(row) == name).collect();
        judge(&whole, &placed, &members, bank.capacity.map_or(u64::MAX, |most| most.get()), &text);
    }
    for (row, id) in rows.by_ref().zip(problem.blocks.ids()) {
        let named = printed["spilled"].as_array().unwrap().contains(&Value::from(format!("b{row}")));
        assert_eq!(named, bank_of(row).is_empty(), "{printed}\n{text}");
        spilled += u64::from(named) * problem.traffic[id].get().max(1);
    }
    assert_eq!(status, i32::from(spilled > 0), "{printed}\n{text}");
    let found = (spilled, printed["traffic_cost"].as_u64().unwrap());
    let proved = printed["proved_optimal"].as_bool().unwrap();
    assert!(found >= least && (!proved || found == least), "{found:?} {least:?}: {printed}\n{text}");
    proved
}

/// Random tables from a seed, every third one for banks. Returns how many were proved.
fn fuzz(seed: u64, files: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(seed);
    let mut proved = 0;
    for number in 0..files {
        let kinds = number % 32;
        proved += u64::from(if number % 3 == 2 {
            banked(&mut random, kinds).is_some_and(|(text, mut problem)| {
                // The command takes no bank without a byte.
                let capacities = problem.banks.iter_mut().filter_map(|bank| bank.capacity.as_mut());
                capacities.for_each(|most| *most = Bytes(most.get().max(1)));
                several_banks(folder.path(), &text, &problem)
            })
        } else {
            one_arena(folder.path(), &table(&mut random, 5, kinds))
        });
    }
    proved
}

#[test]
fn random_tables_are_placed_legally_and_proved_rightly() {
    let proved = fuzz(1, 96);
    assert!(proved > 60, "{proved} proved");
}

#[test]
#[ignore = "ten thousand tables take minutes"]
fn ten_thousand_random_tables_are_placed_legally_and_proved_rightly() {
    // Four seeds at a time: a table takes one thread.
    let proved: u64 = std::thread::scope(|scope| {
        let parts: Vec<_> = (2..6).map(|seed| scope.spawn(move || fuzz(seed, 2_500))).collect();
        parts.into_iter().map(|part| part.join().unwrap()).sum()
    });
    assert!(proved > 8_000, "{proved} proved");
}
