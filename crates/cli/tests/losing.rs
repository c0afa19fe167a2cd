//! A training loses nothing that it can keep: signals, full disks, divergence and damaged files through the command.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use elbowroom::checkpoint::Checkpoint;
use serde_json::Value;
use support::expect_both;

/// A network whose iterations take milliseconds.
const SMALL: &str =
    "--model resnet20 --batch 2 --image 8 --width 4 --threads 1 --planner keep --memory 100% --host memory";

/// Starts the command under a shell that first runs `before`. Signals have their default effects even if these tests run under `nohup`.
fn start(folder: &Path, before: &str, line: &str) -> Child {
    Command::new("env")
        .args([
            "--default-signal",
            "sh",
            "-c",
            &format!("{before} exec {} {line}", env!("CARGO_BIN_EXE_elbowroom")),
        ])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the shell runs")
}

/// Reads standard output until a line contains `text`.
fn wait_for(child: &mut Child, text: &str) -> BufReader<std::process::ChildStdout> {
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "standard output ended before `{text}`");
    }
    out
}

fn send(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Waits for the end; returns exit status, the rest of standard output and standard error.
fn end(mut child: Child, mut out: impl Read) -> (Option<i32>, String, String) {
    let [mut rest, mut err] = [String::new(), String::new()];
    out.read_to_string(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (child.wait().unwrap().code(), rest, err)
}

/// Runs the command to its end, as [`start`] does.
fn run(folder: &Path, before: &str, line: &str) -> (Option<i32>, String, String) {
    let mut child = start(folder, before, line);
    let out = child.stdout.take().unwrap();
    end(child, out)
}

/// Trains for 7 iterations on a full disk, for which a limit on file sizes stands (in blocks of 512 or 1024 bytes). Returns the report and
/// standard error.
fn train_on_full_disk(folder: &Path, saving: &str) -> (Value, String) {
    let line = format!("train {SMALL} --iterations 7 {saving} --json");
    let (status, out, err) = run(folder, "ulimit -f 8;", &line);
    assert_eq!(status, Some(2), "{err}");
    let report: Value = serde_json::from_str(&out).expect("the object is printed");
    assert_eq!(report["losses"].as_array().unwrap().len(), 7);
    assert!(names(folder).is_empty(), "no temporary file is left");
    (report, err)
}

fn iterations_in(path: &Path) -> u64 {
    Checkpoint::open(path).unwrap().header.iterations_done
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn signals_save_and_give_their_own_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.safetensors");
    for (signal, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        // The comparison with an unlimited run is left out, not found to differ.
        for options in ["", "--verify"] {
            let line = format!("train {SMALL} --iterations 1000000 --save m.safetensors {options}");
            let mut child = start(folder.path(), "", &line);
            let out = wait_for(&mut child, "iteration 3");
            send(&child, signal);
            let (found, out, err) = end(child, out);
            assert_eq!(found, Some(status), "{out}{err}");
            assert!(out.contains("Result"), "the report is printed: {out}");
            let saved = format!("m.safetensors contains {} iterations", iterations_in(&file));
            assert!(err.contains(&format!("interrupted by SIG{signal}")) && err.contains(&saved), "{err}");
            assert_eq!(names(folder.path()), ["m.safetensors"]);
            std::fs::remove_file(&file).unwrap();
        }
    }
}

#[test]
fn a_signal_prints_the_object_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.safetensors");
    let line = format!("train {SMALL} --iterations 1000000 --save m.safetensors --save-every 1 --json");
    let mut child = start(folder.path(), "", &line);
    while !file.exists() {
        std::thread::yield_now();
    }
    send(&child, "TERM");
    let out = child.stdout.take().unwrap();
    let (status, out, err) = end(child, out);
    assert_eq!(status, Some(143), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["ending"].as_str(), Some("interrupted"));
    assert_eq!(report["saved_iterations"].as_u64(), Some(iterations_in(&file)));
    assert_eq!(report["losses"].as_array().unwrap().len() as u64, iterations_in(&file));
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_signal_ends_a_search_for_a_network_with_its_best_plan() {
    let folder = tempfile::tempdir().unwrap();
    let line = "plan --model resnet20 --batch 16 --memory 75% --no-offload --time 100s --json";
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        let mut child = start(folder.path(), "", line);
        wait_for_handlers(&child);
        // Time to trace the network and to begin the search.
        std::thread::sleep(std::time::Duration::from_secs(3));
        send(&child, signal);
        let out = child.stdout.take().unwrap();
        let (found, out, err) = end(child, out);
        assert_eq!(found, Some(status), "{out}{err}");
        assert!(serde_json::from_str::<Value>(&out).is_ok_and(|plan| plan.is_object()), "{out}{err}");
    }
}

#[test]
fn a_signal_ends_a_command_that_waits_for_its_input() {
    use std::os::unix::process::ExitStatusExt;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for line in
        ["plan pipe", "compare pipe", "pack pipe", "pack --bank a=1MiB pipe", "why pipe", "report pipe -o p"]
    {
        let mut child = start(folder.path(), "", line);
        // Opens once the command reads.
        let writer = std::fs::File::options().write(true).open(&pipe).unwrap();
        send(&child, "TERM");
        let ended = support::end_within(std::time::Duration::from_secs(20), &mut child);
        assert_eq!(ended.and_then(|status| status.signal()), Some(15), "{line}");
        drop(writer);
    }
    assert_eq!(names(folder.path()), ["pipe"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_during_the_wait_for_another_file_prints_what_was_packed() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::write(folder.path().join("first.csv"), "id,lower,upper,size\n0,0,2,64\n1,1,3,64\n").unwrap();
    let mut child = start(folder.path(), "", "pack first.csv pipe --json");
    // Opens once the command reads the second file.
    let writer = std::fs::File::options().write(true).open(&pipe).unwrap();
    send(&child, "TERM");
    let out = child.stdout.take().unwrap();
    let (status, out, err) = end(child, out);
    assert_eq!(status, Some(143), "{err}");
    let printed: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(printed["rows"].as_array().map(Vec::len), Some(1), "{out}");
    assert!(err.contains("interrupted by SIGTERM"), "{err}");
    drop(writer);
}

#[test]
fn a_signal_before_the_first_iteration_ends_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let line = "train --model resnet20 --batch 16 --memory 40% --time 100s --save m.safetensors";
    let mut child = start(folder.path(), "", line);
    let out = wait_for(&mut child, "Network");
    send(&child, "TERM");
    let (status, _, err) = end(child, out);
    assert_eq!(status, Some(143), "{err}");
    assert!(err.contains("before the first iteration"), "{err}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_signal_that_ends_inference_speaks_of_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("train {SMALL} --iterations 1000000 --forward-only");
    for (text, sentence) in [
        ("iteration 3", "inference stopped after"),
        ("Network", "inference stopped before the first iteration"),
    ] {
        // Planning without end keeps the second one from its first iteration.
        let search =
            if text == "Network" { "--planner auto --memory 70% --batch 64 --time 100s" } else { "" };
        let line = match search {
            "" => line.clone(),
            search => format!("train --model resnet56 --forward-only --threads 1 --host memory {search}"),
        };
        let mut child = start(folder.path(), "", &line);
        let out = wait_for(&mut child, text);
        send(&child, "TERM");
        let (status, _, err) = end(child, out);
        assert_eq!(status, Some(143), "{err}");
        assert!(err.contains(sentence) && !err.contains("save"), "{err}");
    }
}

#[test]
fn a_hangup_that_nohup_ignores_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("train {SMALL} --iterations 30");
    let mut child = start(folder.path(), "trap '' HUP;", &line);
    let out = wait_for(&mut child, "iteration 3");
    send(&child, "HUP");
    let (status, out, err) = end(child, out);
    assert_eq!(status, Some(0), "{err}");
    assert!(out.contains("iteration 29"), "{out}");
}

/// Waits until the process handles SIGTERM, as Linux says.
#[cfg(target_os = "linux")]
fn wait_for_handlers(child: &Child) {
    let catches = |mask: &str| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & (1 << 14) != 0);
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        if status.lines().find_map(|line| line.strip_prefix("SigCgt:")).is_some_and(catches) {
            return;
        }
        std::thread::yield_now();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_before_any_result_still_prints_an_object() {
    let folder = tempfile::tempdir().unwrap();
    let line = "train --model resnet20 --batch 16 --memory 40% --time 100s --save m.safetensors --json";
    let mut child = start(folder.path(), "", line);
    wait_for_handlers(&child);
    send(&child, "TERM");
    let out = child.stdout.take().unwrap();
    let (status, out, err) = end(child, out);
    assert_eq!(status, Some(143), "{out}{err}");
    let report: Value = serde_json::from_str(&out).expect("the object is printed");
    assert_eq!(
        (report["ending"].as_str(), report["losses"].as_array().unwrap().len()),
        (Some("interrupted"), 0)
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_a_search_with_its_own_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    expect_both(folder.path(), "trace --model resnet20 --batch 16 -o r.trace", 0);
    let mut child = start(folder.path(), "", "plan r.trace --memory 75% --no-offload --time 100s");
    wait_for_handlers(&child);
    send(&child, "TERM");
    let out = child.stdout.take().unwrap();
    let (status, out, err) = end(child, out);
    assert_eq!(status, Some(143), "{out}{err}");
    assert!(err.contains("interrupted by SIGTERM"), "{err}");
}

#[test]
fn a_full_disk_does_not_end_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let (report, err) = train_on_full_disk(folder.path(), "--save m.safetensors --save-every 2");
    assert!(report["failed_saves"].as_u64() >= Some(4), "it tries again: {report}");
    assert!(report["save_error"].is_string() && report["saved_iterations"].is_null(), "{report}");
    assert!(err.contains("cannot save to m.safetensors") && err.contains("training continues"), "{err}");
    assert!(err.contains("the state after 7 iterations is lost"), "{err}");
}

#[test]
fn a_full_disk_at_the_end_loses_no_results() {
    let folder = tempfile::tempdir().unwrap();
    let (report, err) = train_on_full_disk(folder.path(), "--save-weights w.safetensors");
    assert!(report["weights_error"].is_string(), "{report}");
    let sentence = "the weights after 7 iterations are lost: cannot save weights to w.safetensors: ";
    assert!(err.contains(sentence), "{err}");
}

/// The first page does not fit on the disk, or there is nothing that could be shown.
#[test]
fn no_empty_folder_of_pages_is_left() {
    let folder = tempfile::tempdir().unwrap();
    expect_both(folder.path(), "trace --model resnet20 --batch 2 --image 8 --width 4 -o r.trace", 0);
    let compare = "compare r.trace --planners keep --steps 1 --memory 100%..100% --html new/pages";
    for line in [compare, "reproduce sekiyama-fig3 --quick -o new/pages"] {
        let (status, out, err) = run(folder.path(), "ulimit -f 0;", line);
        assert_eq!(status, Some(2), "{out}{err}");
        assert!(err.contains("cannot write new/pages/"), "{err}");
        assert_eq!(names(folder.path()), ["r.trace"]);
    }
    expect_both(folder.path(), "compare none.trace --html new/pages", 2);
    assert_eq!(names(folder.path()), ["r.trace"]);
    // What was there before stays.
    std::fs::create_dir(folder.path().join("new")).unwrap();
    expect_both(folder.path(), "compare none.trace --html new", 2);
    expect_both(folder.path(), compare, 0);
    assert!(folder.path().join("new/pages/index.html").exists());
}

/// Here the limit on file sizes is first less than a line, then less than a few.
#[test]
fn a_log_on_a_full_disk_holds_whole_lines() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let line = format!("train {SMALL} --iterations 30 --log log");
    let full = |blocks: u32| {
        let (status, out, err) = run(folder.path(), &format!("ulimit -f {blocks};"), &line);
        assert_eq!(status, Some(2), "{out}{err}");
        assert!(err.contains("cannot write the log log: "), "{err}");
    };
    full(0);
    assert!(names(folder.path()).is_empty(), "no empty log is left");
    full(1);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.ends_with('\n') && text.lines().count() > 1, "{text}");
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    // What was there before stays, even if it is nothing.
    std::fs::write(&log, "").unwrap();
    full(0);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "");
}

