//! Saving during a run: when a checkpoint is due, and what happens if it cannot be written.

use std::io;
use std::sync::Arc;

use elbowroom_engine::Session;

use super::TrainObserver;
use super::settings::Saving;
use crate::checkpoint::{self, CheckpointError, Entry, Header, UnusedRows};
use crate::report::Saved;

/// After a failed save, the next one follows after the interval divided by this.
const RETRIES: u64 = 10;

/// Saves the checkpoints of one run. A file that cannot be written ends no training: the next attempt follows soon.
pub(super) struct Saver<'a> {
    saving: &'a Saving,
    header: Header,
    /// The persistent tensors, and behind them the unused rows.
    entries: Vec<Entry>,
    unused: Arc<[UnusedRows]>,
    observer: &'a dyn TrainObserver,
    /// Number of the first iteration of the run.
    first: u64,
    /// Iterations of the run that have ended.
    done: u64,
    /// Iterations of the run after which the next checkpoint follows.
    due: u64,
    /// Iterations of the run, if nothing ends it early.
    iterations: u64,
    saved: Saved,
}

impl<'a> Saver<'a> {
    /// Before the first iteration. The header is that of the state at that time.
    pub(super) fn new(
        saving: &'a Saving,
        header: Header,
        entries: &[Entry],
        unused: Arc<[UnusedRows]>,
        iterations: u64,
        observer: &'a dyn TrainObserver,
    ) -> Self {
        let entries = entries.iter().chain(unused.iter().map(|rows| &rows.entry)).cloned().collect();
        let (first, due, saved) = (header.iterations_done, saving.every, Saved::default());
        Self { saving, header, entries, unused, observer, first, done: 0, due, iterations, saved }
    }

    /// What was saved.
    pub(super) fn saved(self) -> Saved {
        self.saved
    }

    /// After an iteration of the run: saves if a checkpoint is due or if it was the last iteration.
    ///
    /// # Errors
    ///
    /// What is not finite in the state. A file that cannot be written is no error: the observer receives it.
    pub(super) fn iteration_ended(&mut self, session: &Session, done: u64, last: bool) -> Result<(), String> {
        self.done = done;
        if last || done >= self.due { self.save(session, last) } else { Ok(()) }
    }

    /// Saves what no checkpoint of this run contains, because no further iteration follows.
    ///
    /// # Errors
    ///
    /// As for [`iteration_ended`](Self::iteration_ended).
    pub(super) fn save_unsaved(&mut self, session: &Session) -> Result<(), String> {
        let saved = self.saved.saved_iterations == Some(self.first + self.done);
        if saved { Ok(()) } else { self.save(session, true) }
    }

    fn save(&mut self, session: &Session, last: bool) -> Result<(), String> {
        self.header.iterations_done = self.first + self.done;
        let persistent = self.entries.len() - self.unused.len();
        let read = |index: usize, value: &mut [u8]| match index.checked_sub(persistent) {
            Some(unused) => self.unused[unused].read(value),
            None => session.read_persistent(index, value).map_err(io::Error::other),
        };
        let every = self.saving.every;
        let regular = self.done.saturating_add(every - self.done % every);
        match checkpoint::save(&self.saving.path, &self.header, &self.entries, read) {
            Ok(()) => {
                self.due = regular;
                self.saved.saved_iterations = Some(self.header.iterations_done);
                self.saved.save_error = None;
                self.observer.saved(&self.saving.path, self.header.iterations_done);
            }
            Err(CheckpointError::Diverged { name, value, .. }) => {
                return Err(format!(
                    "{name} contains {value} after iteration {}",
                    self.header.iterations_done - 1
                ));
            }
            Err(error) => {
                let soon = self.done.saturating_add((every / RETRIES).max(1));
                self.due = regular.min(soon).min(self.iterations);
                self.saved.failed_saves += 1;
                self.saved.save_error = Some(error.to_string());
                self.observer.save_failed(&error, (!last).then_some(self.first + self.due));
            }
        }
        Ok(())
    }
}
