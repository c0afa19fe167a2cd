//! The quick extent of every table and figure: the list is whole, every row has a figure of ours or a reason, and exact figures are those in
//! `quick.json`. `BLESS=1 cargo test -p elbowroom-reproduce` writes that file.

use std::collections::BTreeMap;
use std::path::Path;

use elbowroom::ir::search::Silent;
use elbowroom_reproduce::{Bench, ITEMS, Item, Paper, Row, Sheet, run};

/// Figures and tables of each paper, as its text numbers them.
const NUMBERED: [(Paper, &str, u32); 6] = [
    (Paper::Sekiyama, "sekiyama-fig", 4),
    (Paper::Chen, "chen-fig", 7),
    (Paper::Zhang, "zhang-fig", 11),
    (Paper::Zhang, "zhang-table-", 2),
    (Paper::Shicheng, "shicheng-fig", 5),
    (Paper::Beaumont, "beaumont-fig", 19),
];

#[test]
fn every_table_and_figure_is_in_the_list_once() {
    for (paper, prefix, last) in NUMBERED {
        for number in 1..=last {
            let name = format!("{prefix}{number}");
            let found: Vec<_> = ITEMS.iter().filter(|item| item.name == name).collect();
            assert!(found.len() == 1 && found[0].paper == paper, "{name}");
        }
        let numbered = |name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.parse::<u32>().is_ok());
        assert_eq!(ITEMS.iter().filter(|item| numbered(item.name)).count(), last as usize, "{prefix}");
    }
}

/// What is stored of a row: figures to nine digits, so that the last bit of a logarithm does not matter.
fn stored(row: &Row) -> (String, serde_json::Value) {
    let digits = |value: Option<f64>| value.map(|value| format!("{value:.9e}"));
    let figures = serde_json::json!({ "paper": digits(row.paper), "ours": digits(row.ours) });
    (format!("{} | {}", row.name, row.row), figures)
}

/// Every item with its sheet. The papers are computed at the same time; sweeps that two figures show are of one paper.
fn sheets() -> Vec<(&'static Item, Sheet)> {
    let computed = |items: &'static [Item]| -> Vec<_> {
        let bench = Bench::quick(&Silent);
        let sheet = |item: &Item| run(item, &bench).unwrap_or_else(|error| panic!("{}: {error}", item.name));
        items.iter().map(|item| (item, sheet(item))).collect()
    };
    std::thread::scope(|scope| {
        let papers = ITEMS.chunk_by(|item, next| item.paper == next.paper);
        let threads: Vec<_> = papers.map(|items| scope.spawn(move || computed(items))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn exact_figures_are_those_that_are_stored() {
    let mut exact = BTreeMap::new();
    for (item, sheet) in sheets() {
        assert!(!sheet.rows.is_empty(), "{} is empty", item.name);
        for row in &sheet.rows {
            assert_eq!(row.name, item.name);
            assert!(row.agrees() || !row.reason.is_empty(), "no reason: {row:?}");
            assert!(row.ours.is_some() || !row.reason.is_empty(), "empty: {row:?}");
            assert!([row.paper, row.ours, row.ratio].into_iter().flatten().all(f64::is_finite), "{row:?}");
            if row.exact {
                let (name, figures) = stored(row);
                assert!(exact.insert(name.clone(), figures).is_none(), "twice: {name}");
            }
        }
        for curves in &sheet.curves {
            assert!(curves.lines.iter().any(|line| !line.1.is_empty()), "{}: no points", item.name);
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quick.json");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, serde_json::to_string_pretty(&exact).unwrap() + "\n").unwrap();
    }
    let stored: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    // Without the planner that learns, its rows are missing and another says so.
    let learned = |name: &String| name.contains("dqn");
    for (name, figures) in exact.iter().filter(|(name, _)| !learned(name)) {
        assert_eq!(Some(figures), stored.get(name), "{name}");
    }
    let gone: Vec<_> = stored.keys().filter(|name| !learned(name) && !exact.contains_key(*name)).collect();
    assert!(gone.is_empty(), "no longer computed: {gone:?}");
}
