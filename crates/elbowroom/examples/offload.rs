//! Every offload planner on every network of the zoo: plans are made at the smallest of 40, 60, 80 and 95 % of the unconstrained peak at which
//! the planner finds one, and run. Losses and parameters must be those of the unlimited training to the bit, and the bytes of arena and
//! of link those that were predicted.
//!
//! `cargo run --release -p elbowroom --example offload -- [PART-OF-A-NETWORK'S-NAME]`
//!
//! One line for each network; under each planner stands the limit, and `–` where it finds no plan at any of the four; then, for all planners
//! together, the MiB that leave in an iteration and the persistent values that are away over its end. The exit status is 1 if any promise
//! was broken.

#[path = "../tests/promise/mod.rs"]
mod promise;

use std::process::ExitCode;
use std::time::Instant;

use elbowroom::graph::zoo::Options;
use promise::{Failure, Network, PLANNERS};

/// Networks with their batches and image sizes, small; zero stands for the network's own default.
const NETWORKS: [(&str, usize, usize); 24] = [
    ("alexnet", 4, 67),
    ("vgg11", 32, 32),
    ("vgg13", 32, 32),
    ("vgg16", 32, 32),
    ("vgg19", 32, 32),
    ("googlenet", 2, 64),
    ("inception-v3", 2, 96),
    ("inception-resnet-v2", 1, 96),
    ("resnet18", 16, 32),
    ("resnet34", 4, 32),
    ("resnet50", 4, 32),
    ("resnet101", 2, 32),
    ("resnet152", 2, 32),
    ("resnet110", 4, 32),
    ("densenet121", 2, 32),
    ("densenet161", 1, 32),
    ("densenet169", 2, 32),
    ("densenet201", 2, 32),
    ("unet", 1, 64),
    ("stochastic-resnet18", 4, 32),
    ("lstm", 8, 0),
    ("seq2seq", 8, 0),
    ("gpt", 2, 0),
    ("kmeans", 2_000, 0),
];

/// Enough for every setting of the baselines.
const EVALUATIONS: u64 = 150;

fn main() -> ExitCode {
    let only = std::env::args().nth(1).unwrap_or_default();
    print!("{:<21}{:>6}", "network", "batch");
    PLANNERS.iter().for_each(|planner| print!("{planner:>9}"));
    println!("{:>10}{:>6}{:>7}", "to host", "away", "s");
    let (mut plans, mut broken) = (0, 0);
    for (name, batch, image) in NETWORKS.into_iter().filter(|(name, ..)| name.contains(&only)) {
        match print_row(name, batch, image) {
            Ok((ran, failed)) => (plans, broken) = (plans + ran, broken + failed),
            Err(why) => {
                println!("{name:<21}{batch:>6}  {why}");
                broken += 1;
            }
        }
    }
    println!("{plans} plans ran, {broken} broke a promise");
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Runs all planners on one network: how many plans ran, and how many broke a promise.
fn print_row(name: &str, batch: usize, image: usize) -> Result<(usize, usize), Failure> {
    let started = Instant::now();
    let options = Options::new(batch).image((image > 0).then_some(image));
    let mut network = Network::new(name, &options)?;
    print!("{name:<21}{batch:>6}");
    let (mut ran, mut away, mut to_host) = (0, 0, 0);
    let mut broken = Vec::new();
    for planner in PLANNERS {
        match network.run(planner, EVALUATIONS)? {
            Some(done) => {
                print!("{:>8}%", done.percent);
                ran += 1;
                away += done.away;
                to_host += done.traffic.to_host.get();
                let words = done.broken.iter().map(|what| format!("  {planner} on {name}: {what}"));
                broken.push(words.collect::<Vec<_>>());
            }
            None => print!("{:>9}", "–"),
        }
    }
    let to_host = to_host as f64 / f64::from(1 << 20);
    println!("{to_host:>10.1}{away:>6}{:>7.0}", started.elapsed().as_secs_f64());
    broken.iter().flatten().for_each(|what| println!("{what}"));
    Ok((ran, broken.iter().filter(|words| !words.is_empty()).count()))
}
