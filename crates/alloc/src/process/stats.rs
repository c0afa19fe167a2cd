//! The counters of a process.

use std::sync::atomic::Ordering;

use super::Process;
use super::band::Band;
use super::thread::THREAD;
use crate::stats::Stats;

impl Process {
    /// Counters of all sequences together. Exact for this thread; for others up to the request that they recorded last, or, for a sequence
    /// in replay, except for the current iteration and at most 64 requests before it. Requests of a thread in which nothing repeats are
    /// counted late: after a million of them, or when the thread ends.
    pub fn stats(&'static self) -> ProcessStats {
        self.busy(|| {
            THREAD.with(|thread| {
                for owner in &thread.sequences {
                    // SAFETY: sequences are never freed.
                    if let Some(owner) = unsafe { owner.get().as_ref() } {
                        // SAFETY: the owner is this thread's, and the thread is busy.
                        let sequence = unsafe { &mut *owner.sequence.get() };
                        self.end_pause(thread, owner, sequence);
                        self.publish(owner, sequence);
                    }
                }
            });
        });
        let mut sum = ProcessStats {
            small: self.small.load(Ordering::Relaxed) + THREAD.with(|thread| thread.small.get()),
            small_bytes: self.small_bytes.load(Ordering::Relaxed)
                + THREAD.with(|thread| thread.small_bytes.get()),
            bad_frees: self.bad_frees.load(Ordering::Relaxed),
            ..ProcessStats::default()
        };
        self.for_each_sequence(|owner| {
            let stats = owner.stats.read();
            match owner.band {
                Band::Middle => sum.middle.add(&stats),
                Band::Large => {
                    sum.large.add(&stats);
                    sum.threads += 1;
                }
            }
        });
        sum
    }
}

/// Counters of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStats {
    /// Requests of at least 16 KiB.
    pub large: Stats,
    /// Requests of less, down to the threshold.
    pub middle: Stats,
    /// Requests below the threshold, exact to a thousand per thread.
    pub small: u64,
    /// Their bytes.
    pub small_bytes: u64,
    /// The largest number of threads that made large requests at the same time.
    pub threads: usize,
    /// Planned addresses that were freed although no block began there.
    pub bad_frees: u64,
}

impl ProcessStats {
    /// Share of all requested bytes, including small requests, that plans served.
    pub fn planned_share(&self) -> f64 {
        let all = self.large.bytes.saturating_add(self.middle.bytes).saturating_add(self.small_bytes);
        let planned = self.large.planned_bytes.saturating_add(self.middle.planned_bytes);
        if all == 0 { 0.0 } else { planned as f64 / all as f64 }
    }
}