/// The limit is below what any plan needs.
#[test]
fn a_training_that_is_refused_leaves_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let line = "train --model resnet20 --batch 2 --image 8 --width 4 --memory 1KiB --log log";
    expect_both(folder.path(), line, 1);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn divergence_stops_the_training_and_keeps_the_last_good_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.safetensors");
    let line = format!("train {SMALL} --iterations 30 --learning-rate 1e12 --json");
    for save in ["", "--save m.safetensors --save-every 1"] {
        let (out, err) = expect_both(folder.path(), &format!("{line} {save}"), 1);
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["ending"].as_str(), Some("diverged"), "{report}");
        assert!(report["losses"].as_array().unwrap().len() < 30);
        assert!(err.contains("so that training stopped"), "{err}");
        assert_eq!(report["saved_iterations"].as_u64(), file.exists().then(|| iterations_in(&file)));
    }
    // A good checkpoint stays.
    let good = format!("train {SMALL} --iterations 2 --save m.safetensors");
    expect_both(folder.path(), &good, 0);
    let before = std::fs::read(&file).unwrap();
    let line = format!("{line} --resume m.safetensors --save m.safetensors --save-every 100");
    let (_, err) = expect_both(folder.path(), &line, 1);
    assert_eq!(std::fs::read(&file).unwrap(), before, "{err}");
}

