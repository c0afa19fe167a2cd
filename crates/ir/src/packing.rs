//! The placement problem: buffers with known lifetimes, to be laid into one arena.
//!
//! ```text
//! bytes ▲  ┌───────────┐
//!       │  │    b1     │   ┌────┐      a buffer is a bar: its width is its lifetime (positions of a
//!       │  └───────────┘   │ b2 │      schedule, half-open), its thickness its size; bars that share
//!       │  ┌──────┐ ┌──────┴────┤      a column must not share a row
//!       │  │  b0  │ │    b3     │
//!       └──┴──────┴─┴───────────┴──▶ position
//! ```
//!
//! *Live memory* (in this literature: load) is the sum of the sizes alive at a position, *peak memory* its maximum, *height* the arena size
//! that a placement needs: height ≥ peak memory always, and *fragmentation* is height ÷ peak memory − 1.

use serde::{Deserialize, Serialize};

use crate::search::{Budget, Observer, Outcome};
use crate::{BufferId, Bytes, Table};

/// A half-open range of positions, `start..end`: alive at `start`, no longer alive at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Interval {
    /// First position at which the buffer is alive.
    pub start: u64,
    /// First position at which it is no longer alive; greater than `start`.
    pub end: u64,
}

impl Interval {
    /// The interval `start..end`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }
    /// Whether the two have a position in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
    /// Number of positions covered.
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
    /// Whether no position is covered.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }
}

/// Bytes of a buffer that stay occupied at positions at which the rest of it is free.
///
/// ```text
/// bytes ▲ ┌────┐    ┌──┐     A buffer of 10 bytes, alive in 0..4 and 8..10, whose bytes 0..3 stay occupied in 4..8: other buffers
///    10 │ │    │    │  │     may use its bytes 3..10 meanwhile.
///     3 │ │    └────┘  │
///     0 └─┴────────────┴──▶ position
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Window {
    /// The positions, at none of which the block is alive as a whole.
    pub during: Interval,
    /// First occupied byte, counted from the start of the buffer.
    pub from: Bytes,
    /// First byte above that is free again; greater than `from` and at most the size of the buffer.
    pub to: Bytes,
}

/// One bar of the picture.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Block {
    /// Bytes occupied; may be zero.
    pub size: Bytes,
    /// When it is alive: disjoint, ascending, none empty. Most blocks have one interval. A residency that wraps around the end of the
    /// iteration has two: it is absent in between and returns to the same offset.
    pub alive: Vec<Interval>,
    /// Positions outside `alive` at which it occupies only some of its bytes, in ascending order, disjoint. Wherever two blocks with windows
    /// occupy bytes at the same positions, the same one of the two lies below (MiniMalloc's rule).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
    /// Its offset must be a multiple of this; at least 1.
    pub align: Bytes,
    /// An offset that is already fixed, or `None` to choose one.
    pub fixed: Option<Bytes>,
    /// An offset to try first, such as that of an earlier placement. Packers that search begin with the hints; it binds no packer, and it
    /// need not be a multiple of the alignment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<Bytes>,
}

impl Block {
    /// A block with one interval, no alignment and no fixed offset.
    pub fn new(start: u64, end: u64, size: Bytes) -> Self {
        Self {
            size,
            alive: vec![Interval::new(start, end)],
            windows: Vec::new(),
            align: Bytes(1),
            fixed: None,
            hint: None,
        }
    }

    /// What it occupies: the intervals in which it is alive with all of its bytes, then those of its windows, each with the first byte and
    /// the first free byte above, counted from the start of the buffer.
    pub fn parts(&self) -> impl Iterator<Item = (Interval, u64, u64)> {
        let whole = self.alive.iter().map(|&interval| (interval, 0, self.size.get()));
        whole.chain(self.windows.iter().map(|window| (window.during, window.from.get(), window.to.get())))
    }

    /// Whether the two are alive at the same position. Compares every pair of intervals in order; blocks have one or two.
    pub fn conflicts(&self, other: &Self) -> bool {
        self.parts().any(|(a, ..)| other.parts().any(|(b, ..)| a.overlaps(b)))
    }
}

/// Blocks to be placed. A block's id is that of the schedule's buffer that it stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The blocks to place.
    pub blocks: Table<BufferId, Block>,
    /// Limit on the height, in bytes; `None` asks for the lowest height.
    pub capacity: Option<Bytes>,
}

/// An offset for every block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// First byte of every block.
    pub offsets: Table<BufferId, Bytes>,
    /// Largest end of any block: the arena size, in bytes.
    pub height: Bytes,
}

impl Placement {
    /// Offsets, and the height that follows from them.
    pub fn new(problem: &Problem, offsets: Table<BufferId, Bytes>) -> Self {
        let ends = problem.blocks.values().zip(offsets.values()).map(|(block, &offset)| offset + block.size);
        let height = ends.max().unwrap_or(Bytes::ZERO);
        Self { offsets, height }
    }
}

