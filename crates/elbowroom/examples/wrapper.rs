//! A training program under the planned global allocator, and the same program without it: time, page faults and resident memory.
//!
//! `cargo run --release -p elbowroom --example wrapper [model] [batch] [iterations]` (Linux)
//!
//! The program is the interpreter, which asks for a block for every value of a network and gives it back after the value's last use. Each
//! side is a process of its own; without the wrapper means a threshold that no request reaches.

use std::process::{Command, Stdio};
use std::time::Instant;

use elbowroom::alloc::{PROCESS, Planned};
use elbowroom::data::{Feed, Samples};
use elbowroom::engine::interpreter::Interpreter;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::units;
use elbowroom::resident;

type Failure = Box<dyn std::error::Error>;

#[global_allocator]
static ALLOCATOR: Planned = Planned::system();

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().collect();
    if let Some(side) = words.get(4) {
        return train(&words[1], words[2].parse()?, words[3].parse()?, side);
    }
    let word = |at: usize, default: &str| words.get(at).map_or(default.to_owned(), String::clone);
    let task = [word(1, "resnet18"), word(2, "64"), word(3, "40")];
    println!("{} at batch {}, {} iterations, the later half counts", task[0], task[1], task[2]);
    println!(
        "{:<8}{:>16}{:>16}{:>18}{:>16}{:>20}",
        "", "ms, median", "page faults", "peak resident", "planned", "digest of outputs"
    );
    for side in ["libc", "wrapper"] {
        let child = Command::new(&words[0]).args(&task).arg(side).stderr(Stdio::inherit()).output()?;
        if !child.status.success() {
            return Err(format!("{side}: {}", child.status).into());
        }
        print!("{}", String::from_utf8_lossy(&child.stdout));
    }
    Ok(())
}

fn train(model: &str, batch: usize, iterations: usize, side: &str) -> Result<(), Failure> {
    if side == "libc" {
        PROCESS.set_threshold(usize::MAX);
    }
    let graph = zoo::build(model, &Options::new(batch))?;
    let mut feed = Feed::open(&graph, None, 0)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
    let mut interpreter = Interpreter::new(&graph, 0);
    let half = iterations / 2;
    let (mut times, mut faults, mut digest) = (Vec::new(), 0, 0u64);
    for iteration in 0..iterations {
        if iteration == half {
            faults = minor_faults()?;
        }
        let inputs: Vec<&[u8]> = feed.read(&graph, &Samples::From(iteration as u64))?.slots().collect();
        let started = Instant::now();
        let outputs = interpreter.run(&pool, &inputs)?;
        times.push(started.elapsed());
        for byte in outputs.concat() {
            digest = digest.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte);
        }
    }
    let faults = (minor_faults()? - faults) / (iterations - half).max(1) as u64;
    let median = units::median(&mut times[half..]).map_or(0.0, |time| time.as_secs_f64() * 1e3);
    let resident = resident::most().ok_or("the system does not say what is resident")?.get();
    let planned = 100.0 * PROCESS.stats().planned_share();
    println!("{side:<8}{median:>16.1}{faults:>16}{:>18}{planned:>14.1} %{digest:>20x}", resident);
    Ok(())
}

/// Minor page faults of this process so far: the tenth field of `stat`.
fn minor_faults() -> Result<u64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    Ok(after_name.split_whitespace().nth(7).ok_or("stat is shorter than it was")?.parse()?)
}
