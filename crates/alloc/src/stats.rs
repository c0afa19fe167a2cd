//! What a sequence has done so far.

/// Counts of a sequence since it began; sums of several add up with [`add`](Stats::add).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests.
    pub requests: u64,
    /// Bytes requested.
    pub bytes: u64,
    /// Requests answered from a plan.
    pub planned: u64,
    /// Bytes requested and answered from a plan.
    pub planned_bytes: u64,
    /// Requests made while a plan was in use, and not answered from it because the request was not the expected one.
    pub mismatches: u64,
    /// Requests that had a slot whose bytes were still held by somebody: a block lived longer than before.
    pub late: u64,
    /// Requests made in a program's own interruption.
    pub interrupted: u64,
    /// Iterations completed in replay.
    pub iterations: u64,
    /// Plans made, those made again included.
    pub plans: u64,
    /// Plans made again because a request was larger or a block lived longer than before (Sekiyama 4.3).
    pub reoptimized: u64,
    /// Times that a plan was left because the program did something else.
    pub lost: u64,
    /// Bytes of arena of the latest plan.
    pub height: usize,
    /// Largest sum of requested bytes that the latest plan holds at one time.
    pub peak_load: usize,
}

impl Stats {
    /// Requests left to the fallback.
    pub const fn fallback(&self) -> u64 {
        self.requests - self.planned
    }

    /// Height ÷ peak load of the latest plan (Zhang, definition 3); 1 where there is no plan.
    pub fn competitive_ratio(&self) -> f64 {
        if self.peak_load == 0 { 1.0 } else { self.height as f64 / self.peak_load as f64 }
    }

    /// Share of requested bytes that were answered from a plan, from 0 to 1.
    pub fn planned_share(&self) -> f64 {
        if self.bytes == 0 { 0.0 } else { self.planned_bytes as f64 / self.bytes as f64 }
    }

    /// Adds another sequence's counts; heights and peak loads add up too, because sequences share no arena.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.planned += other.planned;
        self.planned_bytes = self.planned_bytes.saturating_add(other.planned_bytes);
        self.mismatches += other.mismatches;
        self.late += other.late;
        self.interrupted += other.interrupted;
        self.iterations += other.iterations;
        self.plans += other.plans;
        self.reoptimized += other.reoptimized;
        self.lost += other.lost;
        self.height += other.height;
        self.peak_load += other.peak_load;
    }
}
