//! Holds the architecture's invariants: which crate may depend on which, and where `unsafe` may stand. See `ARCHITECTURE.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every crate of the workspace with the crates of the workspace that it may depend on. A new crate needs one line here and one row in
/// the table of ARCHITECTURE.md.
const CRATES: &[(&str, &[&str])] = &[
    ("elbowroom-ir", &[]),
    ("elbowroom-sim", &["elbowroom-ir"]),
    ("elbowroom-pack", &["elbowroom-ir"]),
    ("elbowroom-graph", &["elbowroom-ir"]),
    ("elbowroom-import", &["elbowroom-ir"]),
    ("elbowroom-onnx", &["elbowroom-ir", "elbowroom-graph"]),
    ("elbowroom-sched", &["elbowroom-ir", "elbowroom-sim"]),
    ("elbowroom-dqn", &["elbowroom-ir", "elbowroom-sim", "elbowroom-sched"]),
    ("elbowroom-engine", &["elbowroom-ir", "elbowroom-graph"]),
    ("elbowroom-alloc", &["elbowroom-ir", "elbowroom-pack"]),
    ("elbowroom-capi", &["elbowroom-alloc"]),
    ("elbowroom-pack-capi", &["elbowroom-pack"]),
    (
        "elbowroom",
        &[
            "elbowroom-ir",
            "elbowroom-sim",
            "elbowroom-pack",
            "elbowroom-graph",
            "elbowroom-import",
            "elbowroom-onnx",
            "elbowroom-sched",
            "elbowroom-dqn",
            "elbowroom-engine",
            "elbowroom-alloc",
        ],
    ),
    ("elbowroom-device-capi", &["elbowroom"]),
    ("elbowroom-reproduce", &["elbowroom"]),
    ("elbowroom-cli", &["elbowroom", "elbowroom-reproduce"]),
    // It runs the command, so that its figures are what a user gets.
    ("elbowroom-results", &[]),
];

/// Where `unsafe` may stand: files and folders relative to the root. CONTRIBUTING.md lists the same.
const UNSAFE: &[&str] = &[
    "crates/engine/src/arena.rs",
    "crates/engine/src/device",
    "crates/engine/src/kernels",
    "crates/alloc/src",
    "crates/capi/src",
    "crates/pack-capi/src",
    "crates/device-capi/src",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The workspace's packages as `cargo metadata` reports them.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// All `.rs` files below a folder, relative to the root, with forward slashes.
fn sources(folder: &Path) -> Vec<String> {
    let root = root();
    let mut pending = vec![folder.to_path_buf()];
    let mut files = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/"));
        }
    }
    files
}

#[test]
fn crates_depend_only_as_the_table_allows() {
    let packages = packages();
    let table: BTreeMap<&str, &[&str]> = CRATES.iter().copied().collect();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let listed: BTreeSet<&str> = table.keys().copied().collect();
    assert_eq!(ours, listed, "CRATES must list exactly the crates of the workspace");

    for package in &packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let to = dependency["name"].as_str().unwrap();
            // A test may use any crate: the checker, for example, is tested on plans of the planners.
            let for_tests = dependency["kind"] == "dev";
            assert!(
                for_tests || !ours.contains(to) || table[name].contains(&to),
                "{name} depends on {to}, which CRATES does not allow"
            );
        }
    }
}

#[test]
fn the_architecture_lists_every_crate() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        if entry.path().join("Cargo.toml").exists() {
            let name = entry.file_name().into_string().unwrap();
            let row = [format!("| `{name}` |"), format!("| `crates/{name}` |")];
            assert!(
                row.iter().any(|row| text.contains(row)),
                "ARCHITECTURE.md's table has no row for {name}"
            );
        }
    }
}

#[test]
fn unsafe_stands_only_where_the_list_allows() {
    let root = root();
    let uses = |file: &str| {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|form| text.contains(form))
    };
    let contains = |allowed: &str, file: &str| {
        file.strip_prefix(allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let files: Vec<String> = sources(&root.join("crates"))
        .into_iter()
        .filter(|file| file.split('/').nth(2) == Some("src"))
        .collect();
    assert!(files.len() > 150, "found only {} files", files.len());

    let using: Vec<&String> = files.iter().filter(|file| uses(file)).collect();
    for file in &using {
        assert!(
            UNSAFE.iter().any(|allowed| contains(allowed, file)),
            "{file} uses `unsafe`, which UNSAFE does not allow there"
        );
    }
    let contributing = std::fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    for allowed in UNSAFE {
        assert!(
            using.iter().any(|file| contains(allowed, file)),
            "{allowed} is in UNSAFE but does not use `unsafe`"
        );
        assert!(contributing.contains(&format!("`{allowed}`")), "CONTRIBUTING.md does not name {allowed}");
    }
}

/// Crates without an entry in the list forbid `unsafe` at their root, so that the compiler holds the rule too.
#[test]
fn all_other_crates_forbid_unsafe() {
    for package in packages() {
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        let folder =
            manifest.parent().unwrap().strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
        if UNSAFE.iter().any(|allowed| allowed.starts_with(&format!("{folder}/"))) {
            continue;
        }
        let roots = ["src/lib.rs", "src/main.rs"].map(|name| manifest.with_file_name(name));
        let mut found = 0;
        for path in roots.iter().filter(|path| path.exists()) {
            found += 1;
            let text = std::fs::read_to_string(path).unwrap();
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{} does not forbid unsafe code",
                path.display()
            );
        }
        assert!(found > 0, "{folder} has no root in src");
    }
}
