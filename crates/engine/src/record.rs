//! Measurements of a running program, and the timeline and costs derived from them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use elbowroom_ir::planning::{CostSource, Costs};
use elbowroom_ir::schedule::{Action, Schedule, Stream};
use elbowroom_ir::timeline::{Span, Timeline, Traffic};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{ActionId, Bytes, Id, Nanos, OpId, Table, units};

use crate::program::{Program, TaskWork};

/// Start and end of every action of the last iteration, in nanoseconds from its origin, and the peak over all iterations.
#[derive(Debug)]
pub(crate) struct Recording {
    starts: Box<[AtomicU64]>,
    ends: Box<[AtomicU64]>,
    /// For each stream, the largest end of any range used, in bytes.
    peaks: [AtomicUsize; 3],
}

fn since(origin: Instant, now: Instant) -> u64 {
    Nanos::from(now.saturating_duration_since(origin)).get()
}

impl Recording {
    pub fn new(actions: usize) -> Self {
        let zeros = || (0..actions).map(|_| AtomicU64::new(0)).collect();
        Self { starts: zeros(), ends: zeros(), peaks: Default::default() }
    }

    /// Records that an action starts and uses ranges up to `end`.
    pub fn start(&self, action: ActionId, stream: Stream, end: usize, origin: Instant, start: Instant) {
        self.peaks[stream.index()].fetch_max(end, Relaxed);
        self.starts[action.index()].store(since(origin, start), Relaxed);
    }

    /// Records that an action is done.
    pub fn end(&self, action: ActionId, origin: Instant) {
        self.ends[action.index()].store(since(origin, Instant::now()), Relaxed);
    }

    /// When an action ended, counted from the iteration's origin.
    pub fn ended(&self, action: ActionId) -> Duration {
        Duration::from_nanos(self.ends[action.index()].load(Relaxed))
    }

    /// Records that a range up to `end` was used before the first iteration.
    pub fn touch(&self, end: usize) {
        self.peaks[Stream::ToDevice.index()].fetch_max(end, Relaxed);
    }

    pub fn measured_peak(&self) -> Bytes {
        Bytes(self.peaks.iter().map(|peak| peak.load(Relaxed)).max().unwrap_or(0) as u64)
    }

    fn span(&self, action: ActionId) -> (Nanos, Nanos) {
        let at = |moments: &[AtomicU64]| Nanos(moments[action.index()].load(Relaxed));
        (at(&self.starts), at(&self.ends))
    }

    /// Duration of the last iteration.
    pub fn iteration(&self, program: &Program) -> Nanos {
        let spans = || program.streams.iter().flatten().map(|task| self.span(task.action));
        let start = spans().map(|(start, _)| start).min().unwrap_or_default();
        spans().map(|(_, end)| end).max().unwrap_or_default() - start
    }

    /// The timeline of the last iteration. Times count from the start of its first action. A residency counts from the start of the action
    /// that reserves it to the end of its last access.
    pub fn timeline(&self, program: &Program, schedule: &Schedule) -> Timeline {
        let mut spans = Vec::new();
        for stream in Stream::ALL {
            for task in &program.streams[stream.index()] {
                let (start, end) = self.span(task.action);
                spans.push(Span { action: task.action, stream, start, end });
            }
        }
        let origin = spans.iter().map(|span| span.start).min().unwrap_or_default();
        for span in &mut spans {
            (span.start, span.end) = (span.start - origin, span.end - origin);
        }
        spans.sort_by_key(|span| span.action);
        let last = spans.iter().map(|span| span.end).max().unwrap_or_default();

        let mut traffic = Traffic::default();
        for task in program.streams.iter().flatten() {
            match task.work {
                TaskWork::Store { from, .. } => traffic.to_host += Bytes(from.len as u64),
                TaskWork::Load { to, .. } => traffic.to_device += Bytes(to.len as u64),
                TaskWork::Launch { .. } => {}
            }
        }
        let again = |span: &&Span| matches!(schedule.steps[span.action].action, Action::Recompute(_));
        let length = |span: &Span| span.end - span.start;
        let compute = || spans.iter().filter(|span| span.stream == Stream::Compute);
        let computed = compute().map(|span| span.end).max().unwrap_or_default();
        let (live, peak_live) = self.live(program, origin);
        Timeline {
            live,
            peak_live,
            iteration: last,
            compute_idle: computed.saturating_sub(compute().map(length).sum()),
            traffic,
            recomputed: compute().filter(again).count(),
            recompute_time: compute().filter(again).map(length).sum(),
            spans,
        }
    }

