//! Progress of long work, on standard error. Only this file draws.

use std::any::Any;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use elbowroom::checkpoint::CheckpointError;
use elbowroom::export::{self, Course};
use elbowroom::graph::Graph;
use elbowroom::ir::Nanos;
use elbowroom::ir::search::{Budget, Goal, Observer};
use elbowroom::ir::timeline::Timeline;
use elbowroom::largest::TriedBatch;
use elbowroom::report::{Evaluation, PlanReport};
use elbowroom::run::LastIteration;
use elbowroom::train::{Executed, Iteration, TrainObserver};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::learning::{self, Learned};
use crate::log::Log;
use crate::printer::{self, counted, row};
use crate::watch::Watch;
use crate::{networks, say, signals};

/// What is known of the search that goes on.
#[derive(Default)]
struct Search {
    /// What it is for, who searches, since when and how long.
    goal: Option<(String, Nanos, Budget, Instant)>,
    /// Cost of the best so far, and the bound below which nothing can be.
    best: Option<(u64, u64)>,
    evaluations: u64,
    /// What the planner has reported of its training, if it learns.
    learned: Learned,
    /// The planner that found the result, if it is reported.
    origin: Option<String>,
}

impl Search {
    /// One line: how good the best so far is, how good it could become, and what is left to look.
    fn line(&self, now: Instant) -> String {
        let Some((what, unlimited, budget, since)) = &self.goal else {
            let best = self.best.map(|(cost, bound)| format!("best so far {cost}, bound {bound}"));
            return best.unwrap_or_default();
        };
        let overhead = |time: u64| printer::percent(PlanReport::overhead(Nanos(time), *unlimited));
        let mut line = what.clone();
        if let Some((cost, bound)) = self.best {
            line += &format!(": {} (bound {})", overhead(cost), overhead(bound));
        }
        line += &self.learned.line();
        match (budget.evaluations, budget.time) {
            (Some(all), _) => line += &format!(", {} evaluations left", all.saturating_sub(self.evaluations)),
            (None, Some(time)) => {
                let left = time.saturating_sub(now - *since).as_secs_f64();
                line += &format!(", {left:.0} s left, {} evaluations", self.evaluations);
            }
            (None, None) => line += &format!(", {} evaluations", self.evaluations),
        }
        line
    }
}

/// A bar without a length: what is going on, then how the search goes on.
fn line(stage: String) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_style(line_style()).with_prefix(stage);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn line_style() -> ProgressStyle {
    // The template is a constant that parses; the default would do as well.
    ProgressStyle::with_template("{spinner} {prefix}  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// A line that names the current stage and shows the current search; in training also a bar over the iterations. It ends
/// without a trace. Nothing is drawn where standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
    search: Mutex<Search>,
    /// Whether the network and the iterations of a training are printed on standard output.
    prints: bool,
    /// Runs of a training that have begun. The second one repeats the first without a limit.
    runs: AtomicUsize,
    /// Why the results could not be printed.
    unprinted: Mutex<Option<io::Error>>,
    /// The last checkpoint that was written, with the number of iterations before it.
    saved: Mutex<Option<(PathBuf, u64)>>,
    /// The file to which iterations and evaluations are appended.
    log: Option<Log>,
    /// The last planned iteration of a training as trace events, if that is kept.
    timeline: Mutex<Option<String>>,
    keeps_timeline: bool,
    /// The same for a report, if that is kept.
    last: Mutex<Option<LastIteration>>,
    /// The page that shows the training while it runs.
    watch: Option<Watch>,
    keeps_last: bool,
    /// Whether a planner's warning was printed.
    warned: AtomicBool,
}

impl Progress {
    /// Starts a line.
    pub fn new(stage: impl Into<String>) -> Self {
        Self {
            bar: line(stage.into()),
            search: Mutex::default(),
            prints: false,
            runs: AtomicUsize::new(0),
            unprinted: Mutex::default(),
            saved: Mutex::default(),
            log: None,
            timeline: Mutex::default(),
            keeps_timeline: false,
            last: Mutex::default(),
            watch: None,
            keeps_last: false,
            warned: AtomicBool::new(false),
        }
    }

    /// Starts a line for a training, whose network and iterations are printed on standard output as they come if `prints`.
    pub fn of_training(prints: bool) -> Self {
        let mut progress = Self::new("");
        progress.prints = prints;
        progress
    }

    /// Appends every iteration and every evaluation to a file.
    pub fn log_to(&mut self, path: &Path) -> anyhow::Result<()> {
        self.log = Some(Log::open(path)?);
        Ok(())
    }

    /// Keeps the last planned iteration, for [`timeline`](Self::timeline).
    pub fn keep_timeline(&mut self) {
        self.keeps_timeline = true;
    }

    /// The last planned iteration, predicted and measured, as trace events.
    pub fn timeline(&self) -> Option<String> {
        lock(&self.timeline).take()
    }

    /// Keeps the last planned iteration, for [`last`](Self::last).
    pub fn keep_last(&mut self) {
        self.keeps_last = true;
    }

    /// Shows the training on a page.
    pub fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// The page, during the first run.
    fn watched(&self) -> Option<&Watch> {
        self.watch.as_ref().filter(|_| self.runs.load(Ordering::Relaxed) <= 1)
    }

    /// The last planned iteration.
    pub fn last(&self) -> Option<LastIteration> {
        lock(&self.last).take()
    }

    /// Appends a line to the log of the first run. A log that cannot be written ends the work as Ctrl-C does.
    fn log(&self, line: &serde_json::Value) {
        let Some(log) = self.log.as_ref().filter(|_| self.runs.load(Ordering::Relaxed) == 1) else { return };
        if let Err(error) = log.append(line) {
            lock(&self.unprinted).get_or_insert(error);
            signals::interrupt();
        }
    }

    /// Prints a part of the results. A reader that closed the pipe ends the work as Ctrl-C does.
    fn print(&self, print: impl FnOnce() -> io::Result<()>) {
        if self.prints
            && let Err(error) = self.above(print)
        {
            lock(&self.unprinted).get_or_insert(error);
            signals::interrupt();
        }
    }

    /// Why a part of the results could not be printed.
    pub fn unprinted(&self) -> Option<io::Error> {
        lock(&self.unprinted).take()
    }

    /// The last checkpoint that was written, with the number of iterations before it.
    pub fn last_saved(&self) -> Option<(PathBuf, u64)> {
        lock(&self.saved).clone()
    }

    /// Shows the name of a stage.
    pub fn stage_begins(&self, stage: impl Into<String>) {
        self.bar.set_prefix(stage.into());
        self.bar.set_message("");
    }

    /// Prints something on standard output while the line is out of the way.
    pub fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Removes the line, before something else is printed.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// What the planner of the last search has reported of its training.
    pub fn learned(&self) -> Learned {
        self.search().learned.clone()
    }

    /// Who found the result of the last search, if its planner has said so.
    pub fn origin(&self) -> Option<String> {
        self.search().origin.clone()
    }

    fn search(&self) -> MutexGuard<'_, Search> {
        lock(&self.search)
    }

    /// Changes the state and draws the line again.
    fn hear(&self, news: impl FnOnce(&mut Search)) {
        let mut search = self.search();
        news(&mut search);
        self.bar.set_message(search.line(Instant::now()));
    }
}

