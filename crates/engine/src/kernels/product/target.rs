//! Where the result of a product lies, and what it is added to.

#[cfg(target_arch = "x86_64")]
use crate::kernels::isa::Isa;
use crate::kernels::parallel::Shared;
use crate::kernels::tile::{MAX_COLUMNS, Merge};

/// The initial value to which the product is added.
#[derive(Clone, Copy)]
pub enum Initial<'a> {
    /// Zero: C is written without being read.
    Zero,
    /// What C holds.
    Keep,
    /// What C holds: the sums of a product of less depth, of whose first part this one is the rest.
    Continue,
    /// One number per row of C.
    Rows(&'a [f32]),
    /// One number per column of C.
    Columns(&'a [f32]),
}

impl Initial<'_> {
    /// The same for the part of C that begins with a row and a column.
    fn from(self, row: usize, column: usize) -> Self {
        match self {
            Self::Rows(bias) => Self::Rows(&bias[row..]),
            Self::Columns(bias) => Self::Columns(&bias[column..]),
            whole => whole,
        }
    }
}

/// Where C lies. Consecutive rows are `row_step` apart; a column is a triple (image, y, x) in row-major order over `size`.
#[derive(Clone, Copy)]
pub struct Target {
    /// The element (0, 0).
    pub start: Shared<f32>,
    /// Distance between rows.
    pub row_step: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
    /// Distance between images, between lines and between neighbours on a line.
    pub steps: [usize; 3],
}

impl Target {
    /// A matrix with contiguous rows.
    pub fn matrix(start: Shared<f32>, row_step: usize) -> Self {
        Self { start, row_step, size: [1, usize::MAX], steps: [0, 0, 1] }
    }

    /// Rows are planes of images: element `(row, image · plane + s)` lies at `image · image_step + row · plane + s`.
    pub fn planes(start: Shared<f32>, image_step: usize, plane: usize) -> Self {
        Self { start, row_step: plane, size: [1, plane], steps: [image_step, 0, 1] }
    }

    /// Cuts columns where a line of an image ends, and returns the number of parts.
    pub(super) fn spans(&self, first: usize, count: usize, spans: &mut [ColumnSpan; MAX_COLUMNS]) -> usize {
        let [height, width] = self.size;
        let (mut at, mut found) = (0, 0);
        while at < count {
            let (line, x) = ((first + at) / width, (first + at) % width);
            let offset = line / height * self.steps[0] + line % height * self.steps[1] + x * self.steps[2];
            let len = (width - x).min(count - at);
            spans[found] = ColumnSpan { at, len, offset };
            found += 1;
            at += len;
        }
        found
    }
}

/// The elements of C that one tile computes.
pub(super) struct TilePlace<'a> {
    pub(super) target: Target,
    /// The first row, and how many.
    pub(super) row: usize,
    pub(super) rows: usize,
    /// The first column.
    pub(super) column: usize,
    /// All columns.
    pub(super) spans: &'a [ColumnSpan],
}

impl TilePlace<'_> {
    /// Computes the elements by a tile of `width` columns, which takes the address of its first row, the distance between rows, and what it does with
    /// what is there. Its sums begin with the initial value if they go on from it, and are added to it otherwise. Where the columns do not lie as the
    /// tile has them, it computes in `sums`, which has room for it.
    ///
    /// # Safety
    /// The elements are the target's and nothing else touches them; they are initialized if the initial value keeps them.
    #[inline]
    pub(super) unsafe fn compute(
        &self,
        width: usize,
        (initial, goes_on): (Initial<'_>, bool),
        sums: &mut [f32],
        tile: impl FnOnce((*mut f32, usize), Merge),
    ) {
        let step = self.target.steps[2];
        // SAFETY: the caller's promise.
        unsafe {
            if let ([span], 1) = (self.spans, step)
                && span.len == width
            {
                self.write_biases(initial, span);
                let merge = match initial {
                    Initial::Zero => Merge::Write,
                    _ if goes_on => Merge::Continue,
                    _ => Merge::Add,
                };
                return tile((self.line(0).add(span.offset), self.target.row_step), merge);
            }
            if goes_on {
                self.each_span(width, sums, initial, |from, sums, initial| load(from, step, sums, initial));
            }
            tile((sums.as_mut_ptr(), width), if goes_on { Merge::Continue } else { Merge::Write });
            let rest = if goes_on { Initial::Zero } else { initial };
            self.each_span(width, sums, rest, |to, sums, rest| merge(to, step, sums, rest));
        }
    }

    /// Writes an initial value that does not lie in C yet, where the columns are one span.
    ///
    /// # Safety
    /// As [`compute`](Self::compute).
    unsafe fn write_biases(&self, initial: Initial<'_>, span: &ColumnSpan) {
        for r in 0..self.rows {
            // SAFETY: the caller's promise.
            let line = || unsafe { std::slice::from_raw_parts_mut(self.line(r).add(span.offset), span.len) };
            match initial {
                Initial::Rows(bias) => line().fill(bias[self.row + r]),
                Initial::Columns(bias) => line().copy_from_slice(&bias[self.column..][..span.len]),
                Initial::Zero | Initial::Keep | Initial::Continue => return,
            }
        }
    }

    /// Where a row of C lies.
    ///
    /// # Safety
    /// The row is one of the tile's.
    unsafe fn line(&self, r: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.target.start.add((self.row + r) * self.target.row_step) }
    }

    /// Calls `task` for every row and span: the address of its first element, its sums in a tile of `width` columns, and what these are added to.
    ///
    /// # Safety
    /// As [`compute`](Self::compute).
    unsafe fn each_span(
        &self,
        width: usize,
        sums: &mut [f32],
        initial: Initial<'_>,
        task: impl Fn(*mut f32, &mut [f32], Initial<'_>),
    ) {
        for r in 0..self.rows {
            for span in self.spans {
                let sums = &mut sums[r * width + span.at..][..span.len];
                // SAFETY: the caller's promise.
                let first = unsafe { self.line(r).add(span.offset) };
                task(first, sums, initial.from(self.row + r, self.column + span.at));
            }
        }
    }
}

