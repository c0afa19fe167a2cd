//! `auto` compared with published and measured figures.
//!
//! `cargo bench -p elbowroom-sched --bench auto -- [WORDS] [--time SECONDS] [--evaluations N] [--seed N] [--threads N]` plans the cases whose
//! names contain one of the words, all without any. `--reorder` lets ops run in another order, `--inplace` lets
//! elementwise ops of captured traces write over dying inputs. `--trace FILE` plans a trace that `elbowroom trace` wrote, at half its peak, instead.
//! Reads the graphs and traces in `../shared`, next to the workspace; without them, prints a message and stops.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use elbowroom_import::{Imported, Options, Units};
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::text::File;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::auto::Auto;
use elbowroom_sched::chain::{Chain, Layer};
use elbowroom_sched::lower::least_live;
use elbowroom_sim::bound::lower_bound;
use elbowroom_sim::{presets, simulate};

const RECOMPUTE: Freedom = Freedom { offload: false, recompute: true, ..Freedom::ALL };
const MIB: u64 = 1 << 20;
/// Memory (in GiB) and cost (in 1/100 ms) that a 24-hour run on 48 threads, or the best published planner, reached.
type Published = (&'static str, &'static str, &'static [(u64, u64)]);
const P100: [Published; 4] = [
    ("resnet50", "resnet50_184", &[(5, 116_246), (6, 113_571), (7, 111_933), (8, 110_355)]),
    ("mobilenet", "mobilenet_v2_272", &[(6, 67_991), (7, 66_582)]),
    ("unet", "un_11", &[(5, 209_265), (6, 199_613), (10, 192_809)]),
    ("vgg16", "vgg16_176", &[(8, 255_828), (9, 251_383), (10, 250_600)]),
];
/// Share of the peak, and the overhead in percent.
const CHECKMATE: [(&str, &str, f64, Option<f64>); 7] = [
    ("resnet50", "ResNet50_256_train", 0.9, Some(0.11)),
    ("mobilenet", "MobileNet_512_train", 0.9, Some(0.163)),
    ("mobilenet", "MobileNet_512_train", 0.8, Some(0.370)),
    ("n100", "random_layered_n100_w0.27", 0.9, Some(0.79)),
    ("n100", "random_layered_n100_w0.27", 0.8, Some(2.3)),
    ("n500", "random_layered_n500_w0.36", 0.9, None),
    ("n1000", "random_layered_n1000_w0.31", 0.9, None),
];
/// MiB, and the overhead in percent that must not be exceeded.
const CAPTURED: [(&str, u64, f64); 4] =
    [("resnet50", 1_584, 5.6), ("resnet50", 900, 15.0), ("unet", 1_489, 5.6), ("gpt2s", 6_018, 17.2)];
/// Larger traces, at shares of their peak.
const LARGE: [(&str, f64); 4] = [("lstm_lm", 0.7), ("densenet121", 0.5), ("gpt2s", 0.5), ("resnet50", 0.5)];

/// What to run.
struct Settings {
    words: Vec<String>,
    budget: Budget,
    trace: Option<PathBuf>,
    /// Whether ops may run in another order.
    reorder: bool,
    /// Whether elementwise ops of captured traces may write over dying inputs.
    inplace: bool,
}

fn settings() -> Settings {
    let budget = Budget::time(Duration::from_secs(60));
    let mut settings = Settings { words: Vec::new(), budget, trace: None, reorder: false, inplace: false };
    settings.budget.threads = 2;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--trace" {
            settings.trace = arguments.next().map(PathBuf::from);
            continue;
        }
        let mut number = || arguments.next().and_then(|value| value.parse::<f64>().ok()).unwrap_or(1.0);
        match argument.as_str() {
            "--bench" => {}
            "--reorder" => settings.reorder = true,
            "--inplace" => settings.inplace = true,
            "--time" => settings.budget.time = Some(Duration::from_secs_f64(number())),
            "--evaluations" => {
                (settings.budget.evaluations, settings.budget.time) = (Some(number() as u64), None);
            }
            "--seed" => settings.budget.seed = number() as u64,
            "--threads" => settings.budget.threads = number() as usize,
            word => settings.words.push(word.to_owned()),
        }
    }
    settings
}

/// What may be planned with what.
#[derive(Clone)]
struct Task {
    imported: Imported,
    machine: Machine,
    freedom: Freedom,
    limit: Bytes,
}

