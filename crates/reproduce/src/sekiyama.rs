//! Sekiyama et al. (2018), *Profile-guided memory optimization for deep neural networks*.

use std::time::{Duration, Instant};

use elbowroom::graph::Mode;
use elbowroom::graph::zoo::Options;
use elbowroom::ir::Bytes;
use elbowroom::ir::packing::{Block, Interval, Problem};
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::pipeline::Task;
use elbowroom::registry;

use crate::bench::{self, buffers, height};
use crate::requests::RequestTimes;
use crate::row::{Curves, Row, Sheet};
use crate::{Bench, Error};

/// The paper's networks that read images, with the names of the zoo.
const IMAGES: [(&str, &str); 4] = [
    ("AlexNet", "alexnet"),
    ("GoogLeNet", "googlenet"),
    ("ResNet-50", "resnet50"),
    ("Inception-ResNet", "inception-resnet-v2"),
];

/// Chainer rounds requests up to this many bytes.
const CHAINER: u64 = 512;

const BARS: &str = "the figure prints bars without numbers";

fn image_task(network: &str, batch: usize, mode: Mode) -> Result<Task, Error> {
    let size = if network == "resnet50" { Options::new(batch).image(224) } else { Options::new(batch) };
    bench::task(network, &size.classes(1_000).mode(mode), "p100", CHAINER, Freedom::ALL)
}

fn images(network: &str, batch: usize, mode: Mode) -> Result<Problem, Error> {
    buffers(&image_task(network, batch, mode)?, &Silent)
}

fn seq2seq_task(batch: usize, length: usize, mode: Mode) -> Result<Task, Error> {
    let options = Options::new(batch).length(length).width(1_024).layers(3).vocabulary(40_000).mode(mode);
    bench::task("seq2seq", &options, "p100", CHAINER, Freedom::ALL)
}

fn seq2seq(batch: usize, length: usize, mode: Mode) -> Result<Problem, Error> {
    buffers(&seq2seq_task(batch, length, mode)?, &Silent)
}

/// Arena of the pool and of best-fit, in GB.
fn both(problem: &Problem, bench: &Bench<'_>) -> Result<[f64; 2], Error> {
    let gb = |packer| height(problem, packer, bench.observer).map(|bytes| bytes.get() as f64 / 1e9);
    Ok([gb("pool")?, gb("best-fit-paper")?])
}