/// A thread that panicked while holding a lock can at worst leave something that is out of date.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn begins(&self, goal: &Goal<'_>) {
        let what = format!("{} at {}", goal.planner, goal.limit);
        let goal = Some((what, goal.unlimited, goal.budget.clone(), Instant::now()));
        self.hear(|search| {
            let mut learned = std::mem::take(&mut search.learned);
            learned.restart();
            *search = Search { goal, learned, ..Search::default() };
        });
    }
    fn improved(&self, cost: u64, bound: u64) {
        // A planner that starts from what others found may at first have nothing as good of its own.
        self.hear(|search| {
            let before = search.best.filter(|&(best, _)| best <= cost);
            search.best = before.or(Some((cost, bound)));
        });
    }
    fn progress(&self, evaluations: u64) {
        self.hear(|search| search.evaluations = evaluations);
    }
    fn note(&self, note: &dyn Any) {
        if let Some(TriedBatch(samples)) = note.downcast_ref() {
            self.stage_begins(format!("trying a batch of {}", counted(*samples as u64, "sample")));
            return;
        }
        // A search of rounds would repeat the sentence for each of its limits.
        if let Some(sentence) = learning::warning(note)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            self.remark(&sentence);
        }
        self.hear(|search| search.learned.note(note));
    }
    fn origin(&self, origin: &str) {
        self.hear(|search| search.origin = Some(origin.to_owned()));
    }
    fn interrupted(&self) -> bool {
        signals::interrupted()
    }
}

impl TrainObserver for Progress {
    fn stage(&self, what: &str) {
        self.bar.set_style(line_style());
        self.stage_begins(what);
        if let Some(watch) = &self.watch {
            watch.stage(what);
        }
    }

    fn network(&self, graph: &Graph) {
        if let Some(watch) = &self.watch {
            watch.network(&graph.name);
        }
        self.print(|| {
            printer::line(&graph.name)?;
            printer::section("Network", &networks::description(graph))
        });
    }

    fn remark(&self, sentence: &str) {
        self.above(|| {
            let _ = writeln!(io::stderr(), "warning: {sentence}");
        });
    }

