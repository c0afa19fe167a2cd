//! Networks of today on one thread: processor time of a training iteration and resident memory, without a limit and within half of the unconstrained
//! peak, beside PyTorch in eager mode.
//!
//! `cargo run --release -p elbowroom --example today -- --python PYTHON [--turns 5] [--time SECONDS] [--only PART-OF-A-NAME] [--json]`
//!
//! Each side is a process of its own: a whole training by the library, as `elbowroom train` runs it, with offloaded tensors in a file, and
//! `peers/pytorch.py`. Resident memory is the largest of the process, with code, planning and tables. The sides run in turns, one or several
//! iterations each; a ratio is the median of the ratios of neighbours in time, in brackets its 95 % interval from order statistics.
//!
//! `today serve MODEL SHARE SECONDS` is one side of ours: it trains until its standard input ends. A line with a number is answered with the processor
//! times of as many iterations in milliseconds, the line `resident` with bytes. Iterations without a plan are not counted.

#[path = "peers/peer.rs"]
mod peer;

use std::io::BufRead;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use elbowroom::engine;
use elbowroom::graph::zoo::Options;
use elbowroom::ir::search::Observer;
use elbowroom::network::Model;
use elbowroom::observer::{Iteration, TrainObserver};
use elbowroom::resident;
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;
use peer::{Clock, Failure, Peer, Ratio, median};

/// A network as `peers/pytorch.py` builds it too.
struct Row {
    name: &'static str,
    batch: usize,
    image: Option<usize>,
    /// Iterations of one turn.
    iterations: usize,
}

const fn row(name: &'static str, batch: usize, image: Option<usize>, iterations: usize) -> Row {
    Row { name, batch, image, iterations }
}

const NETWORKS: [Row; 7] = [
    row("resnet18", 64, None, 1),
    row("resnet50", 8, Some(224), 1),
    row("vgg16", 64, None, 1),
    row("densenet121", 32, None, 1),
    row("vit-b-16", 4, Some(224), 1),
    row("gpt2", 1, None, 1),
    row("lstm", 20, None, 10),
];
/// Threads of every side.
const THREADS: usize = 1;
/// Shares of the unconstrained peak.
const SHARES: [&str; 2] = ["100%", "50%"];
/// Planned iterations that are not counted: pages are fresh, and other algorithms may be chosen behind the first iteration.
const WARM: u64 = 3;

struct Settings {
    python: String,
    turns: usize,
    time: u64,
    only: String,
    json: bool,
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, name, share, time] = &words[..]
        && serve == "serve"
    {
        return serve_training(name, share, Duration::from_secs(time.parse()?));
    }
    let settings = settings(words.into_iter())?;
    let networks = NETWORKS.iter().filter(|row| row.name.contains(&settings.only));
    for row in networks {
        let measured = row.measure(&settings)?;
        if settings.json { measured.print_json(row) } else { measured.print(row) }
    }
    Ok(())
}

