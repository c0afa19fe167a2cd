//! Bytes of a caching pool against bytes of a plan, as in Figures 2 to 4 of Sekiyama et al., *Profile-guided memory optimization for deep
//! neural networks* (2018): four networks for images and a translator, training and inference, and the time that placing takes.
//!
//! `cargo run --release -p elbowroom --example pool_or_plan -- [--json] [PART-OF-A-NAME]`
//!
//! The pool is CuPy's as Chainer 3 used it: sizes are rounded up to 512 bytes, a request takes the smallest free chunk that holds it and
//! gives the rest back, freed chunks join free neighbours of the same device allocation, and where nothing fits a new allocation of just
//! the size is made; at the capacity all free allocations are given back first. It serves the same buffers as the plan, in the same
//! order, for [`ITERATIONS`] iterations. What persists (parameters, optimizer state, statistics) is left out on both sides, as the paper's
//! method leaves it alone. Our kernels' workspaces are counted; the paper's are cuDNN's.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::{Duration, Instant};

use elbowroom::graph::zoo::{self, Options};
use elbowroom::graph::{Graph, Mode};
use elbowroom::ir::packing::{Block, Interval, Problem};
use elbowroom::ir::planning::{Costs, Freedom, Request};
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::ir::{Bytes, Table};
use elbowroom::sim::cost::Roofline;
use elbowroom::{engine, registry, sim};

/// Mini-batches that the pool serves; the paper's seq2seq figure is taken after 10.
const ITERATIONS: usize = 10;
/// The pool's granularity.
const ROUNDED: u64 = 512;
/// The paper's device.
const CAPACITY: u64 = 16 << 30;
/// Longest sentence in training, and length of every translation in inference.
const WORDS: [usize; 2] = [50, 100];
/// Evaluations that our search may make: the same placement on every machine.
const EVALUATIONS: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let (options, names): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument == "--json");
    let json = !options.is_empty();
    let only = names.into_iter().next().unwrap_or_default();
    if !json {
        print_heads();
    }
    let images = [("alexnet", 227), ("googlenet", 224), ("resnet50", 224), ("inception-resnet-v2", 299)];
    for (name, size) in images.into_iter().filter(|(name, _)| name.contains(&only)) {
        for (mode, batch) in
            [(Mode::Training, 32), (Mode::Training, 64), (Mode::Training, 128), (Mode::Inference, 1)]
        {
            let options = Options::new(batch).mode(mode).image(size);
            measure(name, mode, batch, &[zoo::build(name, &options)?])?.print(json);
        }
    }
    if "seq2seq".contains(&only) {
        for batch in [32, 64, 128, 256] {
            let graphs: Result<Vec<Graph>, _> =
                (0..ITERATIONS).map(|at| translator(Mode::Training, batch, at)).collect();
            measure("seq2seq", Mode::Training, batch, &graphs?)?.print(json);
        }
        let graphs: Result<Vec<Graph>, _> =
            (0..ITERATIONS).map(|at| translator(Mode::Inference, 1, at)).collect();
        measure("seq2seq", Mode::Inference, 1, &graphs?)?.print(json);
    }
    Ok(())
}

fn print_heads() {
    println!(
        "{:<22}{:>10}{:>8}{:>12}{:>12}{:>10}{:>12}{:>10}{:>12}{:>8}{:>9}",
        "network",
        "batch",
        "buffers",
        "persistent",
        "pool MiB",
        "load MiB",
        "best-fit",
        "s",
        "ours MiB",
        "s",
        "saved"
    );
}

/// The translator for the lengths of one mini-batch, in the size of Chainer's example. Lengths are spread over 5 to 50 words.
fn translator(mode: Mode, batch: usize, iteration: usize) -> Result<Graph, zoo::ZooError> {
    let length = 5 + (iteration * 29 + 17) % (WORDS[0] - 4);
    let target = if mode == Mode::Training { 5 + (iteration * 23 + 11) % (WORDS[0] - 4) } else { WORDS[1] };
    let options =
        Options::new(batch).mode(mode).length(length).target(target).vocabulary(40_000).width(1024).layers(3);
    zoo::build("seq2seq", &options)
}

/// Buffers of one iteration that keeps everything until its last use: those that come and go, and the bytes of those that stay.
fn buffers(graph: &Graph) -> Result<(Vec<Block>, u64), Box<dyn Error>> {
    let trace = engine::trace(graph)?;
    let machine = sim::presets::machine("cpu").ok_or("the preset cpu exists")?.with_memory(Bytes(1 << 50));
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    let request = Request {
        trace: &trace,
        costs: &costs,
        machine: &machine,
        live_limit: machine.memory,
        freedom: Freedom { offload: false, recompute: false, ..Freedom::ALL },
        packer: None,
        pins: None,
    };
    let keep = registry::planner("keep")?.schedule(&request, &Budget::default(), &Silent);
    let schedule = keep.best.ok_or("everything can stay where memory is unlimited")?;
    let whole = Interval::new(0, schedule.steps.len() as u64);
    let all = sim::liveness::problem(&schedule, &machine).blocks;
    let (stay, go): (Vec<Block>, Vec<Block>) =
        all.values().cloned().partition(|block| block.alive == [whole]);
    Ok((go, stay.iter().map(|block| block.size.get()).sum()))
}