/// Why a [`Problem`] is not well formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// An interval ends before it starts, or intervals overlap or descend.
    #[error("{block}: interval {start}..{end} is empty, or starts before the one before it has ended")]
    Interval {
        /// The block.
        block: BufferId,
        /// Start of the interval.
        start: u64,
        /// End of the interval.
        end: u64,
    },
    /// A window is empty, exceeds the buffer or overlaps another interval or window, or the windows descend.
    #[error(
        "{block}: window {from}:{to} in {start}..{end} is empty, exceeds the buffer, or overlaps another interval"
    )]
    Window {
        /// The block.
        block: BufferId,
        /// Start of the window's interval.
        start: u64,
        /// End of the window's interval.
        end: u64,
        /// First occupied byte.
        from: u64,
        /// First free byte above.
        to: u64,
    },
    /// No interval at all.
    #[error("{0} is never alive; give it an interval or leave it out")]
    NeverAlive(BufferId),
    /// Alignment of zero.
    #[error("{0} has alignment 0; the smallest is 1")]
    ZeroAlignment(BufferId),
    /// A fixed offset that is not a multiple of the alignment.
    #[error("{block} is fixed at offset {offset}, which is not a multiple of its alignment {align}")]
    FixedMisaligned {
        /// The block.
        block: BufferId,
        /// Its offset, in bytes.
        offset: u64,
        /// Its alignment, in bytes.
        align: u64,
    },
    /// Sizes, rounded up to alignments, add up to 2^63 or more.
    #[error("the sizes add up to 2^63 bytes or more; no arena is that large")]
    TooLarge,
}

impl Problem {
    /// Checks the assumptions of all packers, in time linear in the number of intervals.
    ///
    /// # Errors
    /// The first assumption that is violated.
    pub fn validate(&self) -> Result<(), ProblemError> {
        let mut total: u64 = 0;
        for (id, block) in self.blocks.iter() {
            if block.alive.is_empty() && block.windows.is_empty() {
                return Err(ProblemError::NeverAlive(id));
            }
            let mut last_end = 0;
            for interval in &block.alive {
                if interval.is_empty() || interval.start < last_end {
                    return Err(ProblemError::Interval {
                        block: id,
                        start: interval.start,
                        end: interval.end,
                    });
                }
                last_end = interval.end;
            }
            check_windows(id, block)?;
            if block.align.is_zero() {
                return Err(ProblemError::ZeroAlignment(id));
            }
            if let Some(offset) = block.fixed
                && offset.get() % block.align.get() != 0
            {
                return Err(ProblemError::FixedMisaligned {
                    block: id,
                    offset: offset.get(),
                    align: block.align.get(),
                });
            }
            total = [block.size, block.align, block.fixed.unwrap_or_default()]
                .into_iter()
                .try_fold(total, |sum, part| sum.checked_add(part.get()))
                .filter(|&sum| sum < 1 << 63)
                .ok_or(ProblemError::TooLarge)?;
        }
        Ok(())
    }

    /// Peak memory over all positions, in bytes, by one sweep over sorted interval ends. At equal positions ends come before starts.
    pub fn peak_live(&self) -> Bytes {
        let mut events: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * self.blocks.len());
        for block in self.blocks.values() {
            for (interval, from, to) in block.parts() {
                events.push((interval.start, true, to - from));
                events.push((interval.end, false, to - from));
            }
        }
        events.sort_unstable();
        let (mut load, mut peak) = (0u64, 0u64);
        for (_, starts, size) in events {
            if starts {
                load += size;
                peak = peak.max(load);
            } else {
                load -= size;
            }
        }
        Bytes(peak)
    }
}

/// Checks the windows of one block.
fn check_windows(id: BufferId, block: &Block) -> Result<(), ProblemError> {
    let mut last_end = 0;
    for &Window { during, from, to } in &block.windows {
        let meets = block.alive.iter().any(|interval| interval.overlaps(during));
        if during.is_empty() || during.start < last_end || meets || from >= to || to > block.size {
            return Err(ProblemError::Window {
                block: id,
                start: during.start,
                end: during.end,
                from: from.get(),
                to: to.get(),
            });
        }
        last_end = during.end;
    }
    Ok(())
}

/// An algorithm that places blocks.
pub trait Packer: Sync {
    /// The name by which users select it.
    fn name(&self) -> &'static str;

    /// Places a problem that [`Problem::validate`] accepts. The result respects lifetimes, alignments and fixed offsets, and the capacity
    /// if there is one; otherwise the outcome states why there is no result. Deterministic for a problem, a seed and a number of
    /// evaluations.
    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement>;
}
