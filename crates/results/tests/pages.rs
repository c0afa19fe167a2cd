//! The manifest of this repository is readable, and its pages are those that the data files give.

use std::path::{Path, PathBuf};

use elbowroom_results::check;
use elbowroom_results::data::Data;
use elbowroom_results::externals::Externals;
use elbowroom_results::manifest::{Fields, Manifest, Section, fill};
use elbowroom_results::render::{self, BEGIN, END, Measured};
use serde_json::json;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A manifest of one section, with the entry that `results/README.md` shows.
fn example() -> Manifest {
    let text = std::fs::read_to_string(root().join("results/README.md")).unwrap();
    let (_, rest) = text.split_once("```toml\n").unwrap();
    let (entry, _) = rest.split_once("```").unwrap();
    let plot = "[[entry.plot]]\nid = 'limits'\ncaption = 'Overhead'\nseries = 'planner'\n\
                x = { field = 'limit', head = 'limit' }\ny = { field = 'overhead', format = 'percent', take = 'max' }\n";
    let section = Section::parse("example", &format!("title = 'Example'\n{entry}{plot}")).unwrap();
    Manifest { intro: "Figures.".to_owned(), sections: vec![section], headlines: Vec::new() }
}

fn measured(manifest: &Manifest) -> Measured {
    let entry = &manifest.sections[0].entries[0];
    let record =
        |planner: &str| json!([{"overhead": if planner == "auto" { 0.04 } else { 0.25 }, "arena_bytes": 9}]);
    let run = |case: &Fields| {
        let planner = case["planner"].as_str().unwrap();
        let placeholders = elbowroom_results::data::placeholders(entry, case);
        json!({"case": placeholders, "records": record(planner)})
    };
    let data: Data = serde_json::from_value(json!({
        "entry": entry.id,
        "commit": {"hash": "0123456789abcdef", "dirty": false},
        "machine": {"processor": "P", "threads": 2, "memory_bytes": null, "system": "s", "load_average": null},
        "commands": entry.lines(),
        "runs": entry.cases().iter().map(run).collect::<Vec<_>>(),
    }))
    .unwrap();
    Measured::from([(entry.id.clone(), data)])
}

#[test]
fn the_pages_in_the_tree_are_those_of_the_data() {
    let manifest = Manifest::load(&root().join("results")).unwrap();
    let measured = render::load(&manifest, &root().join("results")).unwrap();
    let found = check::pages(&manifest, &measured, &root()).unwrap();
    assert!(found.is_empty(), "{}\nrun `cargo results render`", found.join("\n"));
}

#[test]
fn the_documented_entry_renders_the_same_each_time() {
    let manifest = example();
    let measured = measured(&manifest);
    let pages = render::pages(&manifest, &measured).unwrap();
    assert_eq!(pages, render::pages(&manifest, &measured).unwrap());
    let page = &pages[Path::new("example.md")];
    let table = "| limit, % | `greedy` | `auto` | paper |\n| --- | --: | --: | --: |\n\
                 | 70 | 25.0 | 4.0 | 2.0 |\n| 50 | 25.0 | 4.0 | 8.0 |\n";
    assert!(page.contains(table), "{page}");
    assert!(page.contains("Commit 0123456789."), "{page}");
    assert!(pages[Path::new("unet-limits-limits.svg")].starts_with("<svg"));
}

#[test]
fn an_entry_without_data_says_so() {
    let manifest = example();
    let pages = render::pages(&manifest, &Measured::new()).unwrap();
    assert!(pages[Path::new("example.md")].contains("*Not measured.*"));
    assert!(pages[Path::new("README.md")].contains("not measured"));
}

#[test]
fn data_of_another_command_are_outdated() {
    let manifest = example();
    let measured = measured(&manifest);
    let data = &measured["unet-limits"];
    let mut entry = example().sections.remove(0).entries.remove(0);
    assert_eq!(data.outdated(&entry), None);
    entry.cases[0].insert("paper".to_owned(), json!(0.03));
    assert_eq!(data.outdated(&entry), None, "a figure to compare with is no part of the measurement");
    entry.cases[0].insert("limit".to_owned(), json!(75));
    assert!(data.outdated(&entry).is_some());
    entry = example().sections.remove(0).entries.remove(0);
    entry.command.push_str(" --seed 1");
    assert!(data.outdated(&entry).is_some());
}

#[test]
fn data_files_read_back_as_they_were() {
    let manifest = example();
    let data = measured(&manifest).remove("unet-limits").unwrap();
    let folder = tempfile::tempdir().unwrap();
    data.save(folder.path()).unwrap();
    assert_eq!(Data::load(folder.path(), "unet-limits").unwrap(), Some(data));
    assert_eq!(Data::load(folder.path(), "other").unwrap(), None);
}

#[test]
fn the_readme_is_replaced_between_its_markers_only() {
    let manifest = example();
    let old = format!("before\n{BEGIN}old\n{END}\nafter\n");
    let new = render::readme(&old, &manifest, &Measured::new()).unwrap();
    assert!(new.starts_with("before\n") && new.ends_with("\nafter\n") && !new.contains("old"));
    assert_eq!(render::readme(&new, &manifest, &Measured::new()).unwrap(), new);
    assert!(render::readme("no markers", &manifest, &Measured::new()).is_err());
}

#[track_caller]
fn refused(entry: &str, why: &str) {
    let table = "[[entry.table]]\nrows = []\ncells = [{ field = 'a' }]";
    let text = format!("title = 'T'\n[[entry]]\ntitle = 'E'\nkeep = ['a']\n{entry}\n{table}");
    let error = format!("{:#}", Section::parse("s", &text).unwrap_err());
    assert!(error.contains(why), "{error}");
}

#[test]
fn contradictory_entries_are_refused() {
    refused("id = 'Upper'\nkind = 'exact'\ncommand = 'x'", "lower case");
    refused("id = 'e'\nkind = 'timed'\nquick = true\ncommand = 'x'", "quick");
    refused("id = 'e'\nkind = 'exact'\ncommand = 'x {model}'", "{model}");
    refused("id = 'e'\nkind = 'exact'\ncommand = 'x {model'", "not closed");
    refused("id = 'e'\nkind = 'exact'\ncommand = 'x'\ntolerance = 2.0", "share");
    refused("id = 'e'\nkind = 'exact'\ncommand = 'x'\ncases = [{ a = 1 }]", "of a case");
    refused("id = 'e'\nkind = 'exact'\ncommand = 'x'\nrequire = [{ field = 'a' }]", "demands nothing");
    refused(
        "id = 'e'\nkind = 'exact'\ncommand = 'x'\nrequire = [{ field = 'b', at_most = 1.0 }]",
        "b is shown",
    );
    refused("id = 'e'\nkind = 'exact'\ncommand = 'x'\nprogram = 'rm -rf'", "is not `elbowroom`");
    refused("id = 'e'\nkind = 'maybe'\ncommand = 'x'", "maybe");
    refused("id = 'e'\nkind = 'exact'\ncommand = 'x'\nunknown = 1", "unknown");
}

#[test]
fn placeholders_are_filled_from_the_case() {
    let case: Fields = serde_json::from_value(json!({"model": "vgg16", "limit": 30})).unwrap();
    let externals = Externals { shared: Some("/d".into()), python: None };
    assert_eq!(fill("plan {shared}/{model} {limit}%", &case, &externals).unwrap(), "plan /d/vgg16 30%");
    assert!(fill("{other}", &case, &externals).is_err());
}