/// One network at one batch size: a single graph runs again and again, several take turns.
fn measure(name: &str, mode: Mode, batch: usize, graphs: &[Graph]) -> Result<Row, Box<dyn Error>> {
    let mut iterations = Vec::new();
    let (mut persistent, mut load, mut heuristic, mut ours) = (0, 0, 0, 0);
    let (mut heuristic_time, mut our_time) = (Duration::ZERO, Duration::ZERO);
    for graph in graphs {
        let (blocks, stay) = buffers(graph)?;
        persistent = persistent.max(stay);
        let problem = Problem { blocks: blocks.iter().cloned().collect::<Table<_, _>>(), capacity: None };
        load = load.max(problem.peak_live().get());
        for (packer, height, time) in
            [("best-fit", &mut heuristic, &mut heuristic_time), ("auto", &mut ours, &mut our_time)]
        {
            let started = Instant::now();
            let outcome =
                registry::packer(packer)?.pack(&problem, &Budget::evaluations(EVALUATIONS), &Silent);
            *time = (*time).max(started.elapsed());
            // A new plan reuses the arena of the earlier ones, or makes it as large as it needs.
            *height =
                (*height).max(outcome.best.ok_or("a placement without a capacity exists")?.height.get());
        }
        iterations.push(blocks);
    }
    let mut pool = Pool::default();
    for iteration in 0..ITERATIONS {
        pool.serve(&iterations[iteration % iterations.len()]);
    }
    Ok(Row {
        name: name.to_owned(),
        batch: if mode == Mode::Training { batch.to_string() } else { "inference".to_owned() },
        buffers: iterations.iter().map(Vec::len).max().unwrap_or(0),
        persistent,
        pool: pool.most,
        load,
        heuristic,
        heuristic_time,
        ours,
        our_time,
    })
}

/// What one network needs, in bytes, and how long the slowest placement took.
struct Row {
    name: String,
    batch: String,
    buffers: usize,
    persistent: u64,
    pool: u64,
    load: u64,
    heuristic: u64,
    heuristic_time: Duration,
    ours: u64,
    our_time: Duration,
}

impl Row {
    fn print(&self, json: bool) {
        if json {
            let object = serde_json::json!({
                "network": self.name,
                "batch": self.batch,
                "buffers": self.buffers,
                "persistent_bytes": self.persistent,
                "pool_bytes": self.pool,
                "peak_live_bytes": self.load,
                "best_fit_bytes": self.heuristic,
                "best_fit_ns": self.heuristic_time.as_nanos() as u64,
                "arena_bytes": self.ours,
                "whole_pool_bytes": self.pool + self.persistent,
                "whole_arena_bytes": self.ours + self.persistent,
                "packing_ns": self.our_time.as_nanos() as u64,
            });
            println!("{object}");
            return;
        }
        let mebi = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "{:<22}{:>10}{:>8}{:>12.1}{:>12.1}{:>10.1}{:>12.1}{:>10.5}{:>12.1}{:>8.2}{:>8.1}%",
            self.name,
            self.batch,
            self.buffers,
            mebi(self.persistent),
            mebi(self.pool),
            mebi(self.load),
            mebi(self.heuristic),
            self.heuristic_time.as_secs_f64(),
            mebi(self.ours),
            self.our_time.as_secs_f64(),
            100.0 * (1.0 - self.ours as f64 / self.pool as f64),
        );
    }
}

/// A part of one device allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Chunk {
    size: u64,
    /// Which device allocation; they never join.
    allocation: usize,
    start: u64,
}

/// A best-fit pool with coalescing, over device allocations that are made as needed.
#[derive(Default)]
struct Pool {
    /// Free chunks, the smallest first.
    free: BTreeSet<Chunk>,
    /// Size of every device allocation; zero once it is given back.
    allocations: Vec<u64>,
    held: u64,
    most: u64,
}

impl Pool {
    /// Runs one iteration: frees and requests in the order of the schedule.
    fn serve(&mut self, blocks: &[Block]) {
        // (position, whether it is a request, which block): what ends at a position is free for what begins there.
        let mut events: Vec<(u64, bool, usize)> = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            for alive in &block.alive {
                events.extend([(alive.start, true, index), (alive.end, false, index)]);
            }
        }
        events.sort_unstable();
        let mut taken = vec![None; blocks.len()];
        for (_, request, index) in events {
            if request {
                taken[index] = Some(self.take(blocks[index].size.get().next_multiple_of(ROUNDED)));
            } else if let Some(chunk) = taken[index].take() {
                self.give_back(chunk);
            }
        }
    }

    fn take(&mut self, size: u64) -> Chunk {
        let least = Chunk { size, allocation: 0, start: 0 };
        let Some(chunk) = self.free.range(least..).next().copied() else {
            if self.held + size > CAPACITY {
                self.shrink();
            }
            self.allocations.push(size);
            self.held += size;
            self.most = self.most.max(self.held);
            return Chunk { size, allocation: self.allocations.len() - 1, start: 0 };
        };
        self.free.remove(&chunk);
        if chunk.size > size {
            self.free.insert(Chunk { size: chunk.size - size, start: chunk.start + size, ..chunk });
        }
        Chunk { size, ..chunk }
    }

    fn give_back(&mut self, mut chunk: Chunk) {
        let near = |free: &&Chunk| {
            free.allocation == chunk.allocation
                && (free.start + free.size == chunk.start || chunk.start + chunk.size == free.start)
        };
        let neighbours: Vec<Chunk> = self.free.iter().filter(near).copied().collect();
        for neighbour in neighbours {
            self.free.remove(&neighbour);
            chunk.start = chunk.start.min(neighbour.start);
            chunk.size += neighbour.size;
        }
        self.free.insert(chunk);
    }

    /// Gives whole free allocations back to the device.
    fn shrink(&mut self) {
        let allocations = &mut self.allocations;
        let held = &mut self.held;
        self.free.retain(|chunk| {
            let whole = chunk.size == allocations[chunk.allocation];
            if whole {
                *held -= chunk.size;
                allocations[chunk.allocation] = 0;
            }
            !whole
        });
    }
}