/// Figure 2: memory of the original pool and of best-fit.
pub(crate) fn figure_2(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let mut rows = Vec::new();
    let mut lines = vec![("orig (pool)".to_owned(), Vec::new()), ("opt (best-fit)".to_owned(), Vec::new())];
    let batches: &[usize] = bench.pick(&[32], &[32, 64, 128]);
    for (name, network) in IMAGES {
        for &batch in batches {
            if bench.stopped() {
                break;
            }
            bench.begins(&format!("{name}, batch {batch}"));
            let problem = images(network, batch, Mode::Training)?;
            let [pool, planned] = both(&problem, bench)?;
            let bar = lines[0].1.len() as f64;
            lines[0].1.push((bar, pool));
            lines[1].1.push((bar, planned));
            let printed = (network == "alexnet" && batch == 32).then_some(1.21);
            let reason = if printed.is_some() {
                "section 5.1; Chainer's requests add up to 1.50 GB where ours add up to less (the row of network-wise allocation), and include cuDNN's workspaces of 8 MB"
            } else {
                BARS
            };
            rows.push(
                Row::new(format!("2a: {name}, batch {batch}, orig"), "GB", printed, pool).because(reason),
            );
            rows.push(Row::new(format!("2a: {name}, batch {batch}, opt"), "GB", None, planned).because(BARS));
            if printed.is_some() {
                let sum: u64 = problem.blocks.values().map(|block| block.size.get()).sum();
                rows.push(Row::new("2a: AlexNet, batch 32, network-wise allocation", "GB", 1.5, sum as f64 / 1e9).because(
                    "section 5.1: a block of its own for each request; ours takes every buffer of the iteration, in-place results counted once",
                ));
            }
            if network == "inception-resnet-v2" && batch == 64 {
                let fits = |gb: f64| f64::from(u8::from(gb * 1e9 <= (16u64 << 30) as f64));
                let why = "16 GB is the P100's memory; the same network takes less here than in Chainer";
                rows.push(
                    Row::new("2a: Inception-ResNet, batch 64, orig fits 16 GB", "1 = yes", 0.0, fits(pool))
                        .because(why),
                );
                rows.push(
                    Row::new("2a: Inception-ResNet, batch 64, opt fits 16 GB", "1 = yes", 1.0, fits(planned))
                        .because(why),
                );
            }
        }
        let retained = bench::persistent(&image_task(network, batches[0], Mode::Training)?);
        rows.push(
            Row::new(format!("2a: {name}, retained in the entire training"), "GB", None, retained.get() as f64 / 1e9)
                .because("dotted bars without numbers: parameters and what the optimizer keeps, which both totals contain and no packing reduces; Chainer retains gradients as well, which end at the update here and are packed"),
        );
        let [pool, planned] = both(&images(network, 1, Mode::Inference)?, bench)?;
        let printed = match network {
            "googlenet" => Some(12.6),
            "resnet50" => Some(10.0),
            _ => None,
        };
        let reason = if printed.is_some() {
            "the pool here merges and splits free ranges at once and loses less than Chainer's; parameters, which no packing reduces, are most of both"
        } else {
            BARS
        };
        rows.push(
            Row::new(
                format!("2b: {name}, inference, opt below orig"),
                "%",
                printed,
                100.0 * (1.0 - planned / pool),
            )
            .because(reason),
        );
    }
    let batch = bench.pick(32, 128);
    bench.begins("seq2seq");
    let [pool, planned] = ten_batches(batch, bench)?;
    rows.push(
        Row::new(format!("2c: seq2seq, batch {batch}, after 10 mini-batches, orig"), "GB", None, pool)
            .because(BARS),
    );
    rows.push(
        Row::new(format!("2c: seq2seq, batch {batch}, after 10 mini-batches, opt"), "GB", None, planned)
            .because(BARS),
    );
    let [pool, planned] = both(&seq2seq(1, bench.pick(25, 100), Mode::Inference)?, bench)?;
    rows.push(Row::new("2d: seq2seq, inference, opt below orig", "%", 14.6, 100.0 * (1.0 - planned / pool)).because(
        "sizes of the network are those of Chainer's example, which the paper does not print; parameters, which no packing reduces, are most of both",
    ));
    let curves = Curves {
        title: "memory of training".to_owned(),
        axes: ["bars: AlexNet, GoogLeNet, ResNet-50, Inception-ResNet", "GB"],
        lines,
    };
    Ok(Sheet::of(rows).with(curves))
}

/// Ten mini-batches of different lengths, one after another: the pool over all of them, and the largest of their plans, in GB.
fn ten_batches(batch: usize, bench: &Bench<'_>) -> Result<[f64; 2], Error> {
    let mut all: Vec<Block> = Vec::new();
    let mut largest = Bytes::ZERO;
    let mut now = 0;
    for length in [23, 41, 12, 35, 50, 18, 29, 47, 10, 38] {
        let problem = seq2seq(batch, length, Mode::Training)?;
        largest = largest.max(height(&problem, "best-fit-paper", bench.observer)?);
        let end =
            problem.blocks.values().flat_map(|block| &block.alive).map(|alive| alive.end).max().unwrap_or(0);
        for block in problem.blocks.values() {
            let alive = block.alive.iter().map(|alive| Interval::new(now + alive.start, now + alive.end));
            all.push(Block { alive: alive.collect(), ..block.clone() });
        }
        now += end;
    }
    let pool =
        height(&Problem { blocks: all.into_iter().collect(), capacity: None }, "pool", bench.observer)?;
    Ok([pool, largest].map(|bytes| bytes.get() as f64 / 1e9))
}

/// The P100's memory.
const P100: Bytes = Bytes(16 << 30);

/// Places of the pool and of best-fit in pairs, with the paper's names.
const VERSIONS: [(usize, &str); 2] = [(0, "orig"), (1, "opt")];

