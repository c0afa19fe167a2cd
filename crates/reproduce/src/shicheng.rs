//! Shicheng (2020), *GPU memory management for neural networks using deep Q-network*.

#[cfg(feature = "dqn")]
use std::any::Any;
#[cfg(feature = "dqn")]
use std::sync::Mutex;

use elbowroom::compare;
#[cfg(feature = "dqn")]
use elbowroom::dqn::{Dqn, Episode};
use elbowroom::graph::zoo::Options;
use elbowroom::ir::Bytes;
use elbowroom::ir::planning::Freedom;
#[cfg(feature = "dqn")]
use elbowroom::ir::planning::Planner;
use elbowroom::ir::search::Budget;
#[cfg(feature = "dqn")]
use elbowroom::ir::search::Observer;
#[cfg(feature = "dqn")]
use elbowroom::pipeline::Task;
use elbowroom::pipeline::{self, Method, derived_plan};
use elbowroom::registry;
use elbowroom::sim::simulate;

use crate::bench;
use crate::row::{Curves, Row, Sheet};
use crate::{Bench, Error};

/// Figure 5: overhead by reduction of memory.
pub(crate) fn figure_5(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let networks: &[(&str, usize)] = bench.pick(
        &[("vgg11", 32)],
        &[
            ("resnet18", 32),
            ("resnet34", 32),
            ("vgg11", 32),
            ("vgg16", 32),
            ("unet", 4),
            ("lstm", 32),
            ("kmeans", 1_000),
        ],
    );
    let learned = registry::planner("dqn").is_ok().then_some(("this paper", "dqn"));
    let methods: Vec<(&str, &str)> = learned
        .into_iter()
        .chain([
            ("MXNet-memonger", "sublinear"),
            ("SuperNeurons", "supernn"),
            ("TFLMS", "tflms"),
            ("not in the paper", "pofo"),
            ("not in the paper", "auto"),
        ])
        .collect();
    let planners: Vec<&str> = methods.iter().map(|method| method.1).collect();
    let evaluations = bench.pick(50, 200);
    let mut sheet = Sheet::default();
    for &(network, batch) in networks {
        if bench.stopped() {
            break;
        }
        bench.begins(network);
        let task = bench::task(network, &Options::new(batch), "gtx1080ti", 256, Freedom::ALL)?;
        let found = bench.sweep(&task, &planners, [50.0, 90.0], bench.pick(2, 5), evaluations)?;
        let mut lines = Vec::new();
        for &(name, planner) in &methods {
            let points = bench::by_reduction(&found, planner);
            let half = points.iter().find(|point| (point.0 - 50.0).abs() < 0.5).map(|point| point.1);
            let at_half = |row: &&compare::Row| row.planner == planner && (row.share - 0.5).abs() < 0.005;
            let found_by = found.iter().find(at_half).and_then(|row| row.found_by.clone());
            let reason = match (half, planner, found_by) {
                (None, "pofo" | "auto", _) => {
                    "not in the paper; no schedule is found at half of the peak".to_owned()
                }
                (None, ..) => {
                    "curves without numbers; the planner finds no schedule at half of the peak".to_owned()
                }
                (_, "pofo", _) => "not in the paper: the joint planner of Beaumont et al. (2021)".to_owned(),
                (_, "auto", _) => format!(
                    "not in the paper: the default planner of this project, here with {evaluations} moves, where an episode of dqn decides on many tensors; in a second it makes tens of thousands"
                ),
                (_, "dqn", Some(by)) => format!("curves without numbers; found by {by}"),
                _ => "curves without numbers".to_owned(),
            };
            sheet.rows.push(
                Row::new(
                    format!("{network}: {planner} ({name}), overhead at a reduction of 50 %"),
                    "%",
                    None,
                    half,
                )
                .because(reason),
            );
            lines.push((planner.to_owned(), points));
        }
        sheet = sheet.with(Curves {
            title: format!("{network}, batch {batch}"),
            axes: ["reduction of live memory, %", "overhead, %"],
            lines,
        });
    }
    stochastic_depth(bench, &mut sheet)?;
    if learned.is_none() {
        sheet.rows.push(Row::new("dqn", "%", None, None).because("built without the feature dqn"));
    }
    Ok(sheet)
}

