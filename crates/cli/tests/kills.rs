//! Kills at random moments of planning, training, saving and spilling: every checkpoint found afterwards is whole, and the training that
//! resumes from it ends with the same bits as one that was never killed.

#[path = "../../pack/tests/random/mod.rs"]
mod random;
mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use elbowroom::checkpoint::Checkpoint;
use random::Random;
use support::expect_both;

/// Offloads to a file in every iteration, and saves after every one.
const LINE: &str = "train --model resnet20 --batch 4 --image 8 --threads 1 --memory 80% --planner floor --iterations 12 \
                    --save-every 1 --host . --json --save";

/// The iterations in a checkpoint that must be whole; 0 if there is none yet.
fn iterations_in(path: &Path) -> u64 {
    if path.exists() { Checkpoint::open(path).unwrap().header.iterations_done } else { 0 }
}

fn hidden(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with('.')).count()
}

/// Kills `kills` runs, the moments drawn from the seed.
fn kill(kills: u64, seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (at, file) = (folder.path(), folder.path().join("m"));
    let started = Instant::now();
    expect_both(at, &format!("{LINE} unused"), 0);
    let whole_run = started.elapsed();
    std::fs::remove_file(at.join("unused")).unwrap();

    let (mut moments, mut before, mut progressed, mut left) = (Random::new(seed), 0, 0, 0);
    for _ in 0..kills {
        let share = moments.below(1 << 53) as f64 / (1u64 << 53) as f64;
        let resume = if file.exists() { ["--resume", "m"].as_slice() } else { &[] };
        let mut child = Command::new(env!("CARGO_BIN_EXE_elbowroom"))
            .args(LINE.split_whitespace().chain(["m"]).chain(resume.iter().copied()))
            .current_dir(at)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_secs_f64(whole_run.as_secs_f64() * share));
        child.kill().unwrap();
        child.wait().unwrap();
        let now = iterations_in(&file);
        assert!(now >= before, "{now} iterations after {before}");
        progressed += u64::from(now > before);
        left += hidden(at);
        // A run that saves removes what the killed run before it left.
        assert!(hidden(at) <= 1 || now == before, "temporary files pile up");
        before = now;
    }
    eprintln!("{kills} kills, {progressed} after a save, {left} temporary files seen, {before} iterations");
    assert!(progressed > 0 || kills < 8, "no run lived long enough to save");

    let resume = if file.exists() { "--resume m" } else { "" };
    expect_both(at, &format!("{LINE} m {resume}"), 0);
    assert_eq!(hidden(at), 0, "no temporary file is left");
    let total = iterations_in(&file);
    let line = LINE.replace("--iterations 12 --save-every 1", &format!("--iterations {total}"));
    expect_both(at, &format!("{line} whole"), 0);
    assert!(
        std::fs::read(&file).unwrap() == std::fs::read(at.join("whole")).unwrap(),
        "the killed training and the whole one differ after {total} iterations"
    );
}

#[test]
fn killed_runs_resume_to_the_same_bits() {
    kill(10, 1);
}

#[test]
#[ignore = "takes minutes"]
fn a_hundred_killed_runs_resume_to_the_same_bits() {
    kill(100, 2);
}
