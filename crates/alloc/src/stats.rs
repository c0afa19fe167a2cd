//! Counters of a sequence.

/// Counters of a sequence since it was created. [`add`](Stats::add) sums the counters of several sequences.
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
    /// Requests during the use of a plan that differed from the expected request and went to the fallback.
    pub mismatches: u64,
    /// Expected requests that went to the fallback because a block that lived longer than before still occupied the slot.
    pub late: u64,
    /// Requests between `interrupt` and `resume`.
    pub interrupted: u64,
    /// Iterations replayed to their end.
    pub iterations: u64,
    /// Plans made, including repeated planning of the same iteration.
    pub plans: u64,
    /// Iterations planned again because a request was larger or a block lived longer than before (Sekiyama 4.3).
    pub reoptimized: u64,
    /// Plans abandoned because the program's requests changed.
    pub lost: u64,
    /// Arena size of the latest plan, in bytes.
    pub arena_bytes: usize,
    /// Peak memory of the latest plan: the maximum of the requested bytes alive at one time.
    pub peak_live: usize,
}

impl Stats {
    /// Requests served by the fallback.
    pub const fn fallback(&self) -> u64 {
        self.requests - self.planned
    }

    /// Arena size ÷ peak memory of the latest plan (Zhang, definition 3); 1 without a plan.
    pub fn competitive_ratio(&self) -> f64 {
        if self.peak_live == 0 { 1.0 } else { self.arena_bytes as f64 / self.peak_live as f64 }
    }

    /// Share of the requested bytes that a plan served, from 0 to 1.
    pub fn planned_share(&self) -> f64 {
        if self.bytes == 0 { 0.0 } else { self.planned_bytes as f64 / self.bytes as f64 }
    }

    /// Adds another sequence's counters. Arena sizes and peaks are summed as well, because sequences share no arena.
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
        self.arena_bytes += other.arena_bytes;
        self.peak_live += other.peak_live;
    }
}
