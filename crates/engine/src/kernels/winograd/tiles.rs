//! Tiles of images: the parts that they make, and where their matrices lie.

use std::ops::Range;

use super::super::parallel::Shared;
use super::super::tile::MAX_COLUMNS;

/// Elements of a patch.
pub const PATCH_ELEMENTS: usize = 16;
/// Channels of a panel, as many as a tile of the matrix product has columns at most; also the most tiles that are transformed together.
pub const PANEL: usize = MAX_COLUMNS;
/// Tiles of a part. A sum over all tiles is one over parts, in order, of one chain each.
pub const PART: usize = 2 * PANEL;
/// Floats between the matrices of two elements, more than they need: the same position of all sixteen is written at the same time, and would
/// otherwise fall into the same cache set.
const APART: usize = 48;

/// One matrix for each patch element, of `len` floats.
#[derive(Clone, Copy)]
pub struct Matrices {
    start: Shared<f32>,
    step: usize,
}

impl Matrices {
    /// Floats that matrices of `len` floats take.
    pub const fn floats(len: usize) -> usize {
        PATCH_ELEMENTS * (len + APART)
    }

    /// Matrices that begin here.
    pub const fn new(start: Shared<f32>, len: usize) -> Self {
        Self { start, step: len + APART }
    }

    /// A place in the matrix of an element.
    ///
    /// # Safety
    /// There is such a place.
    #[inline(always)]
    pub unsafe fn at(self, element: usize, place: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(element * self.step + place) }
    }
}

/// The tiles of all images, line after line.
#[derive(Clone, Copy)]
pub struct Tiling {
    /// Lines of tiles in an image, and tiles on a line.
    tiles: [usize; 2],
    /// Tiles of all images.
    count: usize,
}

impl Tiling {
    /// A tiling of results at these positions.
    pub fn new(batch: usize, positions: [usize; 2]) -> Self {
        let tiles = positions.map(|len| len.div_ceil(2));
        Self { tiles, count: batch * tiles[0] * tiles[1] }
    }

    /// Number of parts.
    pub const fn parts(&self) -> usize {
        self.count.div_ceil(PART)
    }

    /// The tiles of a part: [`PART`], of the last one maybe fewer.
    pub fn part(&self, part: usize) -> Range<usize> {
        part * PART..self.count.min((part + 1) * PART)
    }

    /// The tiles of a part, `len` at a time, and how many of the part are before them.
    pub fn panels(&self, part: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let all = self.part(part);
        let first = all.start;
        pieces(all, len).map(move |tiles| (tiles.start - first, tiles))
    }

    /// Calls `visit` for a panel of tiles of a part and every `step`-th of some channels: with the runs of the tiles, how many tiles of the part are
    /// before them, and the channel.
    pub fn visit(
        self,
        part: usize,
        (channels, step): (Range<usize>, usize),
        mut visit: impl FnMut((&[TileRun], usize), usize),
    ) {
        for (first, tiles) in self.panels(part, PANEL) {
            let runs = self.runs(tiles);
            channels.clone().step_by(step).for_each(|channel| visit((&runs, first), channel));
        }
    }

    /// The runs of some tiles, at most those of a panel.
    pub fn runs(self, tiles: Range<usize>) -> Runs {
        let [down, across] = self.tiles;
        let mut runs = Runs { found: [TileRun::default(); PANEL], count: 0 };
        let mut next = tiles.start;
        while next < tiles.end {
            let (line, first) = (next / across, next % across);
            let count = (across - first).min(tiles.end - next);
            let at = next - tiles.start;
            runs.found[runs.count] = TileRun { image: line / down, line: line % down, first, count, at };
            runs.count += 1;
            next += count;
        }
        runs
    }
}

/// Tiles side by side on one line, among some tiles.
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
    /// The number of the first one among these tiles.
    pub at: usize,
}

/// The runs of some tiles.
pub struct Runs {
    found: [TileRun; PANEL],
    count: usize,
}

impl std::ops::Deref for Runs {
    type Target = [TileRun];

    fn deref(&self) -> &[TileRun] {
        &self.found[..self.count]
    }
}

/// Some of a range at a time.
pub fn pieces(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |start| start..range.end.min(start + len))
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