impl Task {
    fn request(&self) -> Request<'_> {
        Request {
            trace: &self.imported.trace,
            costs: &self.imported.costs,
            machine: &self.machine,
            live_limit: self.limit,
            freedom: self.freedom,
            packer: None,
            pins: None,
        }
    }

    fn total(&self) -> f64 {
        self.imported.costs.total().get() as f64
    }
}

/// What came out: iteration time, evaluations, seconds.
struct Found {
    time: Option<Nanos>,
    evaluations: u64,
    seconds: f64,
}

fn plan(task: &Task, budget: &Budget) -> Found {
    let start = Instant::now();
    let outcome = Auto.schedule(&task.request(), budget, &Silent);
    let seconds = start.elapsed().as_secs_f64();
    let time = outcome.best.map(|schedule| {
        let timeline = simulate(&task.imported.trace, &task.imported.costs, &task.machine, &schedule)
            .expect("planners make schedules that can be simulated");
        assert!(timeline.peak_live <= task.limit);
        timeline.iteration
    });
    Found { time, evaluations: outcome.evaluations, seconds }
}

impl Settings {
    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| name.contains(word.as_str()))
    }

    /// Plans a case and prints its overhead and the target, both in percent.
    fn overhead(&self, name: &str, task: &Task, target: Option<f64>) -> f64 {
        self.overhead_within(name, task, target, &self.budget)
    }

    fn overhead_within(&self, name: &str, task: &Task, target: Option<f64>, budget: &Budget) -> f64 {
        let freedom = Freedom { reorder: self.reorder, ..task.freedom };
        let task = &Task { freedom, ..task.clone() };
        let found = plan(task, budget);
        let percent = |time: Nanos| 100.0 * (time.get() as f64 / task.total() - 1.0);
        let overhead = found.time.map_or(f64::INFINITY, percent);
        let verdict = match target {
            // Published overheads are rounded to as many places.
            Some(target) if (1_000.0 * overhead).round() <= 1_000.0 * target => {
                format!("<= {target:.3} %  met")
            }
            Some(target) => format!("<= {target:.3} %  MISSED"),
            None if overhead.is_finite() => "a plan  met".to_owned(),
            None => "a plan  MISSED".to_owned(),
        };
        let bound = percent(lower_bound(&task.request()));
        println!(
            "{name:34} {overhead:9.3} %  target {verdict:20} bound {bound:7.3} %  {:>11} evaluations {:6.1} s",
            found.evaluations, found.seconds
        );
        overhead
    }
}

fn main() {
    let settings = settings();
    if let Some(path) = &settings.trace {
        return file(&settings, path);
    }
    if settings.wants("large chain") {
        large(&settings);
    }
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    if !shared.is_dir() {
        return println!("skipped: {} is not there", shared.display());
    }
    p100(&settings, &shared);
    checkmate(&settings, &shared);
    captured(&settings, &shared);
    quick(&settings, &shared);
}

