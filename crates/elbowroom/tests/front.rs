//! The front of the library: its modules depend on each other in one direction only, and the README shows code that is tested.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The modules of the crate with those that each uses outside its tests.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files(&source, &mut paths);
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in paths.iter().filter(|path| !path.ends_with("lib.rs")) {
        let inside = path.strip_prefix(&source).unwrap().with_extension("");
        let module = inside.iter().next().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let used = uses.entry(module.clone()).or_default();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for (_, rest) in line.match_indices("crate::").map(|(at, found)| (at, &line[at + found.len()..]))
            {
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if name != module {
                    used.insert(name);
                }
            }
        }
    }
    uses
}

#[test]
fn modules_do_not_depend_on_each_other_in_a_circle() {
    let mut left = uses();
    assert!(left["train"].contains("algorithms") && !left["algorithms"].contains("train"));
    // Modules that use none of those that are left can always be taken away, unless there is a circle.
    while !left.is_empty() {
        let names: BTreeSet<String> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, used| used.iter().any(|name| names.contains(name)));
        assert!(left.len() < before, "these modules depend on each other in a circle: {left:#?}");
    }
}

/// The blocks of Rust in a text.
fn blocks(text: &str) -> Vec<&str> {
    text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn the_readme_shows_the_example_that_the_crate_tests() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tested = fs::read_to_string(own.join("README.md")).unwrap();
    let shown = fs::read_to_string(own.join("../../README.md")).unwrap();
    assert_eq!(blocks(&shown), [blocks(&tested)[0]], "copy the first example of crates/elbowroom/README.md");
}
