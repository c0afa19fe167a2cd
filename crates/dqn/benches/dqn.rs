//! What the planner `dqn` learns, and where it stands: three tables.
//!
//! - `cargo bench -p elbowroom-dqn --bench dqn -- learning A.trace 60% B.trace 25%`: for five seeds, compares the first tenth of the episodes
//!   with the last, and the trained network with random play and `auto`; then shows the episodes by tenths.
//! - `... -- transfer SMALL.trace LARGE.trace 30%`: for each seed, the episodes that a network trained on the small trace needs on the large
//!   one to reach what training from nothing reaches.
//! - `... -- figure A.trace B.trace`: Figure 5 of Shicheng, offloading and recomputing, then offloading alone.
//!
//! `--seeds N` (5), `--plays N` (20 episodes without learning), `--evaluations N` of `auto` (2,000), `--dqn KEY=VALUE,...`, `--fine KEY=VALUE,...`
//! for the second training of `transfer`, `--planners A,B` for `figure`. The traces are those of `elbowroom trace`; limits are shares of the
//! live memory when everything stays. One thread; nothing depends on the clock but the seconds that are printed.

use std::any::Any;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use elbowroom_dqn::network::Weights;
use elbowroom_dqn::play::{Player, play};
use elbowroom_dqn::settings::Settings;
use elbowroom_dqn::{Dqn, Episode, Trained};
use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Freedom, Planner, Request};
use elbowroom_ir::search::{Budget, Observer, Silent};
use elbowroom_ir::text::{File, TraceFile};
use elbowroom_sched::lower::least_live;
use elbowroom_sched::planner;
use elbowroom_sched::policy::Policy;
use elbowroom_sim::simulate;

/// The arguments.
struct Arguments {
    /// Everything that is no option: the table, traces, limits.
    words: Vec<String>,
    seeds: u64,
    plays: u32,
    evaluations: u64,
    dqn: Settings,
    fine: Settings,
    planners: Vec<String>,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut read = Self {
            words: Vec::new(),
            seeds: 5,
            plays: 20,
            evaluations: 2_000,
            dqn: Settings::DEFAULT,
            fine: "explore=0.1".parse().map_err(|error| format!("{error}"))?,
            planners: ["sublinear", "supernn", "tflms", "dqn", "auto"].map(str::to_owned).to_vec(),
        };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            let Some(option) = argument.strip_prefix("--") else {
                read.words.push(argument);
                continue;
            };
            let value = arguments.next().ok_or_else(|| format!("--{option} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("--{option} needs a number"));
            match option {
                "seeds" => read.seeds = number()?,
                "plays" => read.plays = number()? as u32,
                "evaluations" => read.evaluations = number()?,
                "dqn" => read.dqn = value.parse().map_err(|e| format!("{e}"))?,
                "fine" => read.fine = value.parse().map_err(|e| format!("{e}"))?,
                "planners" => read.planners = value.split(',').map(str::to_owned).collect(),
                _ => return Err(format!("there is no option --{option}")),
            }
        }
        Ok(read)
    }
}

/// A trace with what planning it takes.
struct Case {
    name: String,
    file: TraceFile,
    peak: u64,
}

impl Case {
    fn read(path: &str) -> Result<Self, String> {
        let said = |error: &dyn std::fmt::Display| format!("{path}: {error}");
        let text = std::fs::read_to_string(path).map_err(|e| said(&e))?;
        let file = text.parse::<File>().and_then(File::into_trace).map_err(|e| said(&e))?;
        let name = Path::new(path).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
        let mut case = Self { name, file, peak: u64::MAX };
        let request = case.request(1.0, Freedom::ALL).ok_or_else(|| said(&"no machine, or no costs"))?;
        case.peak = least_live(&request, &Policy::prompt(&case.file.trace)).map_err(|e| said(&e))?.0.get();
        Ok(case)
    }

