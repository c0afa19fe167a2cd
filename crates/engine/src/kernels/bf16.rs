//! bfloat16: the upper half of a 32-bit float, so that widening is a shift and narrowing a rounding of the bits.

use super::isa::vectorized;

/// A bfloat16 number, by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// The nearest number, that with an even last bit of two; infinite above the largest. What is no number stays none.
    #[inline(always)]
    pub fn nearest(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        // Rounding could carry the bits of a NaN beyond those of all NaNs.
        let quiet = bits >> 16 | 0x40;
        Self(if bits & 0x7FFF_FFFF > 0x7F80_0000 { quiet } else { rounded } as u16)
    }

    /// The same number.
    #[inline(always)]
    pub const fn float(self) -> f32 {
        f32::from_bits((self.0 as u32) << 16)
    }
}

/// Widens numbers.
pub fn widen(from: &[Bf16], to: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || to.iter_mut().zip(from).for_each(|(to, from)| *to = from.float()),
    );
}

/// Narrows numbers to the nearest.
pub fn narrow(from: &[f32], to: &mut [Bf16]) {
    vectorized(
        #[inline(always)]
        || to.iter_mut().zip(from).for_each(|(to, &from)| *to = Bf16::nearest(from)),
    );
}

/// Rounds numbers to the nearest that are bf16, in place.
pub fn round(numbers: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || numbers.iter_mut().for_each(|x| *x = Bf16::nearest(*x).float()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even() {
        for (bits, expected) in [
            (0x3F80_0000, 0x3F80),
            // Ties: down to even, up to even.
            (0x3F80_8000, 0x3F80),
            (0x3F81_8000, 0x3F82),
            (0x3F80_8001, 0x3F81),
            (0x3F80_7FFF, 0x3F80),
            (0x8000_0000, 0x8000),
            // Subnormal numbers are numbers like any other.
            (0x0000_8001, 0x0001),
            (0x7F7F_FFFF, 0x7F80),
            (0xFF80_0000, 0xFF80),
        ] {
            assert_eq!(Bf16::nearest(f32::from_bits(bits)).0, expected, "{bits:#x}");
        }
        for bits in [0x7F80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF] {
            assert!(Bf16::nearest(f32::from_bits(bits)).float().is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn every_number_survives_widening_and_loops_agree_with_the_definition() {
        let all: Vec<Bf16> = (0..=u16::MAX).map(Bf16).filter(|x| !x.float().is_nan()).collect();
        let mut wide = vec![0.0; all.len()];
        widen(&all, &mut wide);
        let mut back = vec![Bf16::default(); all.len()];
        narrow(&wide, &mut back);
        assert_eq!(all, back);
        let odd: Vec<f32> = wide.iter().map(|x| f32::from_bits(x.to_bits() ^ 0x9ABC)).collect();
        let mut rounded = odd.clone();
        round(&mut rounded);
        assert!(odd.iter().zip(&rounded).all(|(&x, y)| Bf16::nearest(x).float().to_bits() == y.to_bits()));
    }
}
