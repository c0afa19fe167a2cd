//! The numbers of a factor of a matrix product as they lie in memory: `f32`, or bf16 that are widened when they are read.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::Element;
use super::bf16::{self, Bf16};
use super::pack::{Panels, Rounded};

/// A number that is an `f32`, or stands for one.
pub trait Number: Element + Default {
    /// Whether it is a bf16 number.
    const IS_BF16: bool;

    /// The same number.
    fn float(self) -> f32;

    /// The nearest bf16 number.
    fn nearest(self) -> Bf16;

    /// Copies numbers.
    fn widen(from: &[Self], to: &mut [f32]);

    /// The numbers, if they are `f32`.
    fn floats(numbers: &[Self]) -> Option<&[f32]>;

    /// The numbers, if they are bf16.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "asked by its kernels"))]
    fn narrow(numbers: &[Self]) -> Option<&[Bf16]>;

    /// Four neighbours.
    ///
    /// # Safety
    /// They can be read; the processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn four(from: *const Self) -> __m128;

    /// Of eight neighbours those under a mask, and zeros.
    ///
    /// # Safety
    /// They can be read; the processor has AVX-512.
    #[cfg(target_arch = "x86_64")]
    unsafe fn some_of_eight(mask: u8, from: *const Self) -> __m256;

    /// Of sixteen neighbours those under a mask; the other lanes stay.
    ///
    /// # Safety
    /// They can be read; the processor has AVX-512.
    #[cfg(target_arch = "x86_64")]
    unsafe fn some_of_sixteen(lanes: __m512, mask: u16, from: *const Self) -> __m512;

    /// The nearest bf16 numbers to those of sixteen neighbours that are under a mask, and zeros.
    ///
    /// # Safety
    /// They can be read; the processor has AVX-512.
    #[cfg(target_arch = "x86_64")]
    unsafe fn nearest_of_sixteen(mask: u16, from: *const Self) -> __m256i;
}

/// The numbers of a factor that decide how a product takes its other factor in `f32`: a weight, or probabilities.
pub trait Factor: Number {
    /// That factor, as it is taken.
    type Weight<P: Panels>: Panels;

    /// Takes that factor.
    fn weight<P: Panels>(panels: P) -> Self::Weight<P>;
}

/// As it is.
impl Factor for f32 {
    type Weight<P: Panels> = P;

    fn weight<P: Panels>(panels: P) -> P {
        panels
    }
}

/// As its nearest bf16 numbers.
impl Factor for Bf16 {
    type Weight<P: Panels> = Rounded<P>;

    fn weight<P: Panels>(panels: P) -> Rounded<P> {
        Rounded(panels)
    }
}

impl Number for f32 {
    const IS_BF16: bool = false;

    #[inline(always)]
    fn float(self) -> f32 {
        self
    }

    #[inline(always)]
    fn nearest(self) -> Bf16 {
        Bf16::nearest(self)
    }

    #[inline]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline]
    fn floats(numbers: &[Self]) -> Option<&[f32]> {
        Some(numbers)
    }

    fn narrow(_: &[Self]) -> Option<&[Bf16]> {
        None
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn four(from: *const Self) -> __m128 {
        // SAFETY: the caller's promise.
        unsafe { _mm_loadu_ps(from) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl")]
    #[inline]
    unsafe fn some_of_eight(mask: u8, from: *const Self) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_maskz_loadu_ps(mask, from) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn some_of_sixteen(lanes: __m512, mask: u16, from: *const Self) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mask_loadu_ps(lanes, mask, from) }
    }

    /// As [`Bf16::nearest`] does it.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn nearest_of_sixteen(mask: u16, from: *const Self) -> __m256i {
        // SAFETY: the caller's promise.
        let numbers = unsafe { _mm512_maskz_loadu_ps(mask, from) };
        let bits = _mm512_castps_si512(numbers);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7FFF));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
        let rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x40_0000));
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded))
    }
}

impl Number for Bf16 {
    const IS_BF16: bool = true;

    #[inline(always)]
    fn float(self) -> f32 {
        self.float()
    }

    #[inline(always)]
    fn nearest(self) -> Bf16 {
        self
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        bf16::widen(from, to);
    }

    fn floats(_: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline]
    fn narrow(numbers: &[Self]) -> Option<&[Bf16]> {
        Some(numbers)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn four(from: *const Self) -> __m128 {
        // SAFETY: the caller's promise.
        let wide = unsafe { _mm_cvtepu16_epi32(_mm_loadl_epi64(from.cast())) };
        _mm_castsi128_ps(_mm_slli_epi32::<16>(wide))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    unsafe fn some_of_eight(mask: u8, from: *const Self) -> __m256 {
        // SAFETY: the caller's promise.
        let wide = unsafe { _mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(mask, from.cast())) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    unsafe fn some_of_sixteen(lanes: __m512, mask: u16, from: *const Self) -> __m512 {
        // SAFETY: the caller's promise.
        let wide = unsafe { _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from.cast())) };
        _mm512_castsi512_ps(_mm512_mask_slli_epi32::<16>(_mm512_castps_si512(lanes), mask, wide))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    unsafe fn nearest_of_sixteen(mask: u16, from: *const Self) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_maskz_loadu_epi16(mask, from.cast()) }
    }
}
