//! The packer `mip` in the command: `cargo test --package elbowroom-cli --features highs --test mip`.
#![cfg(feature = "highs")]

mod support;

use std::fmt::Write as _;
use std::fs;

use support::expect_both;

/// A table of buffers that are all alive together.
fn table(buffers: usize) -> String {
    let mut table = String::from("id,lower,upper,size\n");
    for buffer in 0..buffers {
        writeln!(table, "b{buffer},{},{},{}", buffer % 7, buffer % 7 + 8, 1 + buffer % 5).unwrap();
    }
    table
}

#[test]
fn the_command_says_what_the_solver_solved() {
    let folder = tempfile::tempdir().unwrap();
    for (buffers, says, stop) in [
        (6, "solver: 1 of 1 components optimal", "optimal"),
        (250, "solver: 0 of 1 components optimal, 1 placed by a heuristic, not by the program", "finished"),
    ] {
        fs::write(folder.path().join("buffers.csv"), table(buffers)).unwrap();
        let (printed, _) = expect_both(folder.path(), "pack buffers.csv --packer mip --json", 0);
        let printed: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(printed["found_by"], says, "{printed}");
        // A heuristic that meets the peak of live memory is optimal too.
        assert!(
            printed["stop_reason"] == stop || printed["arena_bytes"] == printed["peak_live_bytes"],
            "{printed}"
        );
    }
}
