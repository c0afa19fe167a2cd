//! Which instructions this processor has, and plain loops compiled for each kind of processor.
//!
//! A loop without fused multiply-adds gives the same bits at every vector width, so a kernel is written once, as a plain loop, and
//! [`vectorized`] runs the widest of its compiled forms. Only the matrix product ([`super::tile`]) needs instructions by name.

use std::sync::LazyLock;

/// The instruction sets that the kernels tell apart, from plain to wide.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "of other processors"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What the compiler's target guarantees: NEON on AArch64.
    Baseline,
    /// AVX2 with FMA: 16 registers of 8 floats.
    Avx2,
    /// AVX-512: 32 registers of 16 floats.
    Avx512,
}

impl Isa {
    /// The widest instruction set of this processor. The standard library caches the answer; a call costs a load and a branch.
    #[inline]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("fma")
            {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Baseline
    }

    /// Whether the processor multiplies pairs of bf16 numbers (AVX-512 BF16).
    pub fn multiplies_pairs() -> bool {
        #[cfg(target_arch = "x86_64")]
        return Self::detect() == Self::Avx512 && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether products of bf16 numbers take less time by pairs than by multiply-adds of widened numbers.
    pub fn gains_from_pairs() -> bool {
        /// Asked once: a virtual machine leaves the answer of `cpuid` to its host.
        static GAINS: LazyLock<bool> =
            LazyLock::new(|| Isa::multiplies_pairs() && !leaves_pairs_to_a_matrix_unit());
        *GAINS
    }
}

/// Whether this is one of Intel's cores since Sapphire Rapids, which are those with half-precision floats (AVX-512 FP16). Products of bf16 numbers
/// are the work of their matrix unit (AMX), and their vector units begin four multiply-adds in the time of one product of pairs: on Emerald
/// Rapids 5.2 · 10⁹ and 1.3 · 10⁹ a second. The processor tells, not a clock, since the bits of numbers below 2⁻¹²⁶ depend on the answer.
#[cfg(target_arch = "x86_64")]
fn leaves_pairs_to_a_matrix_unit() -> bool {
    // SAFETY: every 64-bit processor has the instruction and this leaf.
    #[allow(unused_unsafe, reason = "safe in later versions of the compiler")]
    let leaf = unsafe { std::arch::x86_64::__cpuid(0) };
    let maker = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
    maker == [*b"Genu", *b"ineI", *b"ntel"] && is_x86_feature_detected!("avx512fp16")
}

#[cfg(not(target_arch = "x86_64"))]
const fn leaves_pairs_to_a_matrix_unit() -> bool {
    false
}

/// Asks for a line of memory, with one of the hints `_MM_HINT_…`. It touches nothing, so that the address may be any.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn prefetch<const HINT: i32, T>(from: *const T) {
    // SAFETY: any address may be given.
    #[allow(unused_unsafe, reason = "safe in later versions of the compiler")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<HINT>(from.cast());
    }
}

/// Runs `body` compiled for the widest instructions of this processor. The closure, and what it calls, must be `#[inline(always)]` to
/// be compiled along.
#[inline]
pub fn vectorized<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn avx512<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2<R>(body: impl FnOnce() -> R) -> R {
            body()
        }
        match Isa::detect() {
            // SAFETY: detection found every feature that the function enables.
            Isa::Avx512 => return unsafe { avx512(body) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2(body) },
            Isa::Baseline => {}
        }
    }
    body()
}