/// One mini-batch with the pool and with best-fit.
struct MiniBatch {
    samples: usize,
    /// Arenas in bytes.
    arenas: [Bytes; 2],
    /// The time of the ops on the P100 and what the requests take here, in seconds.
    seconds: [f64; 2],
}

impl MiniBatch {
    fn new(task: &Task, samples: usize, bench: &Bench<'_>) -> Result<Self, Error> {
        let problem = buffers(task, &Silent)?;
        let arenas =
            [height(&problem, "pool", bench.observer)?, height(&problem, "best-fit-paper", bench.observer)?];
        let requests = RequestTimes::measure(&without_parameters(problem), CHAINER);
        let ops = task.costs.total().get() as f64 / 1e9;
        Ok(Self {
            samples,
            arenas,
            seconds: [requests.pool, requests.planned].map(|time| ops + time.as_secs_f64()),
        })
    }

    /// Samples per second of one of the two.
    fn speed(&self, which: usize) -> f64 {
        self.samples as f64 / self.seconds[which]
    }

    /// Rows with the time of both, where they fit.
    fn rows(&self, what: &str) -> Vec<Row> {
        let row = |(which, name)| {
            let fits = self.arenas[which] <= P100;
            let time = fits.then_some(self.seconds[which] * 1e3);
            Row::new(format!("{what}, {name}"), "ms", None, time).timed().because(if fits {
                TIMES
            } else {
                "N/A as in the figure: more than 16 GB"
            })
        };
        VERSIONS.map(row).into()
    }
}

const TIMES: &str = "the figure prints bars without numbers; ours is the sum of the op times by the data sheet of the P100 and of the time that all requests take on this machine";

const SEARCH: &str = "Chainer's pool is a search in Python over its lists, and Inception-ResNet makes thousands of requests; PyTorch's pool, which stands for it here, takes a fraction of a microsecond for each";

/// Figure 3: time per mini-batch, and the largest mini-batch.
pub(crate) fn figure_3(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let networks = &IMAGES[..bench.pick(1, IMAGES.len())];
    for &(name, network) in networks {
        let mut of_batches = Vec::new();
        for &batch in bench.pick(&[32][..], &[32, 64, 128]) {
            if bench.stopped() {
                break;
            }
            bench.begins(&format!("{name}, batch {batch}"));
            let measured = MiniBatch::new(&image_task(network, batch, Mode::Training)?, batch, bench)?;
            rows.extend(measured.rows(&format!("3a: {name}, batch {batch}")));
            of_batches.push(measured);
        }
        for (which, version) in VERSIONS {
            let fitting = of_batches.iter().filter(|of| of.arenas[which] <= P100);
            let points = fitting.map(|of| (of.samples as f64, of.speed(which))).collect();
            lines.push((format!("{name}, {version}"), points));
        }
        if let ("inception-resnet-v2", [of_32, of_64, ..]) = (network, &of_batches[..]) {
            let speed = of_32.seconds[0] / of_32.seconds[1];
            rows.push(
                Row::new("3a: Inception-ResNet, batch 32, speed over orig", "x", 2.19, speed)
                    .timed()
                    .because(SEARCH),
            );
            let larger = of_64.speed(1) / of_32.speed(0);
            rows.push(
                Row::new("3a: Inception-ResNet, images per second, batch 64 over orig's 32", "x", 3.95, larger).timed().because(
                    "2.19 of the paper's 3.95 is the search in the pool; by the data sheet, which knows no idle units, a P100 is nearly as busy with 32 images as with 64",
                ),
            );
        }
        bench.begins(&format!("{name}, one image"));
        rows.extend(
            MiniBatch::new(&image_task(network, 1, Mode::Inference)?, 1, bench)?
                .rows(&format!("3b: {name}, inference")),
        );
    }
    for &batch in bench.pick(&[][..], &[32, 64, 128, 256]) {
        bench.begins(&format!("seq2seq, batch {batch}"));
        rows.extend(
            MiniBatch::new(&seq2seq_task(batch, 50, Mode::Training)?, batch, bench)?
                .rows(&format!("3c: seq2seq, batch {batch}, 50 words")),
        );
    }
    let inference = MiniBatch::new(&seq2seq_task(1, bench.pick(25, 100), Mode::Inference)?, 1, bench)?;
    let less = 100.0 * (1.0 - inference.seconds[1] / inference.seconds[0]);
    rows.push(Row::new("3d: seq2seq, inference, less time", "%", 23.8, less).timed().because(SEARCH));
    for &(name, network) in networks {
        bench.begins(&format!("{name}, the largest mini-batch"));
        rows.extend(largest_batches(name, |batch| image_task(network, batch, Mode::Training), bench)?);
    }
    if bench.pick(false, true) {
        bench.begins("seq2seq, the largest mini-batch");
        rows.extend(largest_batches(
            "seq2seq, 50 words",
            |batch| seq2seq_task(batch, 50, Mode::Training),
            bench,
        )?);
    }
    let title = "images per second in training".to_owned();
    Ok(Sheet::of(rows).with(Curves { title, axes: ["images in a mini-batch", "images per second"], lines }))
}