    fn begin(&self, iterations: u64) {
        if self.runs.fetch_add(1, Ordering::Relaxed) == 0 {
            self.print(|| printer::section("Iterations", &[]));
        }
        if let Some(watch) = self.watched() {
            watch.begin(iterations);
        }
        // The template is a constant that parses; the default bar would do as well.
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{elapsed} < {eta}]");
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_length(iterations);
        self.bar.set_position(0);
    }

    fn iteration(&self, done: &Iteration) {
        let &Iteration { number, loss, time, peak, limit, planned, .. } = done;
        if let Some(watch) = self.watched() {
            watch.iteration(done);
        }
        self.log(&json!({
            "iteration": number, "loss": loss, "iteration_ns": time.get(), "planned": planned,
            "measured_peak_bytes": peak.get(),
        }));
        if self.runs.load(Ordering::Relaxed) == 1 {
            let how = if planned { "planned" } else { "dynamic" };
            let loss = loss.map_or_else(|| "no loss".to_owned(), |loss| format!("loss {loss:.6}"));
            let note = format!("{time}, {how}");
            self.print(|| printer::item(&row(&format!("iteration {number}"), loss, note)));
        }
        let loss = loss.map_or_else(String::new, |loss| format!("loss {loss:.4}, "));
        let memory = gauge(peak.get(), limit.get());
        self.bar.set_message(format!("iteration {number}: {loss}{time}, memory {memory} {peak} of {limit}"));
        self.bar.inc(1);
    }

    fn measured(&self, timeline: &Timeline) {
        if let Some(watch) = self.watched() {
            watch.measured(timeline);
        }
    }

    fn evaluation_begins(&self, batches: u64) {
        self.bar.set_message(format!("evaluating on {}", counted(batches, "batch")));
    }

    fn evaluated(&self, evaluation: &Evaluation) {
        if self.runs.load(Ordering::Relaxed) == 1 {
            self.print(|| printer::item(&printer::evaluation(evaluation)));
            if let Some(watch) = &self.watch {
                watch.evaluated(evaluation);
            }
            let &Evaluation { iterations, samples, loss, accuracy, .. } = evaluation;
            self.log(&json!({
                "eval_iterations": iterations, "eval_samples": samples, "eval_loss": loss, "eval_accuracy": accuracy,
                "eval_perplexity": evaluation.perplexity(),
            }));
        }
    }

    fn executed(&self, last: &Executed<'_>) {
        if self.keeps_last {
            *lock(&self.last) = Some(LastIteration::of(last));
        }
        if self.keeps_timeline {
            let course = |name, timeline| Course { name, timeline };
            let courses = [course("predicted", last.predicted), course("measured", last.measured)];
            *lock(&self.timeline) = Some(export::trace_events(last.plan, &courses));
        }
    }

    fn saved(&self, path: &Path, iterations_done: u64) {
        *lock(&self.saved) = Some((path.to_owned(), iterations_done));
    }

    fn save_failed(&self, error: &CheckpointError, retry: Option<u64>) {
        // The answer of the command quotes the last failure.
        if let Some(retry) = retry {
            self.above(|| {
                say(&format!(
                    "{error}; training continues and saves again after {}",
                    counted(retry, "iteration")
                ));
            });
        }
    }
}

/// How full something is, in ten steps: full only if it is.
fn gauge(used: u64, of: u64) -> String {
    const STEPS: u64 = 10;
    let filled =
        (u128::from(used) * u128::from(STEPS) / u128::from(of.max(1))).min(u128::from(STEPS)) as usize;
    format!("{}{}", "█".repeat(filled), "░".repeat(STEPS as usize - filled))
}

#[cfg(test)]
mod tests {
    use elbowroom::ir::{Bytes, Nanos};

    use super::*;

    #[test]
    fn a_gauge_is_full_only_at_the_limit() {
        assert_eq!(gauge(0, 10), "░░░░░░░░░░");
        assert_eq!(gauge(999, 1000), "█████████░");
        assert_eq!(gauge(1000, 1000), "██████████");
        assert_eq!(gauge(u64::MAX, 1).chars().count(), 10);
        assert_eq!(gauge(0, 0), "░░░░░░░░░░");
    }

    #[test]
    fn the_line_says_how_good_it_is_how_good_it_can_become_and_what_is_left() {
        let mut progress = Progress::new("");
        progress.bar = ProgressBar::hidden();
        let budget = Budget::time(Duration::from_secs(10));
        let goal = Goal { planner: "auto", limit: Bytes(1 << 20), unlimited: Nanos(1_000), budget: &budget };
        progress.begins(&goal);
        progress.progress(40);
        progress.improved(1_250, 1_100);
        let search = progress.search();
        let since = search.goal.as_ref().unwrap().3;
        let line = search.line(since + Duration::from_secs(4));
        assert_eq!(line, "auto at 1.00 MiB: +25.0 % (bound +10.0 %), 6 s left, 40 evaluations");
        drop(search);

        // Another search begins from nothing.
        let budget = Budget::evaluations(100);
        progress.begins(&Goal { budget: &budget, ..goal });
        progress.progress(40);
        assert_eq!(progress.bar.message(), "auto at 1.00 MiB, 60 evaluations left");
    }
}
