//! Compares trainings of networks of today with PyTorch: time of an iteration and resident memory. The library trains without a limit and within 70,
//! 50 and 30 % of the unconstrained peak; PyTorch in eager mode, with `torch.compile` and with checkpointing. In bf16 it trains with autocast, and in f32
//! in eager mode, which some processors do faster.
//!
//! `cargo run --release -p elbowroom --example today -- --python PYTHON [--threads 1] [--precision f32|bf16] [--convolutions plain|winograd] [--turns 5]
//! [--time SECONDS] [--only PART-OF-A-NAME] [--json]`
//!
//! Each side is a process of its own: a whole training by the library, as `elbowroom train` runs it, with offloaded tensors in a file, and
//! `peers/pytorch.py`. Times are of the processor on one thread, and of the wall on several. Resident memory is the largest of the process, with code,
//! planning, tables and PyTorch's compiler. The sides run in turns, one or several iterations each; a ratio to PyTorch in eager mode (to autocast in
//! bf16) is the median of the ratios of neighbours in time, in brackets its 95 % interval from order statistics.
//!
//! With `--convolutions winograd` the library computes some convolutions by Winograd's algorithm, as with this option of `elbowroom train`.
//!
//! `today serve MODEL PRECISION CONVOLUTIONS THREADS SHARE SECONDS` is one side of ours: it trains until its standard input ends. A line with a number is answered
//! with the times of as many iterations in milliseconds, the line `resident` with bytes. Iterations without a plan are not counted.

#[path = "peers/networks.rs"]
mod networks;
#[path = "peers/peer.rs"]
mod peer;
#[path = "peers/timing.rs"]
mod timing;

use std::io::BufRead;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use elbowroom::engine;
use elbowroom::graph::{Convolutions, Precision};
use elbowroom::ir::search::Observer;
use elbowroom::observer::{Iteration, TrainObserver};
use elbowroom::resident;
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;
use networks::{NETWORKS, Network};
use peer::{Failure, Peer, median};
use timing::{Clock, Ratio};

/// Our sides: shares of the unconstrained peak.
const SHARES: [&str; 4] = ["100%", "70%", "50%", "30%"];
/// Planned iterations that are not counted: pages are fresh, and other algorithms may be chosen behind the first iteration.
const WARM: u64 = 3;

struct Settings {
    python: String,
    threads: usize,
    precision: Precision,
    convolutions: Convolutions,
    turns: usize,
    time: u64,
    only: String,
    json: bool,
}

impl Settings {
    /// PyTorch's sides: its ways. The others are compared with the first.
    fn ways(&self) -> &'static [&'static str] {
        match self.precision {
            Precision::F32 => &["eager", "compiled", "checkpointed"],
            Precision::Bf16 => &["autocast", "eager"],
        }
    }
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [serve, name, precision, convolutions, threads, share, seconds] = &words[..]
        && serve == "serve"
    {
        let time = Duration::from_secs(seconds.parse()?);
        return serve_training(
            name,
            precision.parse()?,
            convolutions.parse()?,
            threads.parse()?,
            share,
            time,
        );
    }
    let settings = settings(words.into_iter())?;
    for network in NETWORKS.iter().filter(|network| network.name.contains(&settings.only)) {
        let measured = measure(network, &settings)?;
        if settings.json { measured.print_json(network) } else { measured.print(network, &settings) }
    }
    Ok(())
}

