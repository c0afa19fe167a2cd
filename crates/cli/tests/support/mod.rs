//! Runs the binary as users do.

use std::path::Path;
use std::process::{Command, Output};

/// Runs `elbowroom` in a folder.
pub fn run(folder: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_elbowroom"))
        .args(line.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("the binary runs")
}

/// Runs it, expects an exit status, and returns standard output and standard error.
#[track_caller]
pub fn expect_both(folder: &Path, line: &str, status: i32) -> (String, String) {
    let Output { status: found, stdout, stderr } = run(folder, line);
    let (out, err) =
        (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
    assert_eq!(found.code(), Some(status), "elbowroom {line}\nstdout: {out}\nstderr: {err}");
    (out, err)
}
