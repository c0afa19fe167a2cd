//! Time per training iteration: kernels on plain heap buffers, managed at 100 % and at 70 % of the unconstrained peak with the memory tier, and,
//! where a Python with PyTorch is named, PyTorch in eager mode on as many threads.
//!
//! `cargo run --release -p elbowroom --example speed -- [--pairs 20] [--threads 2] [--python PYTHON] [--only PART-OF-A-NAME]
//! [--algorithms usual|equal|any] [--json]`
//!
//! `--json` prints one object for each network. `--algorithms equal` computes every operation with its fastest bit-exact algorithm, `any` with
//! its fastest.
//!
//! All sides run in turns, one iteration each (PyTorch five), so that other work on the machine slows all of them down. On one thread, times are
//! processor times. A ratio is the median of the ratios of neighbours in time, in brackets its 95 % interval from order statistics.

#[path = "peers/peer.rs"]
mod peer;
#[path = "peers/timing.rs"]
mod timing;

use std::sync::Arc;
use std::time::Duration;

use elbowroom::algorithms::{self, Candidates};
use elbowroom::data::{Feed, Samples};
use elbowroom::engine::kernels::heap::HeapRun;
use elbowroom::engine::{self, HostOptions, MeasuredCosts, Session, SessionOptions};
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::check::CheckedPlan;
use elbowroom::ir::machine::Machine;
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::size::MemorySpec;
use elbowroom::{registry, sim};
use peer::{Failure, Peer, median};
use timing::{Clock, Ratio};

/// Networks with their batches, as `peers/pytorch.py` builds them too.
const NETWORKS: [(&str, usize); 4] = [("resnet18", 64), ("vgg16", 64), ("lstm", 20), ("gpt", 8)];
/// Iterations of PyTorch in one turn.
const PEER: usize = 5;

struct Settings {
    pairs: usize,
    threads: usize,
    python: Option<String>,
    only: String,
    algorithms: String,
    json: bool,
}

fn main() -> Result<(), Failure> {
    let settings = settings()?;
    let mut peer =
        settings.python.as_deref().map(|python| Pytorch::start(python, settings.threads)).transpose()?;
    if !settings.json {
        print_heads(peer.as_ref());
    }
    for (name, batch) in NETWORKS.into_iter().filter(|(name, _)| name.contains(&settings.only)) {
        let row = measure(name, batch, &settings, peer.as_mut())?;
        if settings.json { row.print_json() } else { row.print() }
    }
    Ok(())
}

