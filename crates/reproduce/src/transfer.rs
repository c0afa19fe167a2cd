//! A network trained over many traces, and what its plan of an unseen one is worth to `auto` (Shicheng, section 4.4.2: *we can train a DQN on a
//! small graph and fine-tune on a large graph*).
//!
//! The network trains on some networks of the zoo, on two machines and one after another. On networks that are held out it plays
//! once, without learning, and its plan is one more warm start of `auto`. What counts is evaluations: `auto` with that start and 70 % of the
//! evaluations against `auto` alone with all of them, and with 70 % as the control.

use std::any::Any;
use std::sync::Mutex;

use elbowroom::dqn::network::Weights;
use elbowroom::dqn::settings::Settings;
use elbowroom::dqn::{Dqn, Trained};
use elbowroom::graph::zoo::Options;
use elbowroom::ir::Bytes;
use elbowroom::ir::planning::{Freedom, Known, Planner};
use elbowroom::ir::schedule::Schedule;
use elbowroom::ir::search::{Budget, Observer};
use elbowroom::pipeline::{self, Task};
use elbowroom::registry;
use elbowroom::sim::simulate;

use crate::bench::{self, TO_THE_END};
use crate::row::{Row, Sheet};
use crate::{Bench, Error};

/// Networks with samples in a batch. Images have 32 × 32 pixels.
type Networks = &'static [(&'static str, usize)];

const LEARNED_FROM: Networks = &[("vgg11", 64), ("resnet20", 64), ("unet", 4), ("resnet18", 32)];
const HELD_OUT: Networks = &[("vgg16", 64), ("resnet34", 32), ("densenet121", 8), ("mobilenet-v2", 16)];
const MACHINES: [&str; 2] = ["gtx1080ti", "v100"];
/// Limit on live memory, in percent of the peak.
const LIMITS: [u64; 1] = [40];

/// See the [module](self).
pub(crate) fn transfer(bench: &Bench<'_>) -> Result<Sheet, Error> {
    let (trained_on, held_out) = bench.pick((&LEARNED_FROM[..1], &HELD_OUT[..1]), (LEARNED_FROM, HELD_OUT));
    let (episodes, rounds, evaluations, seeds) = bench.pick((4, 1, 100, 1), (24, 3, 40_000, 5));
    let mut weights: Option<Weights> = None;
    for round in 0..rounds {
        for &network in trained_on {
            for (task, limit, _) in cases(bench, network)? {
                if bench.stopped() {
                    return Ok(Sheet::default());
                }
                bench.begins(&format!("training on {}", network.0));
                // Chance decides less from round to round.
                let explore = if round == 0 { 1.0 } else { 0.5 };
                let settings = settings(&format!("episodes={episodes},through=1,explore={explore}"))?;
                let notes = Notes::of(bench);
                let budget = Budget { seed: round, ..Budget::evaluations(TO_THE_END) };
                Dqn::new(settings, weights.take()).schedule(
                    &pipeline::request(&task, limit),
                    &budget,
                    &notes,
                );
                weights = notes.trained()?;
            }
        }
    }
    let weights = weights.ok_or_else(|| Error::Fault("nothing was learned from".to_owned()))?;
    let floats: usize = weights.parts().iter().map(Vec::len).sum();

    let mut sheet = Sheet::default();
    let auto = registry::planner("auto")?;
    let few = evaluations * 7 / 10;
    let mut all = [0.0; 3];
    let mut count = 0;
    for &network in held_out {
        for (task, limit, percent) in cases(bench, network)? {
            if bench.stopped() {
                return Ok(sheet);
            }
            bench.begins(&format!("{} on {}", network.0, task.machine.name));
            let request = pipeline::request(&task, limit);
            let overhead = |schedule: &Schedule| -> Result<f64, Error> {
                let timeline = simulate(&task.trace, &task.costs, &task.machine, schedule)
                    .map_err(|error| Error::Fault(error.to_string()))?;
                Ok(100.0 * (timeline.iteration.get() as f64 / task.costs.total().get() as f64 - 1.0))
            };
            // One pass: no chance, no learning.
            let once = settings("episodes=1,explore=0,updates=0,imitate=0,through=1")?;
            let notes = Notes::of(bench);
            let proposal = Dqn::new(once, Some(weights.clone()))
                .schedule(&request, &Budget::evaluations(TO_THE_END), &notes)
                .best
                .filter(|_| notes.is_own());
            let known: Vec<&Schedule> = proposal.iter().collect();
            let mut means = [0.0; 3];
            let mut solved = true;
            for seed in 0..seeds {
                for (mean, (evaluations, known)) in
                    means.iter_mut().zip([(evaluations, &[][..]), (few, &[][..]), (few, &known[..])])
                {
                    let budget = Budget { seed, threads: 1, ..Budget::evaluations(evaluations) };
                    let found =
                        auto.schedule_from(&request, Known::schedules(known), &budget, bench.observer).best;
                    match found {
                        Some(schedule) => *mean += overhead(&schedule)? / seeds as f64,
                        None => solved = false,
                    }
                }
            }
            let place = format!("dqn and auto, {} on {} at {percent} %", network.0, task.machine.name);
            if !solved {
                let row = Row::new(format!("{place}: auto, overhead"), "%", None, None);
                sheet.rows.push(row.because("auto finds no plan with so few evaluations"));
                continue;
            }
            count += 1;
            all.iter_mut().zip(means).for_each(|(sum, mean)| *sum += mean);
            let own = proposal.as_ref().map(overhead).transpose()?;
            let why =
                |what: &str| format!("not in the paper; {what}, {seeds} seeds, weights of {floats} numbers");
            sheet.rows.push(
                Row::new(format!("{place}: the network, plan of one pass, overhead"), "%", None, own)
                    .because(why("missing where the pass does not fit or a fixed rule is faster")),
            );
            for (name, mean) in names(evaluations, few).into_iter().zip(means) {
                sheet.rows.push(
                    Row::new(format!("{place}: {name}, overhead"), "%", None, mean).because(why("mean")),
                );
            }
        }
    }
    for (name, sum) in names(evaluations, few).into_iter().zip(all) {
        let mean = (count > 0).then(|| sum / f64::from(count));
        sheet.rows.push(
            Row::new(format!("dqn and auto, all cases: {name}, mean overhead"), "%", None, mean).because(
                format!("not in the paper; networks held out of training, {count} cases, {seeds} seeds"),
            ),
        );
    }
    Ok(sheet)
}