#[test]
fn a_checkpoint_brings_its_seed() {
    let folder = tempfile::tempdir().unwrap();
    let losses = |line: &str| -> Vec<Value> {
        let (out, _) = expect_both(folder.path(), &format!("train {SMALL} {line} --json"), 0);
        serde_json::from_str::<Value>(&out).unwrap()["losses"].as_array().unwrap().clone()
    };
    let whole = losses("--seed 7 --iterations 4 --save whole");
    let mut parts = losses("--seed 7 --iterations 2 --save half");
    parts.extend(losses("--iterations 2 --resume half --save half"));
    assert_eq!(whole, parts);
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(read("whole") == read("half"), "the same state is the same file");
    let (_, err) = expect_both(folder.path(), &format!("train {SMALL} --resume half --seed 8"), 2);
    assert!(err.contains("half was trained with seed 7, not 8"), "{err}");
}

#[test]
fn damaged_checkpoints_are_refused_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    expect_both(folder.path(), &format!("train {SMALL} --iterations 1 --save whole"), 0);
    let whole = std::fs::read(folder.path().join("whole")).unwrap();
    let at = |part: usize| whole.len() * part / 8;
    let zeros = |range: std::ops::Range<usize>| {
        let mut damaged = whole.clone();
        damaged[range].fill(0);
        damaged
    };
    let damaged = [
        whole[..at(7)].to_vec(),
        zeros(at(3)..at(4)),
        zeros(at(6)..at(6) + 1),
        [&whole[..], &[0; 8]].concat(),
    ];
    for bytes in damaged.into_iter().filter(|bytes| *bytes != whole) {
        std::fs::write(folder.path().join("damaged"), bytes).unwrap();
        let (_, err) = expect_both(folder.path(), &format!("train {SMALL} --resume damaged"), 2);
        assert!(
            err.contains("damaged is not a whole checkpoint") && err.trim_end().lines().count() == 1,
            "{err}"
        );
    }
}

#[test]
fn the_exit_status_counts_where_nobody_can_read_the_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_elbowroom"))
        .args(["train", "--resume", "nowhere"])
        .current_dir(folder.path())
        .stderr(std::fs::File::options().write(true).open("/dev/full").unwrap())
        .status();
    assert_eq!(status.unwrap().code(), Some(2));
}
