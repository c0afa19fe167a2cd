//! The planner on real networks: its plans are legal and never slower than those of the fixed rules, it learns, a seed gives the same plan on
//! any number of threads, and a network trained on one trace can be trained further on another.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use elbowroom_dqn::network::Weights;
use elbowroom_dqn::play::{Player, play};
use elbowroom_dqn::settings::Settings;
use elbowroom_dqn::{Dqn, Episode, OutOfReach, Trained};
use elbowroom_graph::zoo::{self, Options};
use elbowroom_ir::Bytes;
use elbowroom_ir::check::check_schedule;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom_ir::trace::Trace;
use elbowroom_sched::policy::Policy;
use elbowroom_sched::{lower, planner};
use elbowroom_sim::cost::Roofline;
use elbowroom_sim::{presets, simulate};

/// A network on a GTX 1080 Ti.
struct Case {
    trace: Arc<Trace>,
    costs: Costs,
    machine: Machine,
    peak: Bytes,
}

impl Case {
    fn new(name: &str, batch: usize) -> Self {
        let machine = presets::machine("gtx1080ti").unwrap();
        let options = Options::new(batch).image(32);
        let trace = zoo::build(name, &options).unwrap().trace(&|_, _| Bytes::ZERO).unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let mut case = Self { trace: Arc::new(trace), costs, machine, peak: Bytes(1 << 50) };
        case.peak = lower(&case.request(1.0, Freedom::ALL), &Policy::prompt(&case.trace)).unwrap().peak;
        case
    }

    fn request(&self, share: f64, freedom: Freedom) -> Request<'_> {
        let live_limit = Bytes((self.peak.get() as f64 * share) as u64);
        let Self { trace, costs, machine, .. } = self;
        Request { trace, costs, machine, live_limit, freedom, packer: None, pins: None }
    }

    fn time(&self, schedule: &Schedule) -> u64 {
        simulate(&self.trace, &self.costs, &self.machine, schedule).unwrap().iteration.get()
    }
}

#[derive(Default)]
struct Notes {
    episodes: Mutex<Vec<Episode>>,
    trained: Mutex<Option<Weights>>,
    origin: Mutex<Option<String>>,
}

impl Notes {
    fn episodes(&self) -> Vec<Episode> {
        self.episodes.lock().unwrap().clone()
    }

    fn trained(&self) -> Option<Weights> {
        self.trained.lock().unwrap().clone()
    }
}

impl Observer for Notes {
    fn note(&self, note: &dyn Any) {
        if let Some(episode) = note.downcast_ref::<Episode>() {
            self.episodes.lock().unwrap().push(*episode);
        } else if let Some(Trained(weights)) = note.downcast_ref::<Trained>() {
            *self.trained.lock().unwrap() = Some(weights.clone());
        }
    }
    fn origin(&self, origin: &str) {
        *self.origin.lock().unwrap() = Some(origin.to_owned());
    }
}

fn budget(seed: u64, threads: usize) -> Budget {
    Budget { evaluations: None, time: None, seed, threads }
}

fn settings(text: &str) -> Settings {
    text.parse().unwrap()
}

#[test]
fn plans_are_legal_and_never_worse_than_the_rules() {
    let case = Case::new("resnet18", 128);
    let only = |offload, recompute| Freedom { offload, recompute, ..Freedom::ALL };
    for (share, freedom) in [(0.4, Freedom::ALL), (0.3, only(true, false)), (0.6, only(false, true))] {
        let request = case.request(share, freedom);
        let (dqn, notes) = (Dqn::new(settings("episodes=6"), None), Notes::default());
        let outcome = dqn.schedule(&request, &budget(0, 1), &notes);
        let schedule = outcome.best.unwrap_or_else(|| panic!("{share} {freedom:?}: {:?}", outcome.stop));
        let time = case.time(&schedule);
        assert!(notes.origin.lock().unwrap().is_some());
        let actions = schedule.steps.values().map(|step| &step.action);
        let (mut copies, mut again) = (0, 0);
        actions.for_each(|action| match action {
            Action::Offload { .. } | Action::Prefetch { .. } => copies += 1,
            Action::Recompute(_) => again += 1,
            _ => {}
        });
        assert!(freedom.offload || copies == 0);
        assert!(freedom.recompute || again == 0);
        check_schedule(case.trace.clone(), case.machine.clone(), schedule, request.live_limit).unwrap();
        for rule in
            ["keep", "greedy", "vdnn", "tflms", "autoswap", "drop-cheap", "sublinear", "supernn", "mixed"]
        {
            let other = planner(rule).unwrap().schedule(&request, &budget(0, 1), &Silent).best;
            assert!(other.is_none_or(|other| time <= case.time(&other)), "{rule} is faster at {share}");
        }
    }
}