fn names(evaluations: u64, few: u64) -> [String; 3] {
    [
        format!("auto, {evaluations} evaluations"),
        format!("auto, {few} evaluations"),
        format!("auto from the learned plan, {few} evaluations"),
    ]
}

/// A network on each machine at each limit, with that in percent of the peak.
fn cases(bench: &Bench<'_>, (network, batch): (&str, usize)) -> Result<Vec<(Task, Bytes, u64)>, Error> {
    let mut cases = Vec::new();
    for machine in MACHINES {
        let task = bench::task(network, &Options::new(batch).image(32), machine, 256, Freedom::ALL)?;
        let peak = bench::peak(&task, bench.observer)?.get();
        cases.extend(LIMITS.map(|percent| (task.clone(), Bytes(peak * percent / 100), percent)));
    }
    Ok(cases)
}

fn settings(text: &str) -> Result<Settings, Error> {
    text.parse().map_err(|error| Error::Fault(format!("{error}")))
}

/// What the planner says about a search.
struct Notes<'a> {
    outer: &'a dyn Observer,
    trained: Mutex<Option<Weights>>,
    origin: Mutex<String>,
}

impl<'a> Notes<'a> {
    fn of(bench: &Bench<'a>) -> Self {
        Self { outer: bench.observer, trained: Mutex::default(), origin: Mutex::default() }
    }

    fn trained(self) -> Result<Option<Weights>, Error> {
        self.trained.into_inner().map_err(|error| Error::Fault(error.to_string()))
    }

    /// Whether the network found the plan, and not a fixed rule.
    fn is_own(&self) -> bool {
        let own = |origin: &str| origin.starts_with("episode") || origin.starts_with("the network");
        self.origin.lock().is_ok_and(|origin| own(&origin))
    }
}

impl Observer for Notes<'_> {
    fn note(&self, note: &dyn Any) {
        if let (Some(Trained(weights)), Ok(mut trained)) = (note.downcast_ref(), self.trained.lock()) {
            *trained = Some(weights.clone());
        }
    }
    fn origin(&self, origin: &str) {
        if let Ok(mut known) = self.origin.lock() {
            origin.clone_into(&mut known);
        }
    }
    fn interrupted(&self) -> bool {
        self.outer.interrupted()
    }
}
