//! Progress of long work, on standard error. Only this file knows how it is drawn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use elbowroom::ir::Nanos;
use elbowroom::ir::search::Observer;
use elbowroom::train::TrainObserver;
use indicatif::{ProgressBar, ProgressStyle};

/// Set by Ctrl-C: searches stop at the next evaluation, training at the next iteration, and both keep what they have.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes the first Ctrl-C end long work cleanly. The second one ends the process.
pub fn heed_ctrl_c() {
    // Fails only if another handler is set, which is then as good.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
}

/// Whether Ctrl-C was pressed.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// A line that says what is going on, and ends without a trace. Nothing is drawn where standard error is no terminal.
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Starts a line.
    pub fn new(message: impl Into<String>) -> Self {
        let bar = ProgressBar::new_spinner().with_message(message.into());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Says something else.
    pub fn say(&self, message: impl Into<String>) {
        self.0.set_message(message.into());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Observer for Spinner {
    fn improved(&self, cost: u64, bound: u64) {
        self.0.set_message(format!("best so far {cost}, bound {bound}"));
    }
    fn progress(&self, evaluations: u64) {
        self.0.set_prefix(evaluations.to_string());
    }
    fn interrupted(&self) -> bool {
        interrupted()
    }
}

/// A line for each stage of training and a bar over its iterations.
pub struct TrainProgress(ProgressBar);

impl TrainProgress {
    /// Starts the line.
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }
}

impl Drop for TrainProgress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Observer for TrainProgress {
    fn interrupted(&self) -> bool {
        interrupted()
    }
}

impl TrainObserver for TrainProgress {
    fn stage(&self, what: &str) {
        self.0.set_style(ProgressStyle::default_spinner());
        self.0.set_message(what.to_owned());
    }

    fn begin(&self, iterations: u64) {
        // The template is a constant that parses; the default bar would do as well.
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} [{elapsed} < {eta}]");
        self.0.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.0.set_length(iterations);
        self.0.set_position(0);
    }

    fn iteration(&self, number: u64, loss: f32, time: Nanos) {
        self.0.set_message(format!("iteration {number}: loss {loss:.4}, {time}"));
        self.0.inc(1);
    }
}