    fn request(&self, share: f64, freedom: Freedom) -> Option<Request<'_>> {
        let TraceFile { trace, costs, machine, .. } = &self.file;
        let live_limit = Bytes((self.peak as f64 * share) as u64);
        Some(Request {
            trace,
            costs: costs.as_ref()?,
            machine: machine.as_ref()?,
            live_limit,
            freedom,
            packer: None,
            pins: None,
        })
    }

    fn request_at(&self, share: f64) -> Request<'_> {
        self.request(share, Freedom::ALL).expect("was there when the case was read")
    }

    /// Percent above an iteration without a limit.
    fn overhead(&self, nanos: f64) -> f64 {
        let total = self.file.costs.as_ref().map_or(1, |costs| costs.total().get());
        100.0 * (nanos / total as f64 - 1.0)
    }

    fn mean(&self, episodes: &[Episode]) -> f64 {
        let sum: f64 = episodes.iter().map(|episode| episode.cost as f64).sum();
        self.overhead(sum / episodes.len().max(1) as f64)
    }

    /// The overhead of a planner's plan, if it found one.
    fn plan(&self, request: &Request<'_>, planner: &dyn Planner, budget: &Budget) -> Option<f64> {
        let schedule = planner.schedule(request, budget, &Silent).best?;
        let timeline = simulate(request.trace, request.costs, request.machine, &schedule)
            .expect("schedules of planners can be simulated");
        assert!(timeline.peak_live <= request.live_limit);
        Some(self.overhead(timeline.iteration.get() as f64))
    }
}

#[derive(Default)]
struct Notes(Mutex<(Vec<Episode>, Option<Weights>)>);

impl Observer for Notes {
    fn note(&self, note: &dyn Any) {
        let mut notes = self.0.lock().expect("no thread panics while holding it");
        if let Some(episode) = note.downcast_ref::<Episode>() {
            notes.0.push(*episode);
        } else if let Some(Trained(weights)) = note.downcast_ref::<Trained>() {
            notes.1 = Some(weights.clone());
        }
    }
}

/// Trains, and returns the episodes with the network.
fn train(
    request: &Request<'_>,
    settings: &Settings,
    initial: Option<Weights>,
    seed: u64,
) -> (Vec<Episode>, Weights) {
    let mut settings = settings.clone();
    settings.through = true;
    let (dqn, notes) = (Dqn::new(settings, initial), Notes::default());
    dqn.schedule(request, &Budget { evaluations: None, time: None, seed, threads: 1 }, &notes);
    let (episodes, trained) = notes.0.into_inner().expect("no thread panics while holding it");
    (episodes, trained.expect("there are decisions to learn about"))
}

fn share(word: &str) -> Result<f64, String> {
    let percent = word.strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok());
    percent.map(|percent| percent / 100.0).ok_or_else(|| format!("{word} is no limit like 60%"))
}

fn learning(arguments: &Arguments) -> Result<(), String> {
    let mut courses = Vec::new();
    println!(
        "| network | seed | first tenth | last tenth | less by | network alone | chance, mean | chance, best | best episode | `auto` | s |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for pair in arguments.words[1..].as_chunks::<2>().0 {
        let (case, share) = (Case::read(&pair[0])?, share(&pair[1])?);
        let request = case.request_at(share);
        let auto = planner("auto").expect("is a planner");
        let auto = case.plan(&request, auto, &Budget::evaluations(arguments.evaluations));
        for seed in 0..arguments.seeds {
            let started = Instant::now();
            let (episodes, network) = train(&request, &arguments.dqn, None, seed);
            let seconds = started.elapsed().as_secs_f64();
            let tenth = (episodes.len() / 10).max(1);
            let (first, last) =
                (case.mean(&episodes[..tenth]), case.mean(&episodes[episodes.len() - tenth..]));
            let played = |player, seed| {
                play(&request, &arguments.dqn, player, arguments.plays, seed).map_err(|e| e.to_string())
            };
            let (alone, chance) =
                (played(Player::Network(&network), seed)?, played(Player::Chance, 1_000 + seed)?);
            let least = chance.iter().map(|episode| episode.cost).min().unwrap_or(0);
            let best = episodes.iter().rev().find_map(|episode| episode.best);
            println!(
                "| {} at {} | {seed} | {first:.1} | {last:.1} | {:.0} % | {:.1} | {:.1} | {:.1} | {} | {} | {seconds:.0} |",
                case.name,
                pair[1],
                100.0 * (1.0 - last / first),
                case.mean(&alone),
                case.mean(&chance),
                case.overhead(least as f64),
                shown(best.map(|best| case.overhead(best as f64))),
                shown(auto),
            );
            let tenths = episodes.chunks(tenth).map(|part| format!("{:.1}", case.mean(part)));
            courses.push((format!("{} at {}, {seed}", case.name, pair[1]), tenths.collect::<Vec<_>>()));
        }
    }
    println!("\nMean overhead of the episodes in percent, by tenths:\n");
    courses.iter().for_each(|(name, tenths)| println!("| {name} | {} |", tenths.join(" | ")));
    Ok(())
}

