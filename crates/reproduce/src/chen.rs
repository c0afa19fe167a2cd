//! Chen et al. (2016), *Training deep nets with sublinear memory cost*.

use std::sync::Arc;

use elbowroom::graph::zoo::{OptimizerKind, Options};
use elbowroom::ir::machine::Machine;
use elbowroom::ir::text::File;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::{self, Task};
use elbowroom::registry;
use elbowroom::sched::chain::{Chain, Layer};
use elbowroom::sched::recompute::cuts::Cuts;
use elbowroom::sched::recompute::{recursive, repeats};

use crate::bench::{self, RECOMPUTE};
use crate::row::{Curves, Row, Sheet};
use crate::trained::Trained;
use crate::{Bench, Error};

/// The algorithms of section 5.1, with our names of the planners.
const ALGORITHMS: [(&str, &str); 5] = [
    ("no optimization", "none"),
    ("inplace", "inplace"),
    ("sharing", "sharing"),
    ("drop bn-relu", "drop-cheap"),
    ("sublinear plan", "sublinear"),
];

/// The network of Figure 1, every result of 1,000 bytes.
fn figure_1_task() -> Result<Task, Error> {
    let file = include_str!("chen_figure_1.txt").parse::<File>();
    let Ok(File::Trace(file)) = file else {
        return Err(Error::Fault("the trace of Figure 1 cannot be read".to_owned()));
    };
    let costs = file.costs.ok_or_else(|| Error::Fault("the trace of Figure 1 has no times".to_owned()))?;
    let machine = Machine { align: Bytes(1), ..bench::machine("v100")? };
    Ok(Task { trace: Arc::new(file.trace), costs, machine, freedom: RECOMPUTE, pins: None })
}

/// Figure 1: an allocation for a two-layer network.
pub(crate) fn figure_1(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let task = figure_1_task()?;
    let mut rows = Vec::new();
    for (name, planner) in &ALGORITHMS[..3] {
        let planned = bench::unlimited(&task, planner, bench.observer)?;
        let peak = planned.predicted.peak_live.get() as f64;
        rows.push(Row::new(format!("{name}, results of 1,000 bytes each"), "B", None, peak).because(
            "the drawing marks shared memory by colour and prints no sizes; the nine results of the drawing with weights left out, as there",
        ));
    }
    // What the caption states of the drawing, on the plan of `sharing`: 1 means that it holds.
    let schedule = bench::unlimited(&task, "sharing", bench.observer)?.schedule.into_schedule();
    let problem = elbowroom::sim::liveness::problem(&schedule, &task.machine);
    let packer = registry::packer("sharing")?;
    let placement = packer.pack(&problem, &Default::default(), bench.observer).best;
    let placement =
        placement.ok_or_else(|| Error::Fault("the packer sharing found no placement".to_owned()))?;
    let buffer = |op: &str| {
        let launches = schedule.steps.values().filter_map(|step| step.action.launch());
        launches
            .filter(|launch| task.trace.ops()[launch.op].name == op)
            .find_map(|launch| launch.writes.first().copied())
    };
    let place = |op: &str| buffer(op).and_then(|buffer| placement.offsets.get(buffer).copied());
    let holds = |a: &str, b: &str| f64::from(u8::from(place(a).is_some() && place(a) == place(b)));
    for (what, a, b) in [
        ("sigmoid-forward in place of its input", "sigmoid-forward", "fullc-forward 1"),
        ("sigmoid-backward in the memory of sigmoid-forward", "sigmoid-backward", "sigmoid-forward"),
        (
            "softmax's gradient shares memory with the first layer's gradient",
            "softmax-backward",
            "fullc-backward 1",
        ),
    ] {
        let row = Row::new(what, "1 = yes", 1.0, holds(a, b));
        let reason =
            "one of several plans of equal size: the text leaves open which of several free tags is taken";
        rows.push(if row.agrees() { row } else { row.because(reason) });
    }
    rows.push(
        Row::new("sharing, placed by the packer sharing", "B", None, placement.height.get() as f64)
            .because("no size is printed; whole buffers of dead results are used again, as in Figure 2"),
    );
    Ok(Sheet::of(rows))
}

/// A chain of equal layers: every result has one byte, every op takes the same time.
fn chain(layers: usize) -> Result<Task, Error> {
    let layer = Layer { forward: Nanos(1), backward: Nanos(2), ..Layer::default() };
    let sizes = vec![Bytes(1); layers + 1];
    let chain = Chain { layers: vec![layer; layers], activations: sizes.clone(), gradients: sizes };
    let chain = chain.to_trace("chain").map_err(|error| Error::Fault(error.to_string()))?;
    let machine = Machine { align: Bytes(1), ..bench::machine("v100")? };
    Ok(Task { trace: Arc::new(chain.trace), costs: chain.costs, machine, freedom: RECOMPUTE, pins: None })
}