/// The largest mini-batches that the P100 holds with the pool and with best-fit, and what the second gains.
fn largest_batches(
    name: &str,
    task: impl Fn(usize) -> Result<Task, Error>,
    bench: &Bench<'_>,
) -> Result<Vec<Row>, Error> {
    let largest = |packer: &str| {
        let fits = |batch: usize| {
            Ok::<_, Error>(height(&buffers(&task(batch)?, &Silent)?, packer, bench.observer)? <= P100)
        };
        // `fit` fits and `exceed` does not, or is not tried yet.
        let (mut fit, mut exceed) = (0, 32);
        while fits(exceed)? {
            (fit, exceed) = (exceed, 2 * exceed);
        }
        while exceed - fit > 1 && !bench.stopped() {
            let batch = fit.midpoint(exceed);
            if fits(batch)? { fit = batch } else { exceed = batch }
        }
        Ok::<_, Error>(fit)
    };
    let [pool, planned] = [largest("pool")?, largest("best-fit-paper")?];
    let why = "16 GB is the P100's memory; the paper tries 32, 64 and 128 only, and its Inception-ResNet trains with 32 in orig and 64 in opt";
    let mut rows: Vec<Row> = [("orig", pool), ("opt", planned)]
        .map(|(which, batch)| {
            Row::new(format!("{name}, largest mini-batch in 16 GB, {which}"), "samples", None, batch as f64)
                .because(why)
        })
        .into();
    if pool > 0 && planned > 0 {
        let speed = |batch, which| Ok::<_, Error>(MiniBatch::new(&task(batch)?, batch, bench)?.speed(which));
        let gain = speed(planned, 1)? / speed(pool, 0)?;
        rows.push(
            Row::new(format!("{name}, samples per second of the two"), "x", None, gain).timed().because(
                "the paper prints this for Inception-ResNet with 64 and 32 only; ops of large mini-batches take time in proportion",
            ),
        );
    }
    Ok(rows)
}

/// Figure 4: how long best-fit takes.
pub(crate) fn figure_4(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let packer = registry::packer("best-fit-paper")?;
    let mut rows = Vec::new();
    let mut timed = |what: String, problem: &Problem| {
        let started = Instant::now();
        packer.pack(problem, &Budget::default(), bench.observer);
        let time = started.elapsed().as_secs_f64() * 1e3;
        let reason = format!(
            "{BARS}, of a program in Python; {} buffers here, measured on this machine",
            problem.blocks.len()
        );
        rows.push(Row::new(what, "ms", None, time).timed().because(reason));
    };
    for (name, network) in IMAGES {
        timed(format!("4a: {name}, inference"), &images(network, 1, Mode::Inference)?);
        timed(format!("4a: {name}, batch 32"), &images(network, 32, Mode::Training)?);
    }
    timed("4b: seq2seq, training, 50 words".to_owned(), &seq2seq(32, 50, Mode::Training)?);
    timed("4b: seq2seq, inference, 100 words".to_owned(), &seq2seq(1, 100, Mode::Inference)?);
    Ok(Sheet::of(rows))
}