#[test]
fn the_papers_text_trains_and_its_plans_are_legal() {
    let case = Case::new("vgg11", 64);
    let request = case.request(0.6, Freedom::ALL);
    let train = |threads| {
        let (dqn, notes) = (Dqn::new(settings("paper=true,episodes=4,through=1"), None), Notes::default());
        let outcome = dqn.schedule(&request, &budget(3, threads), &notes);
        (outcome, notes.episodes(), notes.trained())
    };
    let (outcome, episodes, trained) = train(1);
    assert_eq!(episodes.len(), 4);
    assert!(episodes.iter().any(|episode| episode.fits));
    let schedule = outcome.best.unwrap();
    let time = case.time(&schedule);
    assert!(time <= episodes.last().unwrap().best.unwrap());
    check_schedule(case.trace.clone(), case.machine.clone(), schedule, request.live_limit).unwrap();
    let (again, same, weights) = train(2);
    assert!(same == episodes && weights == trained && case.time(&again.best.unwrap()) == time);
}

#[test]
fn learning_shortens_what_chance_would_decide() {
    let case = Case::new("vgg11", 128);
    let request = case.request(0.6, Freedom::ALL);
    let total = case.costs.total().get();
    let (dqn, notes) = (Dqn::new(settings("episodes=70"), None), Notes::default());
    let outcome = dqn.schedule(&request, &budget(0, 2), &notes);
    let episodes = notes.episodes();
    let overhead = |some: &[Episode]| {
        some.iter().map(|e| e.cost as f64 / total as f64 - 1.0).sum::<f64>() / some.len() as f64
    };
    assert_eq!(episodes.len(), 70, "{:?}", outcome.stop);
    let (first, last) = (overhead(&episodes[..10]), overhead(&episodes[60..]));
    assert!(last < 0.8 * first, "{first} at first, {last} at last");
    let best = episodes.iter().filter(|e| e.fits).map(|e| e.cost).min().unwrap();
    assert!(case.time(&outcome.best.unwrap()) <= best);

    // Compares the trained network, without exploration and without learning, with random play.
    let network = notes.trained().unwrap();
    let played = |player, seed| play(&request, &settings(""), player, 20, seed).unwrap();
    let (alone, chance) = (played(Player::Network(&network), 0), played(Player::Chance, 100));
    assert!(alone.iter().all(|episode| episode.cost == alone[0].cost && episode.fits));
    assert!(overhead(&alone) < 0.8 * overhead(&chance), "{} {}", overhead(&alone), overhead(&chance));
}

#[test]
fn the_ways_of_fixed_rules_are_played_first_and_remembered() {
    // One episode of chance alone: what is known is what the rules showed.
    let case = Case::new("resnet18", 128);
    let request = case.request(0.4, Freedom::ALL);
    let only = settings("episodes=1,updates=0,check=0,through=1");
    let notes = Notes::default();
    Dqn::new(only.clone(), None).schedule(&request, &budget(0, 1), &notes);
    let with = notes.episodes()[0].best.expect("rules find plans at this limit");
    let notes = Notes::default();
    let mut without = only;
    without.imitate = false;
    Dqn::new(without, None).schedule(&request, &budget(0, 1), &notes);
    let without = notes.episodes()[0].best;
    assert!(without.is_none_or(|without| with < without), "{with} {without:?}");
}

#[test]
fn training_goes_through_where_nothing_is_to_be_gained() {
    // At this limit a rule costs no time.
    let case = Case::new("resnet18", 128);
    let request = case.request(0.8, Freedom::ALL);
    let learn = |text| {
        let (dqn, notes) = (Dqn::new(settings(text), None), Notes::default());
        let outcome = dqn.schedule(&request, &budget(0, 1), &notes);
        let episodes = notes.episodes().len();
        (case.time(&outcome.best.unwrap()), episodes, notes.trained().is_some())
    };
    let total = case.costs.total().get();
    assert_eq!(learn("episodes=3,updates=1"), (total, 0, false));
    assert_eq!(learn("episodes=3,updates=1,through=1"), (total, 3, true));
}

#[test]
fn a_seed_gives_the_same_plan_on_any_number_of_threads() {
    let case = Case::new("vgg11", 128);
    let request = case.request(0.6, Freedom::ALL);
    let plan = |seed, threads| {
        let (dqn, notes) = (Dqn::new(settings("episodes=5,updates=3"), None), Notes::default());
        let Outcome { best, evaluations, .. } = dqn.schedule(&request, &budget(seed, threads), &notes);
        (best, evaluations, notes.episodes(), notes.trained())
    };
    let one = plan(3, 1);
    assert!(one == plan(3, 1) && one == plan(3, 3));
    assert!(one.2 != plan(4, 1).2);
}