fn settings(words: impl Iterator<Item = String>) -> Result<Settings, Failure> {
    let mut settings = Settings {
        python: "python3".to_owned(),
        threads: 1,
        precision: Precision::F32,
        convolutions: Convolutions::Plain,
        turns: 5,
        time: 10,
        only: String::new(),
        json: false,
    };
    settings.json = peer::options(words, |option, value| {
        match option {
            "--python" => settings.python = value,
            "--threads" => settings.threads = value.parse::<usize>()?.max(1),
            "--precision" => settings.precision = value.parse()?,
            "--convolutions" => settings.convolutions = value.parse()?,
            "--turns" => settings.turns = value.parse::<usize>()?.max(1),
            "--time" => settings.time = value.parse::<u64>()?.max(1),
            "--only" => settings.only = value,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(settings)
}

/// One side.
struct Side {
    name: String,
    /// In milliseconds.
    times: Vec<f64>,
    /// The largest resident memory in bytes.
    resident: u64,
}

/// The sides of one network: ours at every share, and PyTorch's.
struct Measured {
    ours: Vec<Side>,
    theirs: Vec<Side>,
    version: String,
}

/// Trains a network on all sides, in turns.
fn measure(network: &Network, settings: &Settings) -> Result<Measured, Failure> {
    let [precision, threads, time] =
        [settings.precision.name(), &settings.threads.to_string(), &settings.time.to_string()];
    // An iteration of the LSTM takes some milliseconds.
    let ours = if network.name == "lstm" { "10" } else { "1" };
    let theirs = format!("{} {ours}", network.name);
    // Each plans, chooses algorithms and compiles alone, before the next begins.
    let mut peers: Vec<(&str, Peer, &str)> = Vec::new();
    let mut begin = |name, mut peer: Peer, question| -> Result<(), Failure> {
        peer.ask(question)?;
        peers.push((name, peer, question));
        Ok(())
    };
    for share in SHARES {
        let words = ["serve", network.name, precision, settings.convolutions.name(), threads, share, time];
        begin(share, Peer::start(Command::new(std::env::current_exe()?).args(words))?, ours)?;
    }
    for way in settings.ways() {
        begin(way, Peer::pytorch(&settings.python, settings.threads, way)?, &theirs)?;
    }
    let version = peers[SHARES.len()].1.ask("version")?;
    let mut times = vec![Vec::new(); peers.len()];
    for _ in 0..settings.turns {
        for ((_, peer, question), times) in peers.iter_mut().zip(&mut times) {
            times.push(peer.median(question)?);
        }
    }
    let mut sides = Vec::new();
    for ((name, mut peer, _), times) in peers.into_iter().zip(times) {
        sides.push(Side { name: name.to_owned(), times, resident: peer.ask("resident")?.parse()? });
    }
    let theirs = sides.split_off(SHARES.len());
    Ok(Measured { ours: sides, theirs, version })
}

impl Measured {
    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.ours.iter().chain(&self.theirs)
    }

    /// The ratio of a side's times to those of PyTorch's first way.
    fn ratio(&self, side: &Side) -> Ratio {
        Ratio::of(&side.times, &self.theirs[0].times)
    }

    fn print(&self, network: &Network, settings: &Settings) {
        let (precision, threads) = (settings.precision.name(), settings.threads);
        println!(
            "{}, batch {}, {precision}, threads: {threads}; PyTorch {}",
            network.name, network.batch, self.version
        );
        let first = &self.theirs[0].name;
        for side in self.sides() {
            let (ms, megabytes) = (median(&side.times), side.resident as f64 / 1e6);
            println!("{:>12} {ms:>12.2} ms {megabytes:>10.1} MB   ÷ {first} {}", side.name, self.ratio(side));
        }
    }

    fn print_json(&self, network: &Network) {
        let mut object =
            serde_json::json!({ "network": network.name, "batch": network.batch, "pytorch": self.version });
        for (at, side) in self.sides().enumerate() {
            let prefix = match side.name.as_str() {
                "100%" => "unlimited".to_owned(),
                _ if at == self.ours.len() => "pytorch".to_owned(),
                name => name.strip_suffix('%').map_or(name.to_owned(), |share| format!("limited_{share}")),
            };
            let ratio = self.ratio(side);
            object[format!("{prefix}_ns")] = ((median(&side.times) * 1e6) as u64).into();
            object[format!("{prefix}_resident_bytes")] = side.resident.into();
            object[format!("{prefix}_to_pytorch")] = ratio.median.into();
            object[format!("{prefix}_to_pytorch_low")] = ratio.low.into();
            object[format!("{prefix}_to_pytorch_high")] = ratio.high.into();
        }
        println!("{object}");
    }
}

/// Trains a network until standard input ends.
fn serve_training(
    name: &str,
    precision: Precision,
    convolutions: Convolutions,
    threads: usize,
    share: &str,
    time: Duration,
) -> Result<(), Failure> {
    engine::return_freed_memory();
    let memory: MemorySpec = share.parse()?;
    let network = Network::of(name)?.model(precision, convolutions)?;
    let training = Training::new(network, memory).threads(threads).time(time).iterations(u64::MAX >> 1);
    training.run_observed(&Answering { clock: Clock::of(threads), state: Mutex::default() })?;
    Ok(())
}

/// Answers questions between iterations.
struct Answering {
    clock: Clock,
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
        let ended = self.clock.now();
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
        state.began = self.clock.now();
    }
}
