//! Beaumont et al. (2020), *Optimal GPU-CPU offloading strategies for deep neural network training*.

use std::sync::Arc;

use elbowroom::compare::{self, Comparison};
use elbowroom::graph::zoo::Options;
use elbowroom::ir::machine::{Channel, Machine};
use elbowroom::ir::search::Budget;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::{self, Task};
use elbowroom::registry;
use elbowroom::sched::chain::bound::partial_optimum;
use elbowroom::sched::chain::linearize::Linear;
use elbowroom::sched::chain::pieces::in_pieces;
use elbowroom::sched::chain::{Chain, Layer};
use elbowroom::sched::random::Random;
use elbowroom::sim::bound::proposition_3;
use elbowroom::sim::simulate;

use crate::bench::{self, OFFLOAD, TO_THE_END};
use crate::optimum::Exact;
use crate::row::{Curves, Row, Sheet};
use crate::{Bench, Error};

/// The networks of the section, by the number of the figure: name, size of the images, samples in a batch.
fn networks(figure: u32) -> Vec<(&'static str, usize, usize)> {
    const RESNETS: [&str; 5] = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"];
    const DENSENETS: [&str; 4] = ["densenet121", "densenet161", "densenet169", "densenet201"];
    const SIZES: [(usize, usize); 3] = [(224, 32), (500, 8), (1000, 2)];
    // Figures 13 to 19 show the cases of figures 6 to 12 again.
    let figure = if figure >= 13 { figure - 7 } else { figure };
    let of = |names: &[&'static str], (image, batch): (usize, usize)| {
        names.iter().map(|name| (*name, image, batch)).collect()
    };
    match figure {
        5 => vec![
            ("resnet18", 224, 32),
            ("resnet101", 224, 32),
            ("densenet121", 224, 32),
            ("densenet201", 224, 32),
            ("inception-v3", 224, 32),
        ],
        6..=8 => of(&RESNETS, SIZES[figure as usize - 6]),
        9..=11 => of(&DENSENETS, SIZES[figure as usize - 9]),
        _ => SIZES.iter().map(|&(image, batch)| ("inception-v3", image, batch)).collect(),
    }
}

/// The cases that are computed: the first of them in a quick run.
fn cases(bench: &Bench<'_>, figure: u32) -> Vec<(&'static str, usize, usize)> {
    let all = networks(figure);
    let count = bench.pick(1, all.len());
    all.into_iter().take(count).collect()
}

fn task((network, image, batch): (&str, usize, usize)) -> Result<Task, Error> {
    bench::task(network, &Options::new(batch).image(image).classes(1_000), "v100", 1, OFFLOAD)
}

/// The planners of the section: all of them in a full run.
const PLANNERS: [&str; 5] = ["greedy", "dynprog", "vdnn", "tflms", "autoswap"];