fn transfer(arguments: &Arguments) -> Result<(), String> {
    let [_, small, large, limit] = arguments.words.as_slice() else {
        return Err("transfer SMALL.trace LARGE.trace LIMIT".to_owned());
    };
    let (small, large, share) = (Case::read(small)?, Case::read(large)?, share(limit)?);
    println!(
        "| seed | from nothing: best of {} episodes | network alone | fine-tuned: reaches that best after | fraction | best of {} | network alone | untuned |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |",
        arguments.dqn.episodes, arguments.fine.episodes
    );
    for seed in 0..arguments.seeds {
        let request = large.request_at(share);
        let alone = |network: &Weights| {
            let played = play(&request, &arguments.dqn, Player::Network(network), 1, 0);
            played.map(|played| large.mean(&played)).map_err(|e| e.to_string())
        };
        // The rules' plans would be the best of both; here the episodes are compared.
        let own = |settings: &Settings| {
            let mut own = settings.clone();
            own.imitate = false;
            own
        };
        let (_, before) = train(&small.request_at(share), &own(&arguments.dqn), None, seed);
        let (scratch, after) = train(&request, &own(&arguments.dqn), None, seed);
        let untuned = alone(&before)?;
        let (tuned, network) = train(&request, &own(&arguments.fine), Some(before), seed);
        let best = |episodes: &[Episode]| episodes.last().and_then(|episode| episode.best);
        let wanted = best(&scratch);
        let reached = tuned.iter().find(|e| e.best.is_some_and(|best| wanted.is_none_or(|w| best <= w)));
        let reached = reached.map(|episode| episode.number);
        let whole = scratch.len() as f64;
        println!(
            "| {seed} | {} | {:.1} | {} | {} | {} | {:.1} | {untuned:.1} |",
            shown(wanted.map(|best| large.overhead(best as f64))),
            alone(&after)?,
            reached.map_or_else(|| "never".to_owned(), |number| number.to_string()),
            reached.map_or_else(|| "–".to_owned(), |number| format!("{:.3}", f64::from(number) / whole)),
            shown(best(&tuned).map(|best| large.overhead(best as f64))),
            alone(&network)?,
        );
    }
    Ok(())
}

fn figure(arguments: &Arguments) -> Result<(), String> {
    let offload = Freedom { recompute: false, ..Freedom::ALL };
    for (title, freedom) in [("Offload and recompute", Freedom::ALL), ("Offload alone", offload)] {
        println!("\n{title}; overhead in percent, – where no plan was found\n");
        println!(
            "| network | limit | {} |\n| --- | --- |{}",
            arguments.planners.join(" | "),
            " --- |".repeat(arguments.planners.len())
        );
        for path in &arguments.words[1..] {
            let case = Case::read(path)?;
            for share in [0.7, 0.5, 0.3] {
                let mut row = format!("| {} | {:.0} % |", case.name, 100.0 * share);
                for name in &arguments.planners {
                    let request = case.request(share, freedom).expect("was there when the case was read");
                    let own = Dqn::new(arguments.dqn.clone(), None);
                    let known = planner(name).ok_or_else(|| format!("there is no planner {name}"))?;
                    let (planner, evaluations): (&dyn Planner, u64) = match name.as_str() {
                        "dqn" => (&own, u64::MAX),
                        _ => (known, arguments.evaluations),
                    };
                    let found = case.plan(&request, planner, &Budget::evaluations(evaluations));
                    row += &format!(" {} |", shown(found));
                }
                println!("{row}");
            }
        }
    }
    Ok(())
}

fn shown(overhead: Option<f64>) -> String {
    overhead.map_or_else(|| "–".to_owned(), |overhead| format!("{overhead:.1}"))
}

fn main() {
    let usage = || "usage: learning, transfer or figure, and traces that `elbowroom trace` wrote".to_owned();
    let done = Arguments::read().and_then(|arguments| match arguments.words.first().map(String::as_str) {
        Some("learning") if arguments.words.len() > 2 => learning(&arguments),
        Some("transfer") => transfer(&arguments),
        Some("figure") if arguments.words.len() > 1 => figure(&arguments),
        // `cargo bench` starts every benchmark: without traces there is nothing to do.
        _ => Err(usage()),
    });
    if let Err(error) = done {
        println!("{error}");
    }
}