/// Columns on one line of an image.
#[derive(Clone, Copy, Default)]
pub(super) struct ColumnSpan {
    /// The first, counted from the tile's first.
    pub(super) at: usize,
    /// How many.
    pub(super) len: usize,
    /// Where the first lies.
    pub(super) offset: usize,
}

/// Begins the sums of one row of a span with the initial value, which is cut to begin with this row and span.
///
/// # Safety
/// As many initialized elements as `sums` has, `step` apart, can be read at `from` if the initial value keeps them.
unsafe fn load(from: *const f32, step: usize, sums: &mut [f32], initial: Initial<'_>) {
    match initial {
        Initial::Zero => sums.fill(0.0),
        Initial::Rows(bias) => sums.fill(bias[0]),
        Initial::Columns(bias) => sums.copy_from_slice(&bias[..sums.len()]),
        Initial::Keep | Initial::Continue => {
            for (j, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *sum = unsafe { *from.add(j * step) };
            }
        }
    }
}

/// Writes the sums of one row of a span, added to the initial value, which is cut to begin with this row and span.
///
/// # Safety
/// As many elements as `sums` has, `step` apart, can be written at `to`, and read if the initial value keeps them.
#[inline]
unsafe fn merge(to: *mut f32, step: usize, sums: &[f32], initial: Initial<'_>) {
    if step == 1 {
        // SAFETY: the caller's promise.
        let to = unsafe { std::slice::from_raw_parts_mut(to, sums.len()) };
        match initial {
            Initial::Zero | Initial::Continue => to.copy_from_slice(sums),
            Initial::Keep => to.iter_mut().zip(sums).for_each(|(c, &sum)| *c += sum),
            Initial::Rows(bias) => to.iter_mut().zip(sums).for_each(|(c, &sum)| *c = bias[0] + sum),
            Initial::Columns(bias) => {
                to.iter_mut().zip(sums).zip(bias).for_each(|((c, &sum), &bias)| *c = bias + sum);
            }
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if step == 2 && !matches!(initial, Initial::Rows(_) | Initial::Columns(_)) && Isa::detect() == Isa::Avx512
    {
        // SAFETY: the caller's promise; the processor has AVX-512.
        unsafe { merge_every_second(to, sums, matches!(initial, Initial::Keep)) };
        return;
    }
    for (j, &sum) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.add(j * step);
            *to = match initial {
                Initial::Zero | Initial::Continue => sum,
                Initial::Keep => *to + sum,
                Initial::Rows(bias) => bias[0] + sum,
                Initial::Columns(bias) => bias[j] + sum,
            };
        }
    }
}

/// Writes numbers to every second place, or adds them to what is there, without touching the places between.
///
/// # Safety
/// As many places as `sums` has, two apart, can be written at `to`, and read if `keep`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn merge_every_second(to: *mut f32, sums: &[f32], keep: bool) {
    use std::arch::x86_64::*;
    const PLACES: __mmask16 = 0x5555;
    let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    for (eight, sums) in sums.chunks(8).enumerate() {
        let places = PLACES & (((1u32 << (2 * sums.len())) - 1) as u16);
        // SAFETY: as many sums as the mask says; places under the mask are the caller's promise.
        unsafe {
            let to = to.wrapping_add(16 * eight);
            let sums = _mm512_maskz_loadu_ps(((1u32 << sums.len()) - 1) as u16, sums.as_ptr());
            let mut spread = _mm512_permutexvar_ps(twice, sums);
            if keep {
                spread = _mm512_add_ps(_mm512_maskz_loadu_ps(places, to), spread);
            }
            _mm512_mask_storeu_ps(to, places, spread);
        }
    }
}
