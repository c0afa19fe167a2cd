//! The forms in which transformed numbers lie in the panels of the matrix product: as floats, or as bf16 numbers, where the processor multiplies
//! pairs of them two in an element.

use rayon::ThreadPool;

use super::super::bf16::Bf16;
use super::super::isa::vectorized;
use super::super::number::Number;
use super::super::tile::Tiles;
use super::transforms::{LANES, Vector};

/// An element of a panel: a float, or a pair of bf16 numbers.
pub type Element = u32;

/// How numbers are written to panels.
pub trait Form {
    /// Numbers in an element: neighbours along the shared dimension.
    const NUMBERS: usize;

    /// [`vectorized`], also for the instructions of this form.
    ///
    /// # Safety
    /// The processor has them.
    #[inline(always)]
    unsafe fn vectorized<R>(body: impl FnOnce() -> R) -> R {
        vectorized(body)
    }

    /// Writes a vector of neighbours along the shared dimension: [`LANES`] ÷ [`NUMBERS`](Self::NUMBERS) elements.
    ///
    /// # Safety
    /// They can be written; the processor has the instructions of this form.
    unsafe fn write(vector: &Vector, to: *mut Element);

    /// The elements that have the numbers of a vector in place `place`, and nothing in others.
    ///
    /// # Safety
    /// The processor has the instructions of this form.
    unsafe fn elements(vector: &Vector, place: usize) -> [Element; LANES];
}

/// Floats.
pub enum Floats {}

/// Floats, rounded to bf16 numbers.
pub enum Rounded {}

/// Pairs of bf16 numbers ([`super::super::pairs`]), on processors that multiply such.
#[cfg(target_arch = "x86_64")]
pub enum Pairs {}

/// What is computed by transformed numbers of any form.
pub trait Computation {
    /// Its numbers: bf16 ones are transformed to such.
    type Number: Number;

    /// The tiles of its matrix product.
    fn tiles(&self) -> &'static Tiles;

    /// # Safety
    /// As [`compute`](Self::compute); the form is that of the numbers and the tiles.
    unsafe fn compute_by<F: Form>(&self, pool: &ThreadPool);

    /// # Safety
    /// Results and scratch are as large as they must be, and nothing else touches them.
    unsafe fn compute(&self, pool: &ThreadPool) {
        // SAFETY: the caller's promise; tiles that take pairs are given out on processors that have the instructions.
        unsafe {
            match (Self::Number::IS_BF16, self.tiles().takes_pairs) {
                #[cfg(target_arch = "x86_64")]
                (true, true) => self.compute_by::<Pairs>(pool),
                (true, _) => self.compute_by::<Rounded>(pool),
                (false, _) => self.compute_by::<Floats>(pool),
            }
        }
    }
}

impl Form for Floats {
    const NUMBERS: usize = 1;

    #[inline(always)]
    unsafe fn write(vector: &Vector, to: *mut Element) {
        // SAFETY: the caller's promise; arrays are aligned as their elements are.
        unsafe { to.cast::<Vector>().write(*vector) };
    }

    #[inline(always)]
    unsafe fn elements(vector: &Vector, _: usize) -> [Element; LANES] {
        vector.map(f32::to_bits)
    }
}

impl Form for Rounded {
    const NUMBERS: usize = 1;

    #[inline(always)]
    unsafe fn write(vector: &Vector, to: *mut Element) {
        // SAFETY: as above.
        unsafe { Floats::write(&vector.map(|x| Bf16::nearest(x).float()), to) };
    }

    #[inline(always)]
    unsafe fn elements(vector: &Vector, _: usize) -> [Element; LANES] {
        vector.map(|x| Element::from(Bf16::nearest(x).0) << 16)
    }
}

#[cfg(target_arch = "x86_64")]
impl Form for Pairs {
    const NUMBERS: usize = 2;

    #[inline(always)]
    unsafe fn vectorized<R>(body: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
        fn with_pairs<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        // SAFETY: the caller's promise.
        unsafe { with_pairs(body) }
    }

    #[inline(always)]
    unsafe fn write(vector: &Vector, to: *mut Element) {
        // SAFETY: the caller's promise.
        unsafe { with_instructions::write(vector, to) }
    }

    #[inline(always)]
    unsafe fn elements(vector: &Vector, place: usize) -> [Element; LANES] {
        // SAFETY: the caller's promise.
        unsafe { with_instructions::elements(vector, place) }
    }
}

/// Rounding by AVX-512 BF16, which takes numbers below 2⁻¹²⁶ as zero, as its products do.
#[cfg(target_arch = "x86_64")]
mod with_instructions {
    use std::arch::x86_64::*;

    use super::{Element, LANES, Vector};

    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    fn nearest(vector: &Vector) -> __m256i {
        // SAFETY: a vector has sixteen floats; both types have sixteen numbers of two bytes.
        unsafe { std::mem::transmute(_mm512_cvtneps_pbh(_mm512_loadu_ps(vector.as_ptr()))) }
    }

    /// # Safety
    /// Eight elements can be written.
    #[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
    #[inline]
    pub unsafe fn write(vector: &Vector, to: *mut Element) {
        // The earlier number is in the upper half.
        let pairs = _mm256_rol_epi32::<16>(nearest(vector));
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), pairs) };
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    pub fn elements(vector: &Vector, place: usize) -> [Element; LANES] {
        let numbers = _mm512_cvtepu16_epi32(nearest(vector));
        let shift = _mm_cvtsi32_si128(if place == 0 { 16 } else { 0 });
        // SAFETY: both are sixteen elements of four bytes.
        unsafe { std::mem::transmute(_mm512_sll_epi32(numbers, shift)) }
    }
}