fn settings() -> Result<Settings, Failure> {
    let (only, algorithms) = (String::new(), "usual".to_owned());
    let mut settings = Settings { pairs: 20, threads: 2, python: None, only, algorithms, json: false };
    settings.json = peer::options(std::env::args().skip(1), |option, value| {
        match option {
            "--pairs" => settings.pairs = value.parse::<usize>()?.max(1),
            "--threads" => settings.threads = value.parse::<usize>()?.max(1),
            "--python" => settings.python = Some(value),
            "--only" => settings.only = value,
            "--algorithms" if ["usual", "equal", "any"].contains(&value.as_str()) => {
                settings.algorithms = value;
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(settings)
}

/// Times one network on all sides.
fn measure(
    name: &str,
    batch: usize,
    settings: &Settings,
    mut peer: Option<&mut Pytorch>,
) -> Result<Row, Failure> {
    let mut graph = Arc::new(zoo::build(name, &Options::new(batch))?);
    if settings.algorithms != "usual" {
        let numeric_changes = settings.algorithms == "any";
        let candidates =
            Candidates::measure(&graph, settings.threads, Bytes(u64::MAX), numeric_changes, &Silent)?;
        graph = candidates.fastest().graph;
        let counts = algorithms::counts(&graph).into_iter().map(|(name, count)| format!("{count} {name}"));
        eprintln!("{name}: convolutions and their gradients are {}", counts.collect::<Vec<_>>().join(", "));
    }
    let mut feed = Feed::open(&graph, None, 0)?;
    let inputs: Vec<&[u8]> = feed.read(&graph, &Samples::From(0))?.slots().collect();

    let method = Method::new(
        registry::planner(registry::DEFAULT_PLANNER)?,
        registry::packer(registry::DEFAULT_PACKER)?,
        Budget { threads: settings.threads, ..Budget::time(Duration::from_secs(10)) },
    );
    let trace = Arc::new(engine::trace(&graph)?);
    // As a training plans: for the link that the host tier really has.
    let cpu = sim::presets::machine("cpu").ok_or("the preset cpu exists")?;
    let (to_host, to_device) =
        HostOptions::default().measure(cpu.host_memory)?.ok_or("memory can be measured")?;
    let machine = Machine { to_host, to_device, ..cpu };
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    let task = Task { trace, costs, machine, freedom: Freedom::ALL, pins: None };
    let unconstrained = pipeline::unconstrained(&task, method.packer, &Silent)?;
    let open = |plan: &Arc<CheckedPlan>| -> Result<Session, Failure> {
        let options = SessionOptions::default().threads(settings.threads).paint(false);
        let mut session = Session::new(graph.clone(), plan.clone(), options)?;
        for (slot, bytes) in inputs.iter().enumerate() {
            session.fill_input(slot, |input| input.copy_from_slice(bytes));
        }
        Ok(session)
    };
    let mut whole = open(&unconstrained.plan)?;
    // Twice: the first iteration pays for fresh pages.
    let mut measured = MeasuredCosts::new(&task.trace);
    for iteration in 0..2 {
        whole.run_iteration(iteration)?;
    }
    measured.add(unconstrained.plan.schedule(), &whole.timeline());
    let task = Task { costs: measured.median(), ..task };
    let limit = MemorySpec::Share(0.7).resolve(unconstrained.height()).ok_or("a share resolves to bytes")?;
    let planned = pipeline::plan(&task.with_memory(limit), &method, &Silent)?;
    let mut tight = open(&planned.plan)?;
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(settings.threads).build()?);
    let mut heap = HeapRun::new(graph.clone(), pool, 0);
    for iteration in 0..2 {
        tight.run_iteration(iteration)?;
        heap.run(iteration, &inputs);
    }

    let [mut on_heap, mut at_100, mut at_70, mut theirs] = [const { Vec::new() }; 4];
    for pair in 0..settings.pairs {
        let iteration = 2 + pair as u64;
        let clock = Clock::of(settings.threads);
        let started = clock.now();
        drop(heap.run(iteration, &inputs));
        let run_on_heap = clock.now();
        whole.run_iteration(iteration)?;
        let run_whole = clock.now();
        tight.run_iteration(iteration)?;
        let run_tight = clock.now();
        on_heap.push(run_on_heap - started);
        at_100.push(run_whole - run_on_heap);
        at_70.push(run_tight - run_whole);
        if let Some(peer) = &mut peer {
            theirs.push(peer.time(name)?);
        }
    }
    if whole.digests()? != tight.digests()? {
        return Err(format!("{name}: 70 % differs from 100 %, which is a fault").into());
    }
    Ok(Row {
        name: name.to_owned(),
        batch,
        threads: settings.threads,
        heap: median(&on_heap),
        whole: median(&at_100),
        limited: median(&at_70),
        whole_to_heap: Ratio::of(&at_100, &on_heap),
        limited_to_whole: Ratio::of(&at_70, &at_100),
        peer: peer.map(|peer| (peer.version.clone(), median(&theirs), Ratio::of(&at_100, &theirs))),
    })
}

/// One network on all sides. Times are medians in milliseconds.
struct Row {
    name: String,
    batch: usize,
    threads: usize,
    heap: f64,
    whole: f64,
    limited: f64,
    whole_to_heap: Ratio,
    limited_to_whole: Ratio,
    /// PyTorch's version and time, and our time at 100 % ÷ PyTorch's.
    peer: Option<(String, f64, Ratio)>,
}

fn print_heads(peer: Option<&Pytorch>) {
    if let Some(peer) = peer {
        println!("PyTorch {}", peer.version);
    }
    println!(
        "{:<10}{:>6}{:>12}{:>12}{:>12}{:>24}{:>24}{:>12}{:>24}",
        "network",
        "batch",
        "heap ms",
        "100 % ms",
        "70 % ms",
        "100 % / heap",
        "70 % / 100 %",
        "PyTorch ms",
        "100 % / PyTorch"
    );
}

impl Row {
    fn print(&self) {
        let Self { name, batch, heap, whole, limited, .. } = self;
        let (peer_time, peer_ratio) = match &self.peer {
            Some((_, time, ratio)) => (format!("{time:.2}"), ratio.to_string()),
            None => ("-".to_owned(), "-".to_owned()),
        };
        println!(
            "{name:<10}{batch:>6}{heap:>12.2}{whole:>12.2}{limited:>12.2}{:>24}{:>24}{peer_time:>12}{peer_ratio:>24}",
            self.whole_to_heap.to_string(),
            self.limited_to_whole.to_string(),
        );
    }

    fn print_json(&self) {
        let nanoseconds = |milliseconds: f64| (milliseconds * 1e6) as u64;
        let mut object = serde_json::json!({
            "network": self.name,
            "batch": self.batch,
            "threads": self.threads,
            "heap_ns": nanoseconds(self.heap),
            "unlimited_ns": nanoseconds(self.whole),
            "limited_ns": nanoseconds(self.limited),
            "unlimited_to_heap": self.whole_to_heap.median,
            "limited_to_unlimited": self.limited_to_whole.median,
        });
        if let Some((version, time, ratio)) = &self.peer {
            object["pytorch"] = version.as_str().into();
            object["pytorch_ns"] = nanoseconds(*time).into();
            object["unlimited_to_pytorch"] = ratio.median.into();
            object["unlimited_to_pytorch_low"] = ratio.low.into();
            object["unlimited_to_pytorch_high"] = ratio.high.into();
        }
        println!("{object}");
    }
}

/// PyTorch's process.
struct Pytorch {
    peer: Peer,
    version: String,
}

impl Pytorch {
    fn start(python: &str, threads: usize) -> Result<Self, Failure> {
        let mut peer = Peer::pytorch(python, threads, "eager")?;
        let version = peer.ask("version")?;
        Ok(Self { peer, version })
    }

    /// The median of the times of one turn, in milliseconds.
    fn time(&mut self, name: &str) -> Result<f64, Failure> {
        self.peer.median(&format!("{name} {PEER}"))
    }
}