fn settings(words: impl Iterator<Item = String>) -> Result<Settings, Failure> {
    let mut settings =
        Settings { python: "python3".to_owned(), turns: 5, time: 10, only: String::new(), json: false };
    settings.json = peer::options(words, |option, value| {
        match option {
            "--python" => settings.python = value,
            "--turns" => settings.turns = value.parse::<usize>()?.max(1),
            "--time" => settings.time = value.parse::<u64>()?.max(1),
            "--only" => settings.only = value,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(settings)
}

/// One side: processor times in milliseconds, and the largest resident memory in bytes.
struct Side {
    times: Vec<f64>,
    resident: u64,
}

/// The sides of one network: ours at every share, and PyTorch.
struct Measured {
    ours: Vec<Side>,
    theirs: Side,
    version: String,
}

impl Row {
    fn measure(&self, settings: &Settings) -> Result<Measured, Failure> {
        let serve = |share: &str| {
            let time = settings.time.to_string();
            Peer::start(Command::new(std::env::current_exe()?).args(["serve", self.name, share, &time]))
        };
        let mut peers = SHARES.into_iter().map(serve).collect::<Result<Vec<_>, _>>()?;
        peers.push(Peer::pytorch(&settings.python, THREADS)?);
        let version = peers[SHARES.len()].ask("version")?;
        let ours = self.iterations.to_string();
        let theirs = format!("{} {ours}", self.name);
        let question = |side: usize| if side < SHARES.len() { &ours } else { &theirs };
        let mut times = vec![Vec::new(); peers.len()];
        for turn in 0..=settings.turns {
            for (side, peer) in peers.iter_mut().enumerate() {
                let time = peer.median(question(side))?;
                // In the first turn the sides wait for each other's planning.
                if turn > 0 {
                    times[side].push(time);
                }
            }
        }
        let resident = peers.iter_mut().map(|peer| Ok(peer.ask("resident")?.parse()?));
        let resident = resident.collect::<Result<Vec<u64>, Failure>>()?;
        let mut sides = times.into_iter().zip(resident).map(|(times, resident)| Side { times, resident });
        let ours = sides.by_ref().take(SHARES.len()).collect();
        let theirs = sides.next().ok_or("PyTorch is a side")?;
        Ok(Measured { ours, theirs, version })
    }
}

impl Measured {
    fn print(&self, row: &Row) {
        println!("{}, batch {}; PyTorch {}", row.name, row.batch, self.version);
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        for (share, side) in SHARES.iter().zip(&self.ours) {
            let ratio = Ratio::of(&side.times, &self.theirs.times);
            println!(
                "{share:>10} {:>12.2} ms {:>10.1} MB   ÷ PyTorch {ratio}",
                median(&side.times),
                megabytes(side.resident)
            );
        }
        let theirs = &self.theirs;
        println!(
            "{:>10} {:>12.2} ms {:>10.1} MB",
            "PyTorch",
            median(&theirs.times),
            megabytes(theirs.resident)
        );
    }

    fn print_json(&self, row: &Row) {
        let nanoseconds = |times: &[f64]| (median(times) * 1e6) as u64;
        let mut object = serde_json::json!({
            "network": row.name,
            "batch": row.batch,
            "pytorch": self.version,
            "pytorch_ns": nanoseconds(&self.theirs.times),
            "pytorch_resident_bytes": self.theirs.resident,
        });
        for (prefix, side) in ["unlimited", "limited"].into_iter().zip(&self.ours) {
            let ratio = Ratio::of(&side.times, &self.theirs.times);
            object[format!("{prefix}_ns")] = nanoseconds(&side.times).into();
            object[format!("{prefix}_resident_bytes")] = side.resident.into();
            object[format!("{prefix}_to_pytorch")] = ratio.median.into();
            object[format!("{prefix}_to_pytorch_low")] = ratio.low.into();
            object[format!("{prefix}_to_pytorch_high")] = ratio.high.into();
        }
        println!("{object}");
    }
}

/// Trains a network until standard input ends.
fn serve_training(name: &str, share: &str, time: Duration) -> Result<(), Failure> {
    engine::return_freed_memory();
    let row = NETWORKS.iter().find(|row| row.name == name).ok_or("there is no such network")?;
    let memory: MemorySpec = share.parse()?;
    let network = Model::new(row.name, Options::new(row.batch).image(row.image))?;
    let training = Training::new(network, memory).threads(THREADS).time(time).iterations(u64::MAX >> 1);
    training.run_observed(&Answering::default())?;
    Ok(())
}

/// Answers questions between iterations.
#[derive(Default)]
struct Answering {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Planned iterations so far.
    planned: u64,
    /// When the iteration began that runs now.
    began: f64,
    times: Vec<f64>,
    /// Iterations that the last question asked for.
    wanted: usize,
}

impl Observer for Answering {}

impl TrainObserver for Answering {
    fn iteration(&self, done: &Iteration) {
        let ended = Clock::of(THREADS).now();
        let Ok(mut state) = self.state.lock() else { return };
        if !done.planned || state.planned < WARM {
            state.planned += u64::from(done.planned);
            return;
        }
        if state.times.len() < state.wanted {
            let time = ended - state.began;
            state.times.push(time);
        }
        while state.times.len() == state.wanted {
            if state.wanted > 0 {
                println!(
                    "{}",
                    state.times.iter().map(|time| format!("{time:.4}")).collect::<Vec<_>>().join(" ")
                );
            }
            (state.times, state.wanted) = (Vec::new(), 0);
            let mut line = String::new();
            if !std::io::stdin().lock().read_line(&mut line).is_ok_and(|len| len > 0) {
                std::process::exit(0);
            }
            match line.trim() {
                "resident" => println!("{}", resident::most().unwrap_or_default().get()),
                count => state.wanted = count.parse().unwrap_or(0),
            }
        }
        state.began = Clock::of(THREADS).now();
    }
}