#[test]
fn a_network_goes_from_one_trace_to_another() {
    let (small, large) = (Case::new("vgg11", 128), Case::new("resnet18", 64));
    let first = Dqn::new(settings("episodes=3,hidden=8"), None);
    let notes = Notes::default();
    first.schedule(&small.request(0.6, Freedom::ALL), &budget(0, 1), &notes);
    let trained = notes.trained().expect("a limit that no rule meets for nothing");
    let file = trained.to_safetensors().unwrap();
    let read = Weights::from_safetensors(&file).unwrap();
    assert_eq!(read, trained);
    let second = Dqn::new(settings("episodes=3,rate=0,explore=0,through=1"), Some(read));
    let notes = Notes::default();
    assert!(second.schedule(&large.request(0.4, Freedom::ALL), &budget(0, 1), &notes).best.is_some());
    // Without a step size nothing is learned: the network is the one that came.
    assert_eq!(notes.trained(), Some(trained));
}

#[test]
fn evaluations_and_impossible_limits_end_it() {
    let case = Case::new("vgg11", 128);
    let dqn = Dqn::new(settings("episodes=1000"), None);
    let few = Budget { evaluations: Some(40), ..budget(0, 1) };
    let outcome = dqn.schedule(&case.request(0.6, Freedom::ALL), &few, &Silent);
    assert_eq!(outcome.stop, StopReason::Evaluations);
    // The number that repeats the search is that of its own evaluations, without those of the fixed rules.
    assert_eq!(outcome.evaluations, 40);
    let outcome = dqn.schedule(&case.request(0.01, Freedom::ALL), &few, &Silent);
    assert!(matches!(outcome.stop, StopReason::Infeasible(_)) && outcome.best.is_none());
    let outcome = dqn.schedule(&case.request(1.0, Freedom::ALL), &few, &Silent);
    assert_eq!(outcome.stop, StopReason::Optimal);
}

/// Counts the steps of all searches: each asks whether it is interrupted.
#[derive(Default)]
struct Steps {
    steps: AtomicU64,
    /// The first note that says so, and the steps before it.
    out_of_reach: OnceLock<(OutOfReach, u64)>,
    episodes: AtomicU64,
    origin: OnceLock<String>,
}

impl Observer for Steps {
    fn note(&self, note: &dyn Any) {
        if let Some(reason) = note.downcast_ref::<OutOfReach>() {
            self.out_of_reach.set((*reason, self.steps.load(Ordering::Relaxed))).unwrap();
        } else if note.is::<Episode>() {
            self.episodes.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn origin(&self, origin: &str) {
        self.origin.set(origin.to_owned()).unwrap();
    }
    fn interrupted(&self) -> bool {
        self.steps.fetch_add(1, Ordering::Relaxed);
        false
    }
}

#[test]
fn decisions_that_cannot_reach_the_limit_are_reported_before_any_search() {
    for (name, share, all_reach) in [("lstm", 0.2, false), ("vgg11", 0.8, true)] {
        let case = Case::new(name, 8);
        let request = case.request(share, Freedom::ALL);
        let schedule = |text: &str| {
            let observer = Steps::default();
            let outcome = Dqn::new(settings(text), None).schedule(&request, &budget(0, 1), &observer);
            (outcome, observer)
        };
        let (outcome, observer) = schedule("decisions=4,episodes=2");
        let (reason, before) = *observer.out_of_reach.get().unwrap();
        assert_eq!((reason.limit, reason.decisions, before), (request.live_limit, 4, 0));
        assert!(reason.missing > reason.missing_of_all && reason.candidates > 4);
        assert_eq!(reason.missing_of_all == Bytes::ZERO, all_reach);
        assert!(outcome.best.is_some() && outcome.evaluations == 0);
        assert!(observer.steps.into_inner() > 0 && observer.episodes.into_inner() == 0);
        assert!(observer.origin.get().unwrap().contains(&reason.to_string()));
        // The number of candidates that the sentence names.
        let all = reason.candidates;
        let (_, observer) = schedule(&format!("decisions={all},episodes=2,imitate=0,through=1"));
        let reason = observer.out_of_reach.get();
        assert_eq!(reason.map(|(reason, _)| reason.decisions), (!all_reach).then_some(all));
        assert_eq!(observer.episodes.into_inner(), if all_reach { 2 } else { 0 });
    }
}
