//! Beaumont et al. (2020), *Optimal GPU-CPU offloading strategies for deep neural network training*.

use elbowroom::compare;
use elbowroom::graph::zoo::Options;
use elbowroom::pipeline::Task;

use crate::bench::{self, OFFLOAD, TO_THE_END};
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

const PLANNERS: [&str; 3] = ["greedy", "dynprog", "vdnn"];

/// Limits of a sweep: percent of the peak, and their number. The paper goes down to the least memory that runs the network.
fn sweep(bench: &Bench<'_>, task: &Task) -> Result<std::rc::Rc<Vec<compare::Row>>, Error> {
    bench.sweep(task, &PLANNERS, [40.0, 90.0], bench.pick(6, 11), TO_THE_END)
}

fn curves(
    title: String,
    axes: [&'static str; 2],
    rows: &[compare::Row],
    value: impl Fn(&compare::Row) -> Option<f64>,
) -> Curves {
    let line = |planner: &&str| ((*planner).to_owned(), bench::points(rows, planner, &value));
    Curves { title, axes, lines: PLANNERS.iter().map(line).collect() }
}

const LIMIT: &str = "limit, % of the peak";

const CURVES: &str = "curves without numbers";

/// A planner's largest ratio among the limits of a sweep. The reason is `before`, how many limits have a schedule, and `after`.
fn largest_ratio(
    what: &str,
    rows: &[compare::Row],
    planner: &str,
    printed: Option<f64>,
    [before, after]: [&str; 2],
) -> Row {
    let limits = rows.iter().filter(|row| row.planner == planner).count();
    let ratios = bench::points(rows, planner, |row| row.ratio_to_chain_bound);
    let largest = ratios.iter().map(|point| point.1).reduce(f64::max);
    Row::new(format!("{what}: {planner}, largest ratio from 40 to 90 %"), "", printed, largest)
        .because(format!("{before}; {} of {limits} limits have a schedule{after}", ratios.len()))
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
        let rows = sweep(bench, &task(case)?)?;
        for planner in PLANNERS {
            let (printed, text) = match planner {
                "dynprog" => (Some(1.2), "the text says consistently below 1.2"),
                _ => (None, CURVES),
            };
            let durations = "; op times are a roofline's, the paper's were measured on a V100";
            sheet.rows.push(largest_ratio(&what, &rows, planner, printed, [text, durations]));
        }
        sheet = sheet.with(curves(what, [LIMIT, "iteration time ÷ lower bound"], &rows, |row| {
            row.ratio_to_chain_bound
        }));
    }
    Ok(sheet)
}

/// Figure 5: a selection, with the other two baselines.
pub(crate) fn figure_5(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let mut sheet = ratios(bench, 5)?;
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
            let near = |row: &&compare::Row| {
                row.planner == "dynprog" && (100.0 * row.share).round() as u64 == percent
            };
            let ours = rows.iter().find(near).and_then(speed);
            sheet.rows.push(
                Row::new(format!("{what}: dynprog at {percent} %"), "images/s", None, ours).because(
                    "curves without numbers; op times are a roofline's, the paper's were measured on a V100",
                ),
            );
        }
        sheet = sheet.with(curves(what, [LIMIT, "images per second"], &rows, speed));
    }
    Ok(sheet)
}