/// SD ResNet of Figure 5, whose structure changes: one plan for the structure with every block, and every other structure by the plan derived from
/// that, as a training runs them.
fn stochastic_depth(bench: &Bench<'_>, sheet: &mut Sheet) -> Result<(), Error> {
    let (network, draws) = bench.pick(("stochastic-resnet20", 10), ("stochastic-resnet34", 40));
    if bench.stopped() {
        return Ok(());
    }
    bench.begins(network);
    let options = Options::new(32);
    let packer = registry::packer(registry::DEFAULT_PACKER)?;
    let fault = |error: String| Error::Fault(format!("{network}: {error}"));
    let whole = bench::task(network, &options, "gtx1080ti", 256, Freedom::ALL)?;
    let peak = pipeline::unconstrained(&whole, packer, bench.observer)?.height();
    let parts = (0..draws)
        .map(|draw| bench::task(network, &options.clone().draw(draw), "gtx1080ti", 256, Freedom::ALL))
        .collect::<Result<Vec<_>, _>>()?;
    let budget = Budget::evaluations(bench.pick(50, 200));
    let method = Method::new(registry::planner(registry::DEFAULT_PLANNER)?, packer, budget);
    let mut points = Vec::new();
    for &reduction in bench.pick(&[50_u32, 70][..], &[50, 60, 70, 80, 90]) {
        let limited = whole.with_memory(Bytes(peak.get() / 100 * u64::from(100 - reduction)));
        let Ok(planned) = pipeline::plan(&limited, &method, bench.observer) else { break };
        let (mut overhead, mut derived) = (0.0, 0);
        for part in &parts {
            let Ok(plan) = derived_plan(&planned.plan, &part.trace, packer, bench.observer) else { continue };
            let timeline = simulate(&part.trace, &part.costs, &limited.machine, plan.schedule())
                .map_err(|error| fault(error.to_string()))?;
            overhead += timeline.iteration.get() as f64 / part.costs.total().get() as f64 - 1.0;
            derived += 1;
        }
        if derived > 0 {
            points.push((f64::from(reduction), 100.0 * overhead / f64::from(derived)));
        }
        if reduction == 50 {
            let why = "curves without numbers; the plan of the structure with every block serves the others, so that none is planned anew";
            let of = format!(
                "{network}: auto, structures of {draws} whose plan is derived at a reduction of 50 %"
            );
            sheet.rows.push(Row::new(of, "", None, f64::from(derived)).because(why));
            let of = format!("{network}: auto, mean overhead of these at a reduction of 50 %");
            let mean = points.last().map(|point| point.1);
            sheet.rows.push(Row::new(of, "%", None, mean).because(why));
        }
    }
    sheet.curves.push(Curves {
        title: format!("{network}, batch 32"),
        axes: ["reduction of arena, %", "mean overhead, %"],
        lines: vec![("auto, derived plans".to_owned(), points)],
    });
    Ok(())
}

