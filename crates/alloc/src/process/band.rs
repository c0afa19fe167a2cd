//! The band sequences: one per band and thread.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use elbowroom_ir::search::Budget;

use crate::directory::Directory;
use crate::memory::HostMemory;
use crate::pages::PageVec;
use crate::request::{RequestTime, Ticket};
use crate::sequence::{Sequence, Settings};
use crate::stats::Stats;

pub(super) type HostSequence = Sequence<HostMemory, &'static Directory>;

/// The requests of one band of one thread.
pub(super) struct BandSequence {
    pub before: *mut BandSequence,
    pub band: Band,
    /// Whether a running thread owns it.
    pub claimed: AtomicBool,
    /// The time of its sequence, read by threads that free its blocks.
    pub clock: AtomicU64,
    /// Whether its sequence records.
    pub recording: AtomicBool,
    /// Whether there are frees to process.
    pub has_frees: AtomicBool,
    /// Frees of its blocks that it has not processed yet. Guarded by the process's lock.
    pub freed: UnsafeCell<PageVec<(Ticket, RequestTime)>>,
    /// Accessed only by the owning thread.
    pub sequence: UnsafeCell<HostSequence>,
    /// A copy for other threads.
    pub stats: PublishedStats,
    /// The last published copy, accessed only by the owning thread.
    pub published: Cell<Stats>,
}

impl BandSequence {
    pub fn new(band: Band, directory: &'static Directory) -> Self {
        Self {
            before: std::ptr::null_mut(),
            band,
            claimed: AtomicBool::new(true),
            clock: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            has_frees: AtomicBool::new(false),
            freed: UnsafeCell::new(PageVec::new()),
            sequence: UnsafeCell::new(Sequence::new(HostMemory, directory, band.settings())),
            stats: PublishedStats::default(),
            published: Cell::new(Stats::default()),
        }
    }
}

/// Sizes whose requests form a sequence of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Band {
    /// Below [`LARGE`].
    Middle,
    Large,
}

pub(super) const BANDS: [Band; 2] = [Band::Middle, Band::Large];

/// Requests of at least this many bytes are large.
const LARGE: usize = 16 << 10;

impl Band {
    pub const fn of(size: usize) -> Self {
        if size < LARGE { Self::Middle } else { Self::Large }
    }

    /// Middle requests are many and small, so their history and planning time are shorter.
    fn settings(self) -> Settings {
        match self {
            Self::Large => Settings::default(),
            Self::Middle => {
                let time = Some(std::time::Duration::from_millis(20));
                Settings::default().budget(Budget { time, ..Budget::evaluations(16) }).history(1 << 15)
            }
        }
    }
}

/// Counters that one thread writes and others read at any time, without a lock, so that a signal handler and a fork handler may read them.
/// A reader may see a request in one counter and not yet in the next.
#[derive(Default)]
pub(super) struct PublishedStats([AtomicU64; FIELDS]);

const FIELDS: usize = 13;

impl PublishedStats {
    pub fn publish(&self, stats: &Stats) {
        let Stats {
            requests,
            bytes,
            planned,
            planned_bytes,
            mismatches,
            late,
            interrupted,
            iterations,
            plans,
            reoptimized,
            lost,
            arena_bytes,
            peak_live,
        } = *stats;
        let values = [
            requests,
            bytes,
            planned,
            planned_bytes,
            mismatches,
            late,
            interrupted,
            iterations,
            plans,
            reoptimized,
            lost,
            arena_bytes as u64,
            peak_live as u64,
        ];
        for (field, value) in self.0.iter().zip(values) {
            field.store(value, Ordering::Relaxed);
        }
    }

    pub fn read(&self) -> Stats {
        let [
            requests,
            bytes,
            planned,
            planned_bytes,
            mismatches,
            late,
            interrupted,
            iterations,
            plans,
            reoptimized,
            lost,
            arena_bytes,
            peak_live,
        ] = std::array::from_fn(|field| self.0[field].load(Ordering::Relaxed));
        Stats {
            requests,
            bytes,
            planned,
            planned_bytes,
            mismatches,
            late,
            interrupted,
            iterations,
            plans,
            reoptimized,
            lost,
            arena_bytes: arena_bytes as usize,
            peak_live: peak_live as usize,
        }
    }
}
