//! Marks and counters for programs that preload the library or link to it.

use elbowroom_alloc::{PROCESS, ProcessStats, Stats};

/// `struct elbowroom_stats` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CStats {
    requests: u64,
    bytes: u64,
    planned: u64,
    planned_bytes: u64,
    mismatches: u64,
    late: u64,
    iterations: u64,
    plans: u64,
    reoptimized: u64,
    lost: u64,
    height: u64,
    peak_live: u64,
    small: u64,
    small_bytes: u64,
    bad_frees: u64,
    lanes: u64,
    middle: u64,
    middle_bytes: u64,
    middle_planned: u64,
    middle_planned_bytes: u64,
}

impl CStats {
    pub fn new(stats: &Stats) -> Self {
        Self {
            requests: stats.requests,
            bytes: stats.bytes,
            planned: stats.planned,
            planned_bytes: stats.planned_bytes,
            mismatches: stats.mismatches,
            late: stats.late,
            iterations: stats.iterations,
            plans: stats.plans,
            reoptimized: stats.reoptimized,
            lost: stats.lost,
            height: stats.arena_bytes as u64,
            peak_live: stats.peak_live as u64,
            ..Self::default()
        }
    }
}

/// Counts of this process so far.
///
/// # Safety
/// A `struct elbowroom_stats` may be written to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_stats(out: *mut CStats) {
    let ProcessStats { large, middle, small, small_bytes, threads, bad_frees } = PROCESS.stats();
    let stats = CStats {
        small,
        small_bytes,
        bad_frees,
        lanes: threads as u64,
        middle: middle.requests,
        middle_bytes: middle.bytes,
        middle_planned: middle.planned,
        middle_planned_bytes: middle.planned_bytes,
        ..CStats::new(&large)
    };
    // SAFETY: the caller's promise.
    unsafe { *out = stats };
}

/// Marks the start of an iteration of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn elbowroom_mark_iteration() {
    PROCESS.mark_iteration();
}

/// Excludes this thread's following requests from the iteration until `elbowroom_resume`.
#[unsafe(no_mangle)]
pub extern "C" fn elbowroom_interrupt() {
    PROCESS.interrupt();
}

/// Ends an interruption.
#[unsafe(no_mangle)]
pub extern "C" fn elbowroom_resume() {
    PROCESS.resume();
}

/// Requests of fewer bytes go to the next allocator.
#[unsafe(no_mangle)]
pub extern "C" fn elbowroom_set_threshold(bytes: usize) {
    PROCESS.set_threshold(bytes);
}