/// Equation 1: segments of √n layers.
pub(crate) fn equation_1(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let mut rows = Vec::new();
    for layers in [16usize, 64, 256, 1024] {
        let task = chain(layers)?;
        let planned = bench::unlimited(&task, "sublinear", bench.observer)?;
        let paper = 2.0 * (layers as f64).sqrt();
        rows.push(
            Row::new(format!("{layers} equal layers"), "results", paper, planned.predicted.peak_live.get() as f64)
                .because("the order 2√n counts checkpoints and one segment; ours also counts the results and gradients that an op needs at once"),
        );
    }
    Ok(Sheet::of(rows))
}

/// Equation 3 with k = 1: log₂ n.
pub(crate) fn equation_3(_: &Bench<'_>) -> Result<Sheet, Error> {
    let mut rows = Vec::new();
    for layers in [16usize, 64, 256, 1024] {
        let task = chain(layers)?;
        let (_, backward_start) = repeats::base(&task.trace);
        let cuts = Cuts::of(&task.trace, backward_start);
        let policy = recursive::mirrors(&task.trace, &cuts, &cuts.single(), 1).policy(&task.trace);
        let task = task.with_memory(Bytes(1 << 40));
        let request = pipeline::request(&task, task.machine.memory);
        let least = elbowroom::sched::lower::least_live(&request, &policy);
        let (live_bytes, _) = least.map_err(|error| Error::Fault(error.to_string()))?;
        let paper = (layers as f64).log2();
        rows.push(
            Row::new(format!("{layers} equal layers, k = 1"), "results", paper, live_bytes.get() as f64)
                .because("log₂ n counts checkpoints; ours adds 4: input, output and the two gradients of the layer at hand"),
        );
    }
    Ok(Sheet::of(rows))
}

/// Feature maps in bytes and overhead in percent, of every algorithm.
type Allocations = Vec<(f64, f64)>;

/// Computes them for a network.
fn allocations(task: &Task, bench: &Bench<'_>) -> Result<Allocations, Error> {
    let persistent = bench::persistent(task).get() as f64;
    let point = |&(_, planner): &(&str, &str)| {
        let planned = bench::unlimited(task, planner, bench.observer)?;
        let overhead = planned.predicted.iteration.get() as f64 / task.costs.total().get() as f64 - 1.0;
        Ok((planned.predicted.peak_live.get() as f64 - persistent, 100.0 * overhead))
    };
    ALGORITHMS.iter().map(point).collect()
}

/// A figure of feature maps by size of the network.
fn sizes(
    bench: &Bench<'_>,
    sizes: &[usize],
    of: &str,
    build: impl Fn(usize) -> Result<Task, Error>,
) -> Result<(Vec<Allocations>, Curves), Error> {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> =
        ALGORITHMS.iter().map(|(name, _)| ((*name).to_owned(), Vec::new())).collect();
    let mut points = Vec::new();
    for &size in sizes {
        if bench.stopped() {
            break;
        }
        bench.begins(&format!("{size} {of}"));
        let each = allocations(&build(size)?, bench)?;
        for (line, (bytes, _)) in lines.iter_mut().zip(&each) {
            line.1.push((size as f64, bytes / 1e9));
        }
        points.push(each);
    }
    let title = format!("feature maps by {of}");
    Ok((points, Curves { title, axes: ["size", "feature maps, GB"], lines }))
}

fn residual(depth: usize) -> Result<Task, Error> {
    let options = Options::new(32).image(224).optimizer(OptimizerKind::Sgd);
    bench::task(&format!("resnet{depth}"), &options, "v100", 1, RECOMPUTE)
}

fn recurrent(length: usize) -> Result<Task, Error> {
    let options =
        Options::new(64).length(length).width(1024).layers(4).vocabulary(5_000).optimizer(OptimizerKind::Sgd);
    bench::task("lstm", &options, "v100", 1, RECOMPUTE)
}

/// Figure 5: residual networks by depth.
pub(crate) fn figure_5(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let depths: &[usize] = bench.pick(&[101, 1001], &[101, 254, 503, 1001]);
    let (points, curves) = sizes(bench, depths, "layers", residual)?;
    let mut rows = Vec::new();
    for (&depth, each) in depths.iter().zip(&points) {
        let deep = depth == 1001;
        for (i, ((name, _), (bytes, _))) in ALGORITHMS.iter().zip(each).enumerate() {
            let paper = match i {
                0 if deep => Some(48.0),
                4 if deep => Some(7.0),
                _ => None,
            };
            let reason = if paper.is_some() {
                "the abstract's figure for 1,000 layers, measured with parameters and workspaces on a Titan X; ours are feature maps alone, and the paper does not say how it divides the layers into stages"
            } else {
                "the figure prints curves on logarithmic axes without numbers"
            };
            rows.push(Row::new(format!("{depth} layers, {name}"), "GB", paper, bytes / 1e9).because(reason));
        }
        let system = each[0].0 / each[2].0;
        let paper = Some(2.5);
        rows.push(Row::new(format!("{depth} layers, no optimization ÷ sharing"), "", paper, system).because(
            "the text says a factor of two to three, here 2.5; where the gradients of a residual block lie depends on how the framework splits its ops",
        ));
    }
    Ok(Sheet::of(rows).with(curves))
}