fn import(path: PathBuf, options: &Options) -> Imported {
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    elbowroom_import::import(&bytes, &path.to_string_lossy(), options)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn machine() -> Machine {
    Machine { align: Bytes(1), host_memory: Bytes(1 << 50), ..presets::machine("h100").expect("a preset") }
}

/// The same with a stream of 25 GB/s each way.
fn linked() -> Machine {
    let link = Channel::with_rate(25_000_000_000);
    Machine { to_host: link, to_device: link, shared_link: false, ..machine() }
}

/// Recompute only, on measured graphs in the units of the published results.
fn p100(settings: &Settings, shared: &Path) {
    let options = Options::default().units(Units::Published);
    for (name, file, budgets) in P100 {
        for &(gib, cost) in budgets {
            let name = format!("p100 {name} {gib}");
            if !settings.wants(&name) {
                continue;
            }
            let imported = import(shared.join(format!("graphs/monet_p100/{file}.json")), &options);
            let reference = imported.notes.references.iter().find(|r| r.memory == Bytes(gib << 30));
            let limit = reference.expect("the file has this budget").live_limit;
            let task = Task { imported, machine: machine(), freedom: RECOMPUTE, limit };
            let found = plan(&task, &settings.budget);
            let reached = found.time.map_or(u64::MAX, |time| time.get() / 10_000);
            let above = 100.0 * (reached as f64 / cost as f64 - 1.0);
            let verdict = if reached <= cost { "met" } else { "MISSED" };
            println!(
                "{name:34} {reached:9}    target <= {cost:7}  {verdict:7} {above:+7.3} %  {:>11} evaluations {:6.1} s",
                found.evaluations, found.seconds
            );
        }
    }
}

fn checkmate(settings: &Settings, shared: &Path) {
    let options = Options::default().remake_inputs(false);
    let plan = |name: &str, imported: Imported, share: f64, target: Option<f64>| {
        let limit = Bytes((imported.notes.peak.get() as f64 * share) as u64);
        let task = Task { imported, machine: machine(), freedom: RECOMPUTE, limit };
        settings.overhead(name, &task, target);
    };
    for (name, file, share, target) in CHECKMATE {
        let name = format!("checkmate {name} {share}");
        if settings.wants(&name) {
            let imported = import(shared.join(format!("graphs/checkmate/{file}.json")), &options);
            plan(&name, imported, share, target);
        }
    }
    // The published graphs include none of 250 nodes, so random ones are generated.
    for seed in 1..=3 {
        let name = format!("checkmate n250 0.9, our own {seed}");
        if settings.wants(&name) {
            let text = layered(250, seed);
            let imported = elbowroom_import::import(text.as_bytes(), "layered.json", &options);
            plan(&name, imported.unwrap_or_else(|error| panic!("{error}")), 0.9, None);
        }
    }
}

/// Tenths of the sizes of results in the random layered graphs of the data set.
const SIZES: [u64; 11] = [20, 281, 602, 893, 1_104, 1_610, 2_072, 2_620, 3_368, 4_568, 7_300];

/// A random layered graph like those of the data set, as these are written, with one source and one sink. From them: widths of layers are
/// even between a quarter and seven quarters of their mean, √(0.31 n); a node reads each of the layer before with a chance of a fifth, and at
/// least one, and every node is read by the next layer; 14 % of all links come from further away; durations are even up to 1,000, and sizes
/// have the same distribution. The order goes on with what has become possible last.
fn layered(nodes: usize, seed: u64) -> String {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mean = (0.31 * nodes as f64).sqrt();
    let mut layers: Vec<Vec<usize>> = vec![vec![0]];
    let mut made = 1;
    while made < nodes - 1 {
        let width = (mean * (0.25 + 1.5 * random(1_000) as f64 / 1_000.0)).round() as usize;
        let width = width.clamp(1, nodes - 1 - made);
        layers.push((made..made + width).collect());
        made += width;
    }
    layers.push(vec![made]);
    let mut links = std::collections::BTreeSet::new();
    for pair in layers.windows(2) {
        let (from, to) = (&pair[0], &pair[1]);
        links.extend(from.iter().flat_map(|&a| to.iter().map(move |&b| (a, b))).filter(|_| random(5) == 0));
        for &b in to {
            if !from.iter().any(|&a| links.contains(&(a, b))) {
                links.insert((from[random(from.len() as u64) as usize], b));
            }
        }
        for &a in from {
            if !to.iter().any(|&b| links.contains(&(a, b))) {
                links.insert((a, to[random(to.len() as u64) as usize]));
            }
        }
    }
    let all = links.len() * 100 / 86;
    while links.len() < all {
        let mut inner = || 1 + random(layers.len() as u64 - 2) as usize;
        let (from, to) = (inner(), inner());
        if from + 1 < to {
            let mut of = |layer: usize| layers[layer][random(layers[layer].len() as u64) as usize];
            links.insert((of(from), of(to)));
        }
    }
    let rows: Vec<String> = (0..nodes)
        .map(|node| {
            let tenth = random(10) as usize;
            let size = SIZES[tenth] + random(SIZES[tenth + 1] - SIZES[tenth]);
            let duration = if node == 0 || node == nodes - 1 { 0 } else { random(1_000) };
            format!(r#"{{"name":{node},"out_cost":{size},"duration":{duration}}}"#)
        })
        .collect();
    let mut missing = vec![0; nodes];
    links.iter().for_each(|&(_, b)| missing[b] += 1);
    let (mut order, mut possible) = (Vec::new(), vec![0]);
    while let Some(node) = possible.pop() {
        order.push(node.to_string());
        for &(_, next) in links.range((node, 0)..(node + 1, 0)) {
            missing[next] -= 1;
            if missing[next] == 0 {
                possible.push(next);
            }
        }
    }
    let links: Vec<String> = links.iter().map(|(a, b)| format!(r#"{{"0":{a},"1":{b}}}"#)).collect();
    format!(
        r#"{{"directed":true,"multigraph":false,"graph":{{"name":"layered_n{nodes}_{seed}","order":[{}]}},"nodes":[{}],"links":[{}]}}"#,
        order.join(","),
        rows.join(","),
        links.join(",")
    )
}

fn captured_trace(settings: &Settings, shared: &Path, name: &str) -> Imported {
    let options = Options::default().inplace(settings.inplace);
    import(shared.join(format!("traces/{name}_joint.jsonl.gz")), &options)
}

fn captured(settings: &Settings, shared: &Path) {
    for (name, mib, target) in CAPTURED {
        let alone = format!("captured {name} {mib}");
        let both = format!("captured {name} {mib} link");
        if !settings.wants(&both) {
            continue;
        }
        let imported = captured_trace(settings, shared, name);
        let mut task = Task { imported, machine: linked(), freedom: RECOMPUTE, limit: Bytes(mib * MIB) };
        let overhead =
            if settings.wants(&alone) { settings.overhead(&alone, &task, Some(target)) } else { target };
        task.freedom = Freedom::ALL;
        settings.overhead(&both, &task, Some(overhead));
    }
}

/// A second against a minute.
fn quick(settings: &Settings, shared: &Path) {
    for (model, share) in LARGE {
        for (word, freedom) in [("", RECOMPUTE), (" link", Freedom::ALL)] {
            let name = format!("quick {model} {share}{word}");
            if !settings.wants(&name) {
                continue;
            }
            let imported = captured_trace(settings, shared, model);
            let limit = Bytes((imported.notes.peak.get() as f64 * share) as u64);
            let task = Task { imported, machine: linked(), freedom, limit };
            let name = format!("{name}, {} ops", task.imported.trace.ops().len());
            let minute = settings.overhead(&name, &task, None);
            let second = Budget {
                time: Some(Duration::from_millis(950)),
                evaluations: None,
                ..settings.budget.clone()
            };
            let most = 100.0 * ((1.0 + minute / 100.0) * 1.02 - 1.0);
            settings.overhead_within(&format!("{name}, 1 s"), &task, Some(most), &second);
        }
    }
}

/// A chain of 10,000 ops whose layers differ, within 30 s.
fn large(settings: &Settings) {
    let mut state = 1u64;
    let mut random = |from: u64, to: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (state >> 33) % (to - from)
    };
    let layers = (0..5_000).map(|_| Layer {
        forward: Nanos(random(50_000, 900_000)),
        backward: Nanos(random(100_000, 1_800_000)),
        forward_extra: Bytes(random(0, 4 << 20)),
        backward_extra: Bytes(random(0, 8 << 20)),
    });
    let layers = layers.collect();
    let mut bytes = || (0..=5_000).map(|_| Bytes(random(1 << 20, 64 << 20))).collect();
    let chain = Chain { layers, activations: bytes(), gradients: bytes() };
    let traced = chain.to_trace("chain").expect("a chain is a trace");
    within_30_seconds(settings, "large chain", &traced.trace, &traced.costs, chain.peak());
}

fn file(settings: &Settings, path: &Path) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: File = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = file.into_trace().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let costs = file.costs.unwrap_or_else(|| panic!("{} has no costs", path.display()));
    let unlimited = elbowroom_sched::policy::Policy::keep(&file.trace);
    let request = Request {
        trace: &file.trace,
        costs: &costs,
        machine: &linked(),
        live_limit: Bytes(1 << 60),
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    };
    let (peak, _) = least_live(&request, &unlimited).expect("keeping everything is a policy");
    within_30_seconds(settings, &path.to_string_lossy(), &file.trace, &costs, peak);
}

fn within_30_seconds(settings: &Settings, name: &str, trace: &Trace, costs: &Costs, peak: Bytes) {
    for (word, freedom) in [("", RECOMPUTE), (" link", Freedom::ALL)] {
        let limit = Bytes(peak.get() / 2);
        let request = Request {
            trace,
            costs,
            machine: &linked(),
            live_limit: limit,
            freedom,
            packer: None,
            pins: None,
        };
        let time = settings.budget.time.map(|time| time.min(Duration::from_secs(25)));
        let budget = Budget { time, ..settings.budget.clone() };
        let start = Instant::now();
        let outcome = Auto.schedule(&request, &budget, &Silent);
        let seconds = start.elapsed().as_secs_f64();
        let overhead = outcome.best.map_or(f64::INFINITY, |schedule| {
            let timeline =
                simulate(trace, costs, &linked(), &schedule).expect("schedules of planners can be simulated");
            100.0 * (timeline.iteration.get() as f64 / costs.total().get() as f64 - 1.0)
        });
        let verdict = if seconds <= 30.0 && overhead.is_finite() { "met" } else { "MISSED" };
        println!(
            "{name}{word}, {} ops, half the peak: {overhead:.3} %  {seconds:.1} s  target <= 30 s  {verdict}  {} evaluations",
            trace.ops().len(),
            outcome.evaluations
        );
    }
}