fn planners(bench: &Bench<'_>) -> &'static [&'static str] {
    bench.pick(&PLANNERS[..3], &PLANNERS)
}

/// As in section 6.3, limits from the least memory that runs the chain to the peak, 48 of them; in a quick run six from 40 to 90 % of the peak.
fn sweep(bench: &Bench<'_>, task: &Task) -> Result<std::rc::Rc<Vec<compare::Row>>, Error> {
    let (low, high, steps) = bench.pick((40.0, 90.0, 6), (floor(task)?, 100.0, 48));
    bench.sweep(task, planners(bench), [low, high], steps, TO_THE_END)
}

/// The layers of a task.
fn linear(task: &Task) -> Result<Linear, Error> {
    Linear::of(&pipeline::request(task, Bytes(1 << 60))).map_err(|error| Error::Fault(error.to_string()))
}

/// The least memory that runs a task as a chain, in percent of its peak.
fn floor(task: &Task) -> Result<f64, Error> {
    let linear = linear(task)?;
    Ok(100.0 * linear.chain.floor().ratio(linear.chain.peak()))
}

fn curves(
    title: String,
    axes: [&'static str; 2],
    planners: &[&str],
    rows: &[compare::Row],
    value: impl Fn(&compare::Row) -> Option<f64>,
) -> Curves {
    let line = |planner: &&str| ((*planner).to_owned(), bench::points(rows, planner, &value));
    Curves { title, axes, lines: planners.iter().map(line).collect() }
}

const LIMIT: &str = "limit, % of the peak";

const CURVES: &str = "curves without numbers";

/// The limit, in percent of the peak, at which a planner's ratio is largest, and that ratio.
fn worst(rows: &[compare::Row], planner: &str) -> Option<(f64, f64)> {
    let ratios = bench::points(rows, planner, |row| row.ratio_to_chain_bound);
    ratios.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
}

/// A planner's largest ratio among the limits of a sweep. The reason is `before`, how many limits have a schedule, and `after`.
fn largest_ratio(
    what: &str,
    rows: &[compare::Row],
    planner: &str,
    printed: Option<f64>,
    [before, after]: [&str; 2],
) -> Row {
    let of = || rows.iter().filter(|row| row.planner == planner);
    let (limits, feasible) = (of().count(), of().filter(|row| row.feasible).count());
    let ratio = worst(rows, planner).map(|worst| worst.1);
    Row::new(format!("{what}: {planner}, largest ratio"), "", printed, ratio)
        .because(format!("{before}; {feasible} of {limits} limits have a schedule{after}"))
}

/// Why a ratio is large at a limit in percent of the peak: how close the terms of Proposition 3 are to each other, and how far Algorithm 1 is above
/// it on the chain of the network's layers.
fn kink(bench: &Bench<'_>, task: &Task, percent: f64) -> Result<String, Error> {
    let peak = bench::peak(task, bench.observer)?;
    let limit = Bytes((peak.get() as f64 * percent / 100.0).round() as u64);
    let ops = task.costs.total();
    let linear = linear(task)?;
    let value = pipeline::relaxed_bound(&chain_task(task, &linear)?.with_memory(limit));
    let above = value.map_or_else(String::new, |value| {
        let ratio = value.ratio(proposition_3(ops, linear.chain.peak(), limit, &task.machine));
        format!("; on the chain of its layers, Algorithm 1 is {ratio:.3} times Proposition 3 there")
    });
    let copies = proposition_3(Nanos::ZERO, peak, limit, &task.machine);
    let share = 100.0 * copies.ratio(ops);
    Ok(format!(
        "; largest at {percent:.1} % of the peak, where the necessary copies take {share:.0} % of the time of the ops{above}"
    ))
}

/// A task as the chain that planners of chains see.
fn chain_task(task: &Task, linear: &Linear) -> Result<Task, Error> {
    let chain = linear.chain.to_trace(task.trace.name()).map_err(|error| Error::Fault(error.to_string()))?;
    Ok(Task { trace: Arc::new(chain.trace), costs: chain.costs, ..task.clone() })
}

/// Figures 6 to 12, and 5: iteration time ÷ Proposition 3.
pub(crate) fn ratios(bench: &Bench<'_>, figure: u32) -> Result<Sheet, Error> {
    let mut sheet = Sheet::default();
    for case in cases(bench, figure) {
        if bench.stopped() {
            break;
        }
        let (network, image, batch) = case;
        let what = format!("{network}, {image} pixels, batch {batch}");
        bench.begins(&what);
        let task = task(case)?;
        let rows = sweep(bench, &task)?;
        for &planner in planners(bench) {
            let (printed, text) = match planner {
                "dynprog" => (Some(1.2), "the text says consistently below 1.2"),
                _ => (None, CURVES),
            };
            let place = match (printed, worst(&rows, planner)) {
                (Some(_), Some((percent, _))) => kink(bench, &task, percent)?,
                _ => String::new(),
            };
            let after = format!("{place}; op times are a roofline's, the paper's were measured on a V100");
            sheet.rows.push(largest_ratio(&what, &rows, planner, printed, [text, &after]));
        }
        let axes = [LIMIT, "iteration time ÷ lower bound"];
        sheet = sheet.with(curves(what, axes, planners(bench), &rows, |row| row.ratio_to_chain_bound));
    }
    Ok(sheet)
}

/// Figure 5: a selection, with the other two baselines.
pub(crate) fn figure_5(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let mut sheet = ratios(bench, 5)?;
    if !bench.pick(true, false) {
        return Ok(sheet);
    }
    let case = networks(5)[0];
    let task = task(case)?;
    bench.begins("tflms, autoswap");
    let rows = bench.sweep(&task, &["tflms", "autoswap"], [40.0, 90.0], 6, TO_THE_END)?;
    for planner in ["tflms", "autoswap"] {
        sheet.rows.push(largest_ratio(case.0, &rows, planner, None, [CURVES, ""]));
    }
    Ok(sheet)
}

/// Figures 13 to 19: images per second.
pub(crate) fn throughput(bench: &Bench<'_>, figure: u32) -> Result<Sheet, Error> {
    let mut sheet = Sheet::default();
    for case in cases(bench, figure) {
        if bench.stopped() {
            break;
        }
        let (network, image, batch) = case;
        let what = format!("{network}, {image} pixels, batch {batch}");
        bench.begins(&what);
        let rows = sweep(bench, &task(case)?)?;
        let speed = |row: &compare::Row| row.iteration_ns.map(|time| batch as f64 * 1e9 / time.get() as f64);
        for percent in [90, 60, 40] {
            // The limit of the sweep that is nearest.
            let far = |row: &compare::Row| (100.0 * row.share - f64::from(percent)).abs();
            let of = rows.iter().filter(|row| row.planner == "dynprog");
            let near = of.min_by(|a, b| far(a).total_cmp(&far(b))).filter(|row| far(row) < 5.0);
            let ours = near.and_then(speed);
            sheet.rows.push(
                Row::new(format!("{what}: dynprog at {percent} %"), "images/s", None, ours).because(
                    "curves without numbers; op times are a roofline's, the paper's were measured on a V100",
                ),
            );
        }
        sheet = sheet.with(curves(what, [LIMIT, "images per second"], planners(bench), &rows, speed));
    }
    Ok(sheet)
}

/// Random chains.
#[derive(Clone, Copy)]
struct Kind {
    /// Their layers, from the fewest to the most.
    layers: [usize; 2],
    /// Where the limit lies between the smallest and that which never binds.
    limits: [f64; 2],
    /// How long the ops take together, in times of the copies that Proposition 3 counts.
    times: [f64; 2],
}

/// Chains with limits that bind, and ops that take about as long as copies.
const TYPICAL: Kind = Kind { layers: [3, 6], limits: [0.05, 0.8], times: [0.7, 1.4] };

/// A chain and its limit.
fn random_chain(kind: Kind, random: &mut Random) -> (Chain, Bytes) {
    let Kind { layers: [fewest, most], limits, times } = kind;
    let n = fewest + random.below(most + 1 - fewest);
    let mut size = |low: usize, high: usize| Bytes(1_000 * (low + random.below(high - low)) as u64);
    let mut chain = Chain {
        layers: vec![Layer::default(); n],
        activations: (0..=n).map(|_| size(4, 41)).collect(),
        gradients: (0..=n).map(|_| size(1, 11)).collect(),
    };
    for layer in &mut chain.layers {
        (layer.forward_extra, layer.backward_extra) = (size(0, 8), size(0, 8));
    }
    let (floor, peak) = (chain.floor().get(), chain.peak().get());
    if floor == peak {
        return random_chain(kind, random);
    }
    let limit =
        floor + ((peak - floor) as f64 * (limits[0] + (limits[1] - limits[0]) * random.unit())) as u64;
    let weights: Vec<(usize, usize)> = (0..n).map(|_| (1 + random.below(10), 2 + random.below(20))).collect();
    let sum: usize = weights.iter().map(|(forward, backward)| forward + backward).sum();
    let unit = (times[0] + (times[1] - times[0]) * random.unit()) * 2.0 * (peak - limit) as f64 / sum as f64;
    for (layer, (forward, backward)) in chain.layers.iter_mut().zip(weights) {
        layer.forward = Nanos((forward as f64 * unit) as u64);
        layer.backward = Nanos((backward as f64 * unit) as u64);
    }
    (chain, Bytes(limit))
}

/// Figures relative to the optimum, chain by chain.
struct AgainstOptimum {
    name: &'static str,
    is_bound: bool,
    ratios: Vec<f64>,
}

impl AgainstOptimum {
    /// Mean, worst, and how many are on the wrong side of the optimum.
    fn rows(&self) -> [Row; 3] {
        let Self { name, is_bound, ratios } = self;
        let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
        let worst = if *is_bound { f64::min } else { f64::max };
        let wrong = |ratio: &&f64| if *is_bound { **ratio > 1.0 } else { **ratio < 1.0 };
        let side = if *is_bound { "above" } else { "below" };
        let count = ratios.len();
        let reason = format!(
            "not in the paper, which compares with Proposition 3; {count} random chains of 3 to 6 layers, ops about as long as copies, limits that bind, against exact optima"
        );
        [
            Row::new(format!("{name} ÷ optimum, mean"), "", None, mean),
            Row::new(format!("{name} ÷ optimum, worst"), "", None, ratios.iter().copied().reduce(worst)),
            Row::new(
                format!("{name} {side} the optimum"),
                "chains",
                None,
                ratios.iter().filter(wrong).count() as f64,
            ),
        ]
        .map(|row| row.because(reason.clone()))
    }
}

/// The task of a chain over a shared link that copies a byte in a nanosecond.
fn task_of(chain: &Chain, limit: Bytes) -> Result<Task, Error> {
    let traced =
        chain.to_trace("random chain").map_err(|_| Error::Fault("a random chain has no trace".to_owned()))?;
    let link = Channel::with_rate(1_000_000_000);
    let machine = Machine {
        align: Bytes(1),
        memory: limit,
        to_host: link,
        to_device: link,
        shared_link: true,
        ..bench::machine("v100")?
    };
    Ok(Task { trace: Arc::new(traced.trace), costs: traced.costs, machine, freedom: OFFLOAD, pins: None })
}

/// Planners and bounds against exact optima.
pub(crate) fn optima(bench: &Bench<'_>) -> Result<Sheet, Error> {
    const PLANNERS: [&str; 5] = ["greedy", "dynprog", "vdnn", "bo", "bo-margin"];
    const BOUNDS: [&str; 2] = ["value of Algorithm 1", "Proposition 3"];
    let planners = PLANNERS.map(registry::planner).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut of: Vec<AgainstOptimum> = PLANNERS
        .iter()
        .map(|&name| (name, false))
        .chain(BOUNDS.map(|name| (name, true)))
        .map(|(name, is_bound)| AgainstOptimum { name, is_bound, ratios: Vec::new() })
        .collect();
    let mut random = Random::new(20);
    for number in 0..bench.pick(60, 300) {
        if bench.stopped() {
            break;
        }
        let (chain, limit) = random_chain(TYPICAL, &mut random);
        let fault = |what: &str| Error::Fault(format!("random chain {number} has no {what}"));
        let optimum = Exact::new(&chain, limit.get()).shortest().ok_or_else(|| fault("optimum"))? as f64;
        let task = task_of(&chain, limit)?;
        let comparison = Comparison {
            task: &task,
            planners: &planners,
            packer: registry::packer(registry::DEFAULT_PACKER)?,
            budget: Budget::evaluations(TO_THE_END),
            limits: &[limit],
            by_live_memory: true,
            unconstrained: chain.peak(),
            alone: true,
        };
        for row in compare::compare(&comparison, bench.observer, |_, _| {})? {
            let Some(time) = row.iteration_ns.map(|time| time.get() as f64) else { continue };
            let index = PLANNERS.iter().position(|name| *name == row.planner);
            of[index.ok_or_else(|| fault("such planner"))?].ratios.push(time / optimum);
            if row.planner == PLANNERS[0] {
                let relaxed = row.relaxed_bound_ns.ok_or_else(|| fault("value of Algorithm 1"))?;
                of[PLANNERS.len()].ratios.push(relaxed.get() as f64 / optimum);
                of[PLANNERS.len() + 1]
                    .ratios
                    .extend(row.ratio_to_chain_bound.map(|ratio| time / ratio / optimum));
            }
        }
    }
    Ok(Sheet::of(of.iter().flat_map(AgainstOptimum::rows).collect()))
}

/// Section 4: partial offload on random chains, and on the chains of networks.
pub(crate) fn partial(bench: &Bench<'_>) -> Result<Sheet, Error> {
    const PIECE: Bytes = Bytes(100);
    let mut of = [
        ("value of theorem 2 ÷ optimum with whole activations", Vec::new()),
        ("eager in pieces of 100 bytes ÷ value of theorem 2", Vec::new()),
        ("greedy ÷ value of theorem 2", Vec::new()),
        ("dynprog ÷ value of theorem 2", Vec::new()),
    ];
    let mut random = Random::new(21);
    for number in 0..bench.pick(40, 200) {
        if bench.stopped() {
            break;
        }
        let (chain, limit) = random_chain(TYPICAL, &mut random);
        let fault = || Error::Fault(format!("random chain {number} has no schedule"));
        let optimum = Exact::new(&chain, limit.get()).shortest().ok_or_else(fault)? as f64;
        let task = task_of(&chain, limit)?;
        let [value, eager, greedy, dynprog] = partial_times(bench, &task, limit, PIECE)?;
        let value = value.ok_or_else(fault)?;
        of[0].1.push(value / optimum);
        for (list, time) in of[1..].iter_mut().zip([eager, greedy, dynprog]) {
            list.1.push(time.ok_or_else(fault)? / value);
        }
    }
    let mut sheet = Sheet::default();
    for (what, ratios) in &of {
        let reason = format!(
            "not in the paper, which proves that the first bytes are the best ones to offload; {} random chains. The schedules are simulated with whole copies of whole pieces",
            ratios.len()
        );
        let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
        let worst = ratios.iter().copied().reduce(f64::max);
        for (which, ratio) in [("mean", Some(mean)), ("largest", worst)] {
            sheet.rows.push(Row::new(format!("{what}, {which}"), "", None, ratio).because(reason.clone()));
        }
    }
    for &(network, image, batch) in bench.pick(&networks(5)[..1], &networks(5)[..]) {
        if bench.stopped() {
            break;
        }
        bench.begins(network);
        let whole = task((network, image, batch))?;
        let linear = linear(&whole)?;
        let task = chain_task(&whole, &linear)?;
        for percent in [80, 70, 60] {
            let limit = Bytes(linear.chain.peak().get() / 100 * percent);
            let [value, eager, greedy, dynprog] = partial_times(bench, &task, limit, Bytes(1 << 20))?;
            for (name, time) in
                [("eager in pieces of 1 MiB", eager), ("greedy", greedy), ("dynprog", dynprog)]
            {
                let ratio = time.zip(value).map(|(time, value)| time / value);
                let row =
                    format!("{network} as a chain at {percent} % of its peak: {name} ÷ value of theorem 2");
                let reason =
                    if ratio.is_some() { "not in the paper" } else { "not in the paper; no schedule fits" };
                sheet.rows.push(Row::new(row, "", None, ratio).because(reason));
            }
        }
    }
    Ok(sheet)
}

/// In nanoseconds: the value of theorem 2, and the times of `eager` with activations in pieces, of `greedy` and of `dynprog`.
fn partial_times(
    bench: &Bench<'_>,
    task: &Task,
    limit: Bytes,
    piece: Bytes,
) -> Result<[Option<f64>; 4], Error> {
    let value = partial_optimum(&pipeline::request(task, limit));
    let trace = in_pieces(&task.trace, piece).map_err(|error| Error::Fault(error.to_string()))?;
    let cut = Task { trace: Arc::new(trace), ..task.clone() };
    let mut times = [value.map(|time| time.get() as f64), None, None, None];
    for (index, (task, planner)) in
        [(&cut, "eager"), (task, "greedy"), (task, "dynprog")].into_iter().enumerate()
    {
        let request = pipeline::request(task, limit);
        let outcome =
            registry::planner(planner)?.schedule(&request, &Budget::evaluations(TO_THE_END), bench.observer);
        let Some(schedule) = outcome.best else { continue };
        let timeline = simulate(&task.trace, &task.costs, &task.machine, &schedule)
            .map_err(|error| Error::Fault(error.to_string()))?;
        if timeline.peak_live > limit {
            return Err(Error::Fault(format!("{planner} exceeds {limit}")));
        }
        times[index + 1] = Some(timeline.iteration.get() as f64);
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use elbowroom::ir::search::Silent;
    use elbowroom::pipeline::Method;

    use super::*;

    #[test]
    fn no_planner_is_below_an_optimum_and_no_bound_above() {
        let sheet = optima(&Bench::quick(&Silent)).unwrap();
        let wrong: Vec<&Row> = sheet.rows.iter().filter(|row| row.unit == "chains").collect();
        assert_eq!(wrong.len(), 7);
        assert!(wrong.iter().all(|row| row.ours == Some(0.0)), "{wrong:?}");
    }

    /// With little memory and fast ops the best set of copies is often one that is slow in the order of its ops. On three of these chains
    /// the optimum makes a prefetch before an offload that could start earlier.
    #[test]
    fn auto_finds_the_optima_of_hard_chains() {
        const HARD: Kind = Kind { layers: [5, 5], limits: [0.02, 0.32], times: [0.4, 1.2] };
        let planner = registry::planner("auto").unwrap();
        let packer = registry::packer(registry::DEFAULT_PACKER).unwrap();
        let method = Method::new(planner, packer, Budget::evaluations(4_000));
        let chains = |seed| {
            let mut random = Random::new(seed);
            std::iter::from_fn(move || Some(random_chain(HARD, &mut random)))
        };
        let late_offloads =
            [(3, 4), (5, 17), (9, 88)].map(|(seed, number)| chains(seed).nth(number).unwrap());
        for (number, (chain, limit)) in chains(2).take(12).chain(late_offloads).enumerate() {
            let optimum = Exact::new(&chain, limit.get()).shortest().unwrap();
            let task = task_of(&chain, limit).unwrap();
            let planned = pipeline::plan_schedule(&task, &method, &[], &Silent).unwrap();
            assert_eq!(planned.predicted.iteration, Nanos(optimum), "chain {number} of {limit}: {chain:?}");
            let (bound, relaxed) = (pipeline::lower_bound(&task), pipeline::relaxed_bound(&task).unwrap());
            assert!(relaxed <= bound && bound <= Nanos(optimum), "chain {number} of {limit}: {chain:?}");
        }
    }
}