/// What becomes of the planner `dqn` with its training as the paper's text has it, and with one difference at a time.
#[cfg(feature = "dqn")]
pub(crate) fn differences(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let networks: &[(&str, usize)] = bench.pick(&[("vgg11", 128)], &[("vgg11", 128), ("resnet18", 128)]);
    let (episodes, seeds) = bench.pick((8, 1), (30, 4));
    let mut sheet = Sheet::default();
    for &(network, batch) in networks {
        let task = bench::task(network, &Options::new(batch).image(32), "gtx1080ti", 256, Freedom::ALL)?;
        let limit = Bytes(bench::peak(&task, bench.observer)?.get() / 2);
        for (name, settings) in VARIANTS {
            if bench.stopped() {
                return Ok(sheet);
            }
            bench.begins(&format!("{network}, {name}"));
            let settings = format!("{settings}through=1,episodes={episodes}");
            let mut trainings = Vec::new();
            for seed in 0..seeds {
                trainings.push(trained(bench, &task, limit, &settings, seed)?);
            }
            let mean = |of: &dyn Fn(&Training) -> Option<f64>| {
                let known: Vec<f64> = trainings.iter().filter_map(of).collect();
                (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
            };
            let figures = [
                ("best plan, overhead", mean(&|training| training.best)),
                ("last quarter of the episodes, mean overhead", mean(&|training| Some(training.last))),
                ("episodes that fit", mean(&|training| Some(training.fitting))),
            ];
            for (figure, ours) in figures {
                let row = format!("{network}: dqn, {name}: {figure}");
                sheet.rows.push(Row::new(row, "%", None, ours).because(format!(
                    "the paper has no figures of its training; {settings}, half of the peak, seeds: {seeds}. What does not fit has the price of the missing bytes"
                )));
            }
        }
    }
    Ok(sheet)
}

#[cfg(not(feature = "dqn"))]
pub(crate) fn differences(_: &Bench<'_>) -> Result<Sheet, Error> {
    Ok(Sheet::of(vec![Row::new("dqn", "%", None, None).because("built without the feature dqn")]))
}

#[cfg(feature = "dqn")]
pub(crate) use crate::transfer::transfer;

#[cfg(not(feature = "dqn"))]
pub(crate) use differences as transfer;

/// The trainings that are compared, with their settings.
#[cfg(feature = "dqn")]
const VARIANTS: [(&str, &str); 10] = [
    ("ours", ""),
    ("ours with equation 5 alone", "ahead=1,tighten=0,"),
    ("ours with sums", "sums=1,"),
    ("ours with plain descent", "sgd=1,"),
    ("ours where anything may stay", "mask=0,"),
    ("ours without imitation", "imitate=0,"),
    ("the paper's text", "paper=1,"),
    ("the paper's text but means", "paper=1,sums=0,"),
    ("the paper's text but Adam", "paper=1,sgd=0,"),
    ("the paper's text but means and Adam", "paper=1,sums=0,sgd=0,"),
];

/// How a training went, in percent.
#[cfg(feature = "dqn")]
struct Training {
    best: Option<f64>,
    last: f64,
    fitting: f64,
}

#[cfg(feature = "dqn")]
fn trained(
    bench: &Bench<'_>,
    task: &Task,
    limit: Bytes,
    settings: &str,
    seed: u64,
) -> Result<Training, Error> {
    let fault = |error: String| Error::Fault(error);
    let settings = settings.parse().map_err(|error| fault(format!("{error}")))?;
    let episodes = Episodes { outer: bench.observer, all: Mutex::default() };
    let budget = Budget { seed, ..Budget::evaluations(bench::TO_THE_END) };
    Dqn::new(settings, None).schedule(&pipeline::request(task, limit), &budget, &episodes);
    let all = episodes.all.into_inner().map_err(|error| fault(error.to_string()))?;
    let last = all.last().ok_or_else(|| fault("no episode was played".to_owned()))?;
    let overhead = |time: u64| 100.0 * (time as f64 / task.costs.total().get() as f64 - 1.0);
    let quarter = &all[all.len() - all.len().div_ceil(4)..];
    let fitting = all.iter().filter(|episode| episode.fits).count();
    Ok(Training {
        best: last.best.map(overhead),
        last: quarter.iter().map(|episode| overhead(episode.cost)).sum::<f64>() / quarter.len() as f64,
        fitting: 100.0 * fitting as f64 / all.len() as f64,
    })
}

/// Collects the episodes of a training.
#[cfg(feature = "dqn")]
struct Episodes<'a> {
    outer: &'a dyn Observer,
    all: Mutex<Vec<Episode>>,
}

#[cfg(feature = "dqn")]
impl Observer for Episodes<'_> {
    fn note(&self, note: &dyn Any) {
        if let (Some(episode), Ok(mut all)) = (note.downcast_ref::<Episode>(), self.all.lock()) {
            all.push(*episode);
        }
    }
    fn interrupted(&self) -> bool {
        self.outer.interrupted()
    }
}
