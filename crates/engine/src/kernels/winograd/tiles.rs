//! Tiles of images: how many are processed together, in which segments they are transformed, and where their matrices lie.

use std::ops::Range;

use super::super::parallel::Shared;
use super::super::product::Extents;

/// Elements of a patch.
pub const PATCH_ELEMENTS: usize = 16;
/// Tiles that are transformed together, whole vectors of them, even where lines are short.
pub const SEGMENT: usize = 48;
/// Upper bound of the floats of patches and products together, so that they stay in the third-level cache.
const TOGETHER: usize = 1 << 21;
/// Lower bound of the tiles processed together: with fewer, packing the weights takes as long as multiplying by them.
const FEWEST: usize = 256;
/// Floats of a line of a cache.
const LINE: usize = 16;

/// One matrix for each patch element, of `rows` rows of `width` floats.
#[derive(Clone, Copy)]
pub struct TransformedTiles {
    start: Shared<f32>,
    rows: usize,
    width: usize,
}

impl TransformedTiles {
    /// Floats that the matrices take.
    pub const fn len(rows: usize, width: usize) -> usize {
        PATCH_ELEMENTS * Self::step(rows, width)
    }

    /// The distance between matrices: a few cache lines more than their size, because the same position of all matrices is written at the
    /// same time, and would otherwise fall into the same cache set.
    const fn step(rows: usize, width: usize) -> usize {
        rows * width + 3 * LINE
    }

    /// Matrices in this memory.
    pub fn new(memory: &mut [f32], rows: usize, width: usize) -> Self {
        assert!(memory.len() >= Self::len(rows, width), "scratch as large as declared");
        Self { start: Shared::new(memory.as_mut_ptr()), rows, width }
    }

    /// Where a row begins.
    ///
    /// # Safety
    /// There are such a matrix and row.
    #[inline(always)]
    pub unsafe fn row(self, element: usize, row: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(element * Self::step(self.rows, self.width) + row * self.width) }
    }

    /// A whole matrix.
    ///
    /// # Safety
    /// There is such a matrix, and nothing writes it meanwhile.
    pub unsafe fn matrix<'a>(self, element: usize) -> &'a [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.start.view(element * Self::step(self.rows, self.width), self.rows * self.width) }
    }

    /// Floats of a row.
    pub fn width(self) -> usize {
        self.width
    }
}

/// Tiles of all images, and how many lines of them are taken together.
#[derive(Clone, Copy)]
pub struct Tiling {
    /// Lines of tiles in an image, and tiles on a line.
    pub tiles: [usize; 2],
    /// Lines of tiles of all images.
    pub lines: usize,
    /// Lines taken together.
    pub together: usize,
}

impl Tiling {
    /// A tiling of results at these positions, with `channels` channels on both sides together.
    pub fn new(batch: usize, positions: [usize; 2], channels: usize) -> Self {
        let tiles = positions.map(|len| len.div_ceil(2));
        let lines = batch * tiles[0];
        let wanted = (TOGETHER / (PATCH_ELEMENTS * channels.max(1))).max(FEWEST);
        let together = (wanted / tiles[1].max(1)).clamp(1, lines.max(1));
        // Equal parts.
        let together = lines.div_ceil(lines.div_ceil(together).max(1)).max(1);
        Self { tiles, lines, together }
    }

    /// The distance between rows of a matrix: an odd number of cache lines, so that rows fall into different cache sets.
    pub fn width(&self) -> usize {
        ((self.together * self.tiles[1]).div_ceil(LINE) | 1) * LINE
    }

    /// Scratch for the product of one patch element over any of the parts.
    pub fn scratch(&self, element: impl Fn(usize) -> Extents) -> usize {
        // The last part may be smaller, and its product be cut otherwise.
        let last = (self.lines + self.together - 1) % self.together + 1;
        let needed = [self.together, last].map(|lines| element(lines * self.tiles[1]).scratch_alone());
        needed[0].max(needed[1])
    }

    /// Lines that are taken together, one part after the other.
    pub fn parts(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.lines)
            .step_by(self.together)
            .map(move |start| start..(start + self.together).min(self.lines))
    }
}

/// Tiles side by side on one line, in a segment.
#[derive(Clone, Copy, Default)]
pub struct TileRun {
    /// The image.
    pub image: usize,
    /// The line of tiles in its image.
    pub line: usize,
    /// The first tile on the line.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Where the first one is in the segment.
    pub slot: usize,
    /// The number of the first one among the tiles of all lines walked.
    pub at: usize,
}

/// Iterates over lines of tiles by segments, each of which consists of a few runs.
pub struct SegmentWalk {
    tiling: Tiling,
    /// Slots left empty behind a run: patches overlap, so that one more pair of columns belongs to its last one.
    gap: usize,
    next: TileRun,
    lines_left: usize,
}

impl SegmentWalk {
    /// Starts at the first of some lines.
    pub fn new(tiling: Tiling, lines: &Range<usize>, gap: usize) -> Self {
        let (image, line) = (lines.start / tiling.tiles[0], lines.start % tiling.tiles[0]);
        Self { tiling, gap, next: TileRun { image, line, ..TileRun::default() }, lines_left: lines.len() }
    }

    /// The runs of the next segment, or none at the end.
    pub fn segment<'r>(&mut self, runs: &'r mut [TileRun; SEGMENT]) -> Option<&'r [TileRun]> {
        let [down, across] = self.tiling.tiles;
        let (mut slot, mut found) = (0, 0);
        while slot < SEGMENT && self.lines_left > 0 {
            let count = (across - self.next.first).min(SEGMENT - slot);
            runs[found] = TileRun { count, slot, ..self.next };
            found += 1;
            slot += count + self.gap;
            self.next.at += count;
            self.next.first += count;
            if self.next.first == across {
                self.lines_left -= 1;
                self.next.first = 0;
                self.next.line += 1;
                if self.next.line == down {
                    (self.next.line, self.next.image) = (0, self.next.image + 1);
                }
            }
        }
        (found > 0).then(|| &runs[..found])
    }
}

/// Copies a few floats, in pieces of lengths that the compiler knows, because a call would take longer than the copy.
///
/// # Safety
/// `count` floats can be read and written.
#[inline(always)]
pub unsafe fn copy_few(mut from: *const f32, mut to: *mut f32, mut count: usize) {
    macro_rules! pieces {
        ($($len:literal)*) => {$(
            while count >= $len {
                // SAFETY: the caller's promise; arrays are aligned as their elements are.
                unsafe {
                    to.cast::<[f32; $len]>().write(from.cast::<[f32; $len]>().read());
                    (from, to) = (from.add($len), to.add($len));
                }
                count -= $len;
            }
        )*};
    }
    pieces!(16 4 1);
}
