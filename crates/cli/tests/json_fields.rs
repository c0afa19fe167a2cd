//! `docs/formats.md` lists every field that `--json` prints, and no other.

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use support::expect_both;

/// Every path of a value: `rows[].planner`. The keys of `algorithms` are names of algorithms, not fields.
fn paths(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if at != "algorithms" => {
            for (name, value) in fields {
                let at = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                paths(value, &at, found);
            }
        }
        Value::Array(elements) if elements.iter().any(Value::is_object) => {
            elements.iter().for_each(|element| paths(element, &format!("{at}[]"), found));
        }
        _ => {
            found.insert(at.to_owned());
        }
    }
}

/// The fields in the first column of the tables below the heading.
fn documented() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, reports) = text.split_once("## JSON reports").unwrap();
    let cells = reports.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    cells.flat_map(|(names, _)| names.split(", ")).map(|name| name.trim_matches('`').to_owned()).collect()
}

#[test]
fn every_field_of_a_report_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("b.csv"), "id,lower,upper,size\n0,0,2,16\n").unwrap();
    std::fs::write(at.join("pins"), "host *conv1*\n").unwrap();
    let mut found = BTreeSet::new();
    for (line, status) in [
        ("trace --model resnet20 --batch 2 --image 16 --json -o r.trace", 0),
        ("plan r.trace --json", 0),
        (
            "plan r.trace --memory 60% --planner auto --evaluations 5 --explain --pins pins --json -o r.plan",
            0,
        ),
        ("plan r.trace --memory 1KiB --evaluations 5 --json", 1),
        ("plan --model resnet20 --image 8 --batch max --memory 1MiB --evaluations 5 --json", 0),
        ("check r.trace r.plan --json", 0),
        ("simulate r.trace r.plan --json", 0),
        ("why r.trace --json", 0),
        ("report r.trace --json", 0),
        ("compare r.trace --memory 70%..80% --steps 2 --planners floor,greedy --json", 0),
        ("reproduce chen-fig1 --json", 0),
        ("pack b.csv --json -o placed.csv", 0),
        ("pack b.csv --bank fast=1KiB --json", 0),
        ("pack b.csv --previous placed.csv --json", 0),
        (
            "train --model resnet20 --batch 2 --image 16 --iterations 2 --memory 70% --planner floor --verify --save m --json",
            0,
        ),
    ] {
        let (output, _) = expect_both(at, line, status);
        paths(&serde_json::from_str(&output).unwrap(), "", &mut found);
    }
    let documented = documented();
    let missing: Vec<_> = found.difference(&documented).collect();
    assert!(missing.is_empty(), "not in docs/formats.md: {missing:?}");
    // Printed only where a planner reports it, where a clock ended the search, or where something failed or was refused.
    let rare = [
        "reproduce_with",
        "diverged",
        "save_error",
        "weights_error",
        "underived_reason",
        // Of chains that are only offloaded.
        "relaxed_bound_ns",
    ]
    .map(str::to_owned);
    let gone: Vec<_> = documented.difference(&found).filter(|field| !rare.contains(field)).collect();
    assert!(gone.is_empty(), "in docs/formats.md, but never printed: {gone:?}");
}