    fn live(&self, program: &Program, origin: Nanos) -> (Vec<(Nanos, Bytes)>, Bytes) {
        let mut changes: Vec<(Nanos, bool, Bytes)> = Vec::with_capacity(2 * program.residencies.len());
        for residency in &program.residencies {
            let start = residency.first.map_or(origin, |action| self.span(action).0);
            let ends = residency.accesses.iter().map(|&action| self.span(action).1);
            changes.push((start - origin, true, residency.bytes));
            if residency.ends {
                changes.push((ends.max().unwrap_or(start) - origin, false, residency.bytes));
            }
        }
        // At equal times releases come before reservations.
        changes.sort_unstable();
        // A residency that ends at the moment it starts is released before it is reserved; the sum at that moment is correct nevertheless.
        let (mut load, mut curve, mut peak): (i128, Vec<(Nanos, Bytes)>, i128) = (0, Vec::new(), 0);
        for (moment, reserves, bytes) in changes {
            let bytes = i128::from(bytes.get());
            load += if reserves { bytes } else { -bytes };
            peak = peak.max(load);
            let now = Bytes(load.max(0) as u64);
            match curve.last_mut() {
                Some(last) if last.0 == moment => last.1 = now,
                _ => curve.push((moment, now)),
            }
        }
        (curve, Bytes(peak as u64))
    }
}

/// Durations of ops over several iterations, from which costs are derived. Only the last few of each op are kept, so that memory use does
/// not grow with the training.
#[derive(Clone, Debug)]
pub struct MeasuredCosts {
    samples: Table<OpId, Samples>,
}

/// Durations of one op.
#[derive(Clone, Debug, Default)]
struct Samples {
    last: Vec<Nanos>,
    /// All durations recorded, including those no longer kept.
    count: usize,
}

impl Samples {
    /// Durations kept per op.
    const KEPT: usize = 15;

    fn add(&mut self, took: Nanos) {
        match self.last.get_mut(self.count % Self::KEPT) {
            Some(oldest) => *oldest = took,
            None => self.last.push(took),
        }
        self.count += 1;
    }
}

impl MeasuredCosts {
    /// No samples yet, for the ops of a trace.
    pub fn new(trace: &Trace) -> Self {
        Self { samples: Table::filled(trace.ops().len(), Samples::default()) }
    }

    /// Adds the durations of one planned iteration, including those of recomputed ops.
    pub fn add(&mut self, schedule: &Schedule, timeline: &Timeline) {
        for span in &timeline.spans {
            if let Some(launch) = schedule.steps[span.action].action.launch() {
                self.samples[launch.op].add(span.end - span.start);
            }
        }
    }

    /// Adds single runs of ops.
    pub fn add_runs(&mut self, runs: &[(OpId, Nanos)]) {
        runs.iter().for_each(|&(op, took)| self.samples[op].add(took));
    }

    /// The same durations, those of an op multiplied by a factor: for ops that are computed in another way from now on.
    pub fn scaled(&mut self, factor: impl Fn(OpId) -> f64) {
        for (op, samples) in self.samples.iter_mut() {
            let factor = factor(op);
            samples.last.iter_mut().for_each(|took| *took = Nanos((took.get() as f64 * factor) as u64));
        }
    }

    /// The median duration of every op (the lower one of two middle values); zero for an op that never ran.
    pub fn median(mut self) -> Costs {
        let median = |samples: &mut Samples| units::median(&mut samples.last).unwrap_or_default();
        let nanos = self.samples.iter_mut().map(|(_, samples)| median(samples)).collect();
        Costs { nanos, source: CostSource::Measured }
    }
}
