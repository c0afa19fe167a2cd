//! A limit on the CPU limits the process: without further options, resident memory exceeds it by little, and the process survives in a control
//! group of that size.
#![cfg(target_os = "linux")]

#[path = "../../elbowroom/examples/peers/control_group.rs"]
mod control_group;
mod support;

use std::path::Path;
use std::process::{Command, Output};

use control_group::ControlGroup;
use serde_json::Value;

/// What a process may have resident in addition to its limit: code, stacks, batches and the planner's tables.
const OTHER: u64 = 60 << 20;

/// Runs `elbowroom` with files for offloaded tensors allowed in this folder only, in a control group if there is one.
fn train(temporary: &Path, group: Option<&ControlGroup>, arguments: &str) -> Output {
    let binary = env!("CARGO_BIN_EXE_elbowroom");
    let enter = group.map_or_else(String::new, |group| format!("{} && ", group.enter()));
    Command::new("sh")
        .args(["-c", &format!("{enter}exec {binary} train {arguments} --json")])
        .env("TMPDIR", temporary)
        .output()
        .expect("the binary runs")
}

#[track_caller]
fn report(output: &Output) -> Value {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {err}", output.status);
    serde_json::from_slice(&output.stdout).expect("standard output is JSON")
}

/// Trains without further options, and again in a control group as large as what may be resident.
fn keeps_to_the_limit(name: &str, arguments: &str) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let number = |report: &Value, name: &str| report[name].as_u64().unwrap();
    let free = report(&train(folder.path(), None, arguments));
    let allowed = number(&free, "limit_bytes") + OTHER;
    let resident = number(&free, "peak_resident_bytes");
    assert!(resident <= allowed, "{resident} resident, {allowed} allowed: {free}");
    assert!(number(&free, "to_host_bytes") == 0 || free["host_kind"] == "disk", "{free}");

    let Some(group) = ControlGroup::new(name, allowed) else { return };
    let confined = report(&train(folder.path(), Some(&group), arguments));
    assert!(number(&confined, "peak_resident_bytes") <= allowed, "{confined}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_gpt_at_30_percent_takes_little_more_than_its_limit() {
    keeps_to_the_limit("gpt", "--model gpt --batch 8 --memory 30% --iterations 2 --time 1s");
}

#[test]
fn a_resnet_at_50_percent_takes_little_more_than_its_limit() {
    keeps_to_the_limit("resnet", "--model resnet18 --memory 50% --iterations 2 --time 1s");
}

/// What planning frees does not stay resident: glibc kept 39 MiB of it by default, 62 MiB above the limit in all.
#[test]
fn a_deep_network_takes_little_more_than_its_limit() {
    let line = "--model resnet50 --width 32 --batch 4 --memory 50% --iterations 2 --time 1s";
    keeps_to_the_limit("deep", line);
}

/// Large weights change places when the first plan follows dynamic execution: they were held in memory as a whole, 63 MiB above the limit.
#[test]
fn weights_that_change_places_take_no_memory() {
    keeps_to_the_limit("places", "--model unet --batch 2 --image 64 --memory 50% --iterations 2 --time 1s");
}

#[test]
fn a_generous_limit_costs_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let resident = |limit: &str| {
        let line = format!("--model resnet20 --batch 4 --iterations 2 --time 1s --memory {limit}");
        report(&train(folder.path(), None, &line))["peak_resident_bytes"].as_u64().unwrap()
    };
    let (tight, generous) = (resident("9MiB"), resident("300MiB"));
    assert!(generous < tight + (8 << 20), "{generous} resident instead of {tight}");
}