/// Section 5.2, Heuristic: where the optimum is known, best-fit has it.
pub(crate) fn heuristic(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let mut rows = Vec::new();
    for (name, network, printed) in
        [("AlexNet", "alexnet", 10_169_344.0), ("GoogLeNet", "googlenet", 12_202_496.0)]
    {
        let problem = without_parameters(images(network, 1, Mode::Inference)?);
        let planned = height(&problem, "best-fit-paper", bench.observer)?;
        let exact = registry::packer("exact")?.pack(&problem, &Budget::evaluations(200_000), bench.observer);
        let optimum = exact.best.map(|placement| placement.height).filter(|_| exact.stop.name() == "optimal");
        rows.push(Row::new(format!("{name}, inference, best-fit"), "B", printed, planned.get() as f64).because(
            "Chainer's requests, with cuDNN's workspaces of 8 MB and results that are not computed in place",
        ));
        let ratio = optimum.map(|optimum| planned.get() as f64 / optimum.get() as f64);
        let row = Row::new(format!("{name}, inference, best-fit ÷ optimum"), "", 1.0, ratio);
        rows.push(if row.agrees() {
            row
        } else {
            row.because("the optimum is proved by the packer exact, CPLEX's in the paper")
        });
    }
    let batches: &[(&str, &str, usize)] = bench.pick(
        &[],
        &[("AlexNet", "alexnet", 32), ("GoogLeNet", "googlenet", 32), ("ResNet-50", "resnet50", 32)],
    );
    let cases = [("AlexNet", "alexnet", 1, Mode::Inference), ("GoogLeNet", "googlenet", 1, Mode::Inference)];
    let training = batches.iter().map(|&(name, network, batch)| (name, network, batch, Mode::Training));
    for (name, network, batch, mode) in cases.into_iter().chain(training) {
        let problem = without_parameters(images(network, batch, mode)?);
        rows.push(integer_program(name, mode, &problem, bench)?);
    }
    Ok(Sheet::of(rows))
}

/// Time for the integer program; the paper gave CPLEX an hour.
const SOLVER: Duration = Duration::from_secs(60);

/// The integer program of section 3.1 beside the heuristic of section 3.2.
fn integer_program(name: &str, mode: Mode, problem: &Problem, bench: &Bench<'_>) -> Result<Row, Error> {
    let what = if mode == Mode::Training { "training" } else { "inference" };
    let row =
        |printed, ours| Row::new(format!("{name}, {what}, integer program ÷ best-fit"), "", printed, ours);
    // The paper's solver ended for these two only, with the heuristic's figure.
    let printed = (mode == Mode::Inference).then_some(1.0);
    let Ok(solver) = registry::packer("mip") else {
        let built = "built without the feature highs, which has the integer program: cargo build --release --features highs (needs a C++ compiler, CMake and libclang); elbowroom pack --packer mip then solves any table as well";
        return Ok(row(printed, None).because(built));
    };
    let started = Instant::now();
    let solved = solver.pack(problem, &Budget::time(SOLVER), bench.observer);
    let planned = height(problem, "best-fit-paper", bench.observer)?;
    let ratio = solved.best.map(|found| found.height.get() as f64 / planned.get() as f64);
    Ok(row(printed, ratio).timed().because(format!(
        "HiGHS, stopped because: {}, {:.1} s of {} s; CPLEX had an hour in the paper and ended for AlexNet's and GoogLeNet's inference only",
        solved.stop.name(),
        started.elapsed().as_secs_f64(),
        SOLVER.as_secs()
    )))
}

/// The buffers that are not alive all the time: what the paper's method places.
fn without_parameters(problem: Problem) -> Problem {
    let all = || problem.blocks.values().flat_map(|block| &block.alive);
    let (from, to) = (all().map(|a| a.start).min().unwrap_or(0), all().map(|a| a.end).max().unwrap_or(0));
    let whole = |block: &&Block| block.alive != [Interval::new(from, to)];
    Problem { blocks: problem.blocks.values().filter(whole).cloned().collect(), capacity: None }
}