/// Figure 6: recurrent networks by length.
pub(crate) fn figure_6(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let lengths: &[usize] = bench.pick(&[64], &[32, 64, 128, 256]);
    let (points, curves) = sizes(bench, lengths, "steps", recurrent)?;
    let mut rows = Vec::new();
    for (&length, each) in lengths.iter().zip(&points) {
        for (i, ((name, _), (bytes, _))) in ALGORITHMS.iter().zip(each).enumerate() {
            // Section 5.1: shown for convolutional networks only.
            if i == 3 {
                continue;
            }
            rows.push(
                Row::new(format!("{length} steps, {name}"), "GB", None, bytes / 1e9)
                    .because("the figure prints bars without numbers"),
            );
        }
        rows.push(Row::new(format!("{length} steps, sharing ÷ sublinear plan"), "", 4.0, each[2].0 / each[4].0).because(
            "the text says more than 4, without a length; inputs here are embedded tokens of 1,024 columns instead of 50 real numbers, and the softmax over 5,000 classes is kept for all steps together",
        ));
    }
    Ok(Sheet::of(rows).with(curves))
}

/// The two lines of Figure 7.
const LABELS: [&str; 2] = ["sharing", "sublinear plan"];

/// A part of Figure 7 that is measured: networks of growing size whose iterations this machine runs in a second.
struct Measured {
    what: &'static str,
    of: &'static str,
    sizes: [usize; 3],
    network: fn(usize) -> (String, Options),
}

const MEASURED: [Measured; 2] = [
    Measured {
        what: "residual network for 32x32 pixels, batch 8",
        of: "layers",
        sizes: [20, 56, 110],
        network: |depth| (format!("resnet{depth}"), Options::new(8).image(32).optimizer(OptimizerKind::Sgd)),
    },
    Measured {
        what: "LSTM, 4 layers of 256 units, batch 16",
        of: "steps",
        sizes: [16, 32, 64],
        network: |length| {
            let options = Options::new(16).length(length).width(256).layers(4).vocabulary(1_000);
            ("lstm".to_owned(), options.optimizer(OptimizerKind::Sgd))
        },
    },
];

impl Measured {
    /// Speeds of both planners by size, and what recomputation costs.
    fn rows(&self, bench: &Bench<'_>) -> Result<(Vec<Row>, Curves), Error> {
        let Self { what, of, sizes, network } = self;
        let (mut rows, mut lines) = (Vec::new(), [Vec::new(), Vec::new()]);
        for &size in sizes {
            if bench.stopped() {
                break;
            }
            bench.begins(&format!("{what}, {size} {of}"));
            let (name, options) = network(size);
            let run = |planner| Trained::measure(&name, &options, planner, RECOMPUTE, bench);
            let (Some(sharing), Some(sublinear)) = (run("keep")?, run("sublinear")?) else { break };
            let speeds = [sharing.speed, sublinear.speed];
            for ((label, speed), line) in LABELS.into_iter().zip(speeds).zip(&mut lines) {
                line.push((size as f64, speed));
                rows.push(Row::new(format!("{what}, {size} {of}, {label}"), "1/s", None, speed).timed().because(
                    "the figure prints curves of a Titan X without numbers; ours is the median of 20 iterations on this processor, of a network that it can train",
                ));
            }
            let more = 100.0 * (sharing.speed / sublinear.speed - 1.0);
            let reason = format!(
                "the text's figure for all sizes; the forward phase has another share of the time on this processor than on a Titan X. The plan computes {} ops again",
                sublinear.recomputed
            );
            rows.push(
                Row::new(format!("{what}, {size} {of}, sublinear plan, measured"), "% more time", 30.0, more)
                    .timed()
                    .because(reason),
            );
        }
        let lines = LABELS.map(str::to_owned).into_iter().zip(lines);
        let title = format!("batches per second, {what}");
        Ok((rows, Curves { title, axes: [of, "batches per second"], lines: lines.collect() }))
    }
}

/// Figure 7: what recomputation costs.
pub(crate) fn figure_7(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let reason = "the paper measures 20 batches on a Titan X; ours is the sum of the ops' times by the roofline of a V100, in which the recomputed forward pass has the same share";
    let mut rows = Vec::new();
    for (what, task) in
        [("residual network of 101 layers", residual(101)?), ("LSTM of 64 steps", recurrent(64)?)]
    {
        let planned = bench::unlimited(&task, "sublinear", bench.observer)?;
        let overhead = planned.predicted.iteration.get() as f64 / task.costs.total().get() as f64 - 1.0;
        rows.push(
            Row::new(format!("{what}, sublinear plan"), "% more time", 30.0, 100.0 * overhead)
                .because(reason),
        );
    }
    let mut sheet = Sheet::of(rows);
    for measured in bench.pick(&[][..], &MEASURED) {
        let (rows, curves) = measured.rows(bench)?;
        sheet.rows.extend(rows);
        sheet = sheet.with(curves);
    }
    if bench.pick(true, false) {
        sheet.rows.push(Row::new("batches per second", "1/s", None, None).because(
            "measured without --quick: two minutes of training; the figure prints curves of a Titan X without numbers",
        ));
    }
    Ok(sheet)
}