#[test]
fn memory_for_host_copies_has_to_be_asked_for_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let line = "--model resnet20 --batch 4 --iterations 2 --time 1s --memory 60%";
    let host = |option: &str| {
        let report = report(&train(folder.path(), None, &format!("{line} {option}")));
        (report["host"].as_str().unwrap().to_owned(), report["host_kind"].as_str().unwrap().to_owned())
    };
    assert_eq!(host("--host memory"), ("memory".to_owned(), "memory".to_owned()));
    let printed = support::expect_both(folder.path(), &format!("train {line} --host memory"), 0).0;
    let words = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("resident memory") && words.contains("host copies are in memory"), "{printed}");
    if Path::new("/dev/shm").is_dir() {
        let kind = ("/dev/shm".to_owned(), "folder_in_memory".to_owned());
        assert_eq!(host("--host /dev/shm"), kind);
        let (place, kind) = {
            let report = report(&train(Path::new("/dev/shm"), None, line));
            (report["host"].as_str().unwrap().to_owned(), report["host_kind"].as_str().unwrap().to_owned())
        };
        assert!(place != "/dev/shm" && kind != "memory", "{place}, {kind}");
    }
}

/// The bytes that a training reserves with this limit on host memory, in memory and on a disk.
fn reserved(arguments: &str, host_memory: &str) -> [(u64, u64); 2] {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    ["memory", "."].map(|place| {
        let line = format!("train {arguments} --host-memory {host_memory} --host {place} --verify --json");
        let out = support::expect_both(folder.path(), &line, 0).0;
        let report: Value = serde_json::from_str(&out).unwrap();
        let number = |name: &str| report[name].as_u64().unwrap();
        assert_eq!(report["verified"], true, "{report}");
        (number("host_reserved_bytes"), number("dynamic_host_bytes"))
    })
}

#[test]
fn host_memory_is_a_limit_on_what_is_reserved() {
    let line = "--model resnet20 --batch 2 --memory 75% --iterations 3 --time 1s --threads 1";
    for (text, bytes) in [("24KiB", 24 << 10), ("300KiB", 300 << 10), ("1MiB", 1 << 20)] {
        let [memory, disk] = reserved(line, text);
        for (reserved, used) in [memory, disk] {
            assert!(used <= reserved && reserved <= bytes, "{used} used and {reserved} reserved of {text}");
        }
        assert!(memory.1 > 0, "nothing was offloaded, which would show nothing");
    }
}

#[test]
fn a_folder_needs_no_more_space_than_is_reserved() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let binary = env!("CARGO_BIN_EXE_elbowroom");
    let line = "--model resnet20 --batch 2 --memory 75% --iterations 2 --time 1s --host-memory 300KiB";
    // In blocks of 512 bytes: a file cannot have more than 300 KiB.
    let script = format!("trap '' XFSZ; ulimit -f 600; exec {binary} train {line} --host . --json");
    let output = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output().unwrap();
    let report = report(&output);
    assert!(report["host_reserved_bytes"].as_u64().unwrap() <= 300 << 10, "{report}");
}

/// What a full disk or a limit on host memory leaves too little of is named with what is needed and what to do.
#[test]
fn too_little_host_memory_is_named() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let line = "train --model resnet20 --batch 8 --iterations 1 --time 1s --threads 1 --no-recompute";
    let refused = |options: &str| {
        let (out, err) = support::expect_both(folder.path(), &format!("{line} {options} --json"), 1);
        let refusal: Value = serde_json::from_str(&out).unwrap();
        (refusal, err)
    };
    let number = |refusal: &Value, name: &str| refusal[name].as_u64().unwrap();
    let (refusal, err) = refused("--memory 50% --host memory --host-memory 100KiB");
    let needed = number(&refusal, "host_needed_bytes");
    assert_eq!(number(&refusal, "host_available_bytes"), 100 << 10, "{refusal}");
    assert!(refusal["host_folder"].is_null() && needed > 100 << 10, "{refusal}");
    assert!(err.contains("limited to 100.00 KiB: a larger --host-memory works"), "{err}");
    // As it says. Measured times choose the algorithms of each run, so that the bytes needed differ between two runs.
    support::expect_both(
        folder.path(),
        &format!("{line} --memory 50% --host memory --host-memory {}", 2 * needed),
        0,
    );
    let more = refused("--memory 1KiB --host memory --host-memory 100KiB").0;
    assert!(more["host_needed_bytes"].is_null(), "more host memory does not help: {more}");
}
