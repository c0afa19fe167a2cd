//! Runs the binary as users do.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

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

/// Runs it, expects an exit status, and returns standard output.
#[allow(dead_code, reason = "not every test has such a command")]
#[track_caller]
pub fn expect(folder: &Path, line: &str, status: i32) -> String {
    expect_both(folder, line, status).0
}

/// Runs it, expects a status other than 0 and one sentence on standard error that contains all of `parts`.
#[allow(dead_code, reason = "not every test has such a command")]
#[track_caller]
pub fn expect_sentence(folder: &Path, line: &str, status: i32, parts: &[&str]) -> Output {
    let output = run(folder, line);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "elbowroom {line}\nstderr: {err}");
    assert!(!err.contains("panicked"), "elbowroom {line} panicked: {err}");
    for part in parts {
        assert!(err.contains(part), "elbowroom {line}: `{part}` is not in: {err}");
    }
    // Usage errors come from the argument parser, which prints a hint as well.
    if !err.contains("For more information") {
        assert_eq!(err.trim_end().lines().count(), 1, "elbowroom {line}: not one line: {err}");
    }
    output
}

/// Waits for the end of a command, which is killed if it takes longer than `time`.
#[allow(dead_code, reason = "not every test has such a command")]
pub fn end_within(time: Duration, child: &mut Child) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < time {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// The object that a command prints.
#[allow(dead_code, reason = "not every test has such a command")]
pub fn json(text: &str) -> Value {
    assert_eq!(text.trim_end().lines().count(), 1, "one object on one line: {text}");
    serde_json::from_str(text).expect("standard output is JSON")
}
