//! The smallest control group in which a network still trains: ours, and PyTorch in eager mode. On Linux, where this user may make control groups.
//!
//! `cargo run --release -p elbowroom --example smallest_group -- --python PYTHON [--only PART-OF-A-NAME] [--json]`
//!
//! Each trial is a process of its own on one thread, in a group whose memory is limited and which has no swap: a training by the library with
//! a limit of the group's bytes less 60 MiB for code and tables, offloaded tensors in a file, or `peers/pytorch.py`. The sizes are bisected from
//! 4 GiB down until the smallest that trains is less than 5 % above one that does not. What files take in memory counts as well, but the
//! system takes it back first. A trial that has not computed three iterations within five minutes does not train.
//!
//! `smallest_group serve MODEL BYTES` is one trial of ours: it prints the time of an iteration in milliseconds.

#[path = "peers/control_group.rs"]
mod control_group;
#[path = "peers/networks.rs"]
mod networks;
#[path = "peers/peer.rs"]
mod peer;

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use control_group::ControlGroup;
use elbowroom::engine;
use elbowroom::graph::{Convolutions, Precision};
use elbowroom::ir::Bytes;
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;
use networks::{NETWORKS, Network};
use peer::{Failure, Peer};

const MIB: u64 = 1 << 20;
/// What a process may have resident in addition to its limit: code, stacks, batches and the planner's tables.
const OTHER: u64 = 60 * MIB;
const ITERATIONS: u64 = 3;
const LARGEST: u64 = 4096 * MIB;
/// The bisection ends at this ratio.
const CLOSE: f64 = 1.05;
const SECONDS: u64 = 300;

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, name, bytes] = &words[..]
        && serve == "serve"
    {
        return serve_training(Network::of(name)?, Bytes(bytes.parse()?));
    }
    let (mut python, mut only) = ("python3".to_owned(), String::new());
    let json = peer::options(words.into_iter(), |option, value| {
        match option {
            "--python" => python = value,
            "--only" => only = value,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let version = Peer::pytorch(&python, 1, "eager")?.ask("version")?;
    for network in NETWORKS.iter().filter(|network| network.name.contains(&only)) {
        let ours = smallest(network, |group| {
            let bytes = group.checked_sub(OTHER)?.to_string();
            let own = std::env::current_exe().ok()?.into();
            Some((vec![own, "serve".into(), network.name.into(), bytes.into()], None))
        })?;
        let theirs = smallest(network, |_| {
            let command = vec![python.clone().into(), peer::script().into(), "1".into()];
            Some((command, Some(format!("{} 1", network.name))))
        })?;
        let ratio = theirs.bytes as f64 / ours.bytes as f64;
        if json {
            let object = serde_json::json!({
                "network": network.name,
                "batch": network.batch,
                "pytorch": version,
                "group_bytes": ours.bytes,
                "iteration_ns": (ours.ms * 1e6) as u64,
                "pytorch_group_bytes": theirs.bytes,
                "pytorch_iteration_ns": (theirs.ms * 1e6) as u64,
                "ratio": ratio,
            });
            println!("{object}");
        } else {
            println!("{}, batch {}; PyTorch {version}", network.name, network.batch);
            for (name, side) in [("ours", ours), ("PyTorch", theirs)] {
                println!("{name:>10} {:>8} MiB {:>12.1} ms an iteration", side.bytes / MIB, side.ms);
            }
            println!("{:>10} {ratio:>8.1} times as much", "PyTorch");
        }
    }
    Ok(())
}

/// A group in which a training fits, and how long an iteration takes there.
struct Fitting {
    bytes: u64,
    ms: f64,
}

/// A command, and what it is asked, if it answers questions. `None` where the group is too small for any.
type Trial = Option<(Vec<OsString>, Option<String>)>;

/// The smallest group in which the command of its size computes iterations.
fn smallest(network: &Network, trial: impl Fn(u64) -> Trial) -> Result<Fitting, Failure> {
    let in_group = |bytes: u64| -> Result<Option<f64>, Failure> {
        let group = ControlGroup::new("smallest", bytes);
        let group = group.ok_or("no control group can be made here; run this as root")?;
        Ok(trial(bytes).and_then(|(command, question)| run(&group, &command, question.as_deref()).ok()))
    };
    let largest = in_group(LARGEST)?;
    let ms = largest.ok_or_else(|| format!("{} does not train in {} MiB", network.name, LARGEST / MIB))?;
    let mut found = Fitting { bytes: LARGEST, ms };
    let mut too_small = 32 * MIB;
    while found.bytes as f64 / too_small as f64 > CLOSE {
        let middle = (found.bytes as f64 * too_small as f64).sqrt() as u64 / MIB * MIB;
        match in_group(middle)? {
            Some(ms) => found = Fitting { bytes: middle, ms },
            None => too_small = middle,
        }
    }
    Ok(found)
}

/// The milliseconds of an iteration of a command in a group.
fn run(group: &ControlGroup, command: &[OsString], question: Option<&str>) -> Result<f64, Failure> {
    let in_group = format!("{} && exec \"$@\"", group.enter());
    let mut shell = Command::new("timeout");
    shell.args([&SECONDS.to_string(), "sh", "-c", &in_group, "sh"]).args(command);
    let mut peer = Peer::start(&mut shell)?;
    Ok(match question {
        Some(question) => peer.median(question)?,
        None => peer.answer()?.parse()?,
    })
}

fn serve_training(network: &Network, limit: Bytes) -> Result<(), Failure> {
    engine::return_freed_memory();
    let model = network.model(Precision::F32, Convolutions::Plain)?;
    let training = Training::new(model, MemorySpec::Absolute(limit)).threads(1).time(Duration::from_secs(10));
    let report = training.iterations(ITERATIONS).run()?;
    println!("{:.4}", report.measured_iteration_ns.0 as f64 / 1e6);
    Ok(())
}
