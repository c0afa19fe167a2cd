//! Normal draws from pairs of random words, quickly: the bits are those of the formula with the logarithm, sine and cosine of the C library.
//!
//! The formula is evaluated in double precision and rounded to single precision. Tables of both functions are as exact as double precision is,
//! up to a known error; if adding or subtracting that error rounds to the same single-precision number, no better evaluation can round to
//! another one. Otherwise, about once in a million draws, the formula itself decides (Ziv 1991, *Fast evaluation of elementary mathematical
//! functions with correctly rounded last bit*).

use std::f64::consts::{LN_2, TAU};
use std::sync::LazyLock;

/// A number in `0..1` with 24 bits, the centre of its step: never 0, never 1.
#[inline]
pub fn unit(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) / (1 << 23) as f32
}

/// Draws made together, so that vector registers are full.
pub(crate) const LANES: usize = 16;

/// Two independent draws from the standard normal distribution for each lane (Box and Muller 1958).
///
/// The tables are read in a loop of their own, because the others become vector instructions only without it.
#[inline(always)]
pub(crate) fn pairs(tables: &Tables, a: &[u32; LANES], b: &[u32; LANES]) -> [[f32; LANES]; 2] {
    let (mut logarithms, mut angles) = ([[0.0; LANES]; 2], [[0.0; LANES]; 2]);
    for lane in 0..LANES {
        let (logarithm, angle) = (Logarithm::of(a[lane]).part, Angle::of(b[lane]).part);
        (logarithms[0][lane], logarithms[1][lane]) =
            (tables.inverses[logarithm], tables.logarithms[logarithm]);
        (angles[0][lane], angles[1][lane]) = (tables.sines[angle], tables.cosines[angle]);
    }
    let (mut first, mut second, mut apart) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        let logarithm = Logarithm::of(a[lane]).value(logarithms[0][lane], logarithms[1][lane]);
        let (sine, cosine) = Angle::of(b[lane]).values(angles[0][lane], angles[1][lane]);
        let radius = (-2.0 * logarithm).sqrt();
        // Of the tables and of the C library together, with a margin: see the test of both errors. An error of a logarithm is divided by
        // the radius.
        let error = 1e-14 * radius + 2e-12;
        let (x, y) = (radius * cosine, radius * sine);
        let low = [(x - error) as f32, (y - error) as f32];
        let high = [(x + error) as f32, (y + error) as f32];
        (first[lane], second[lane]) = (low[0], low[1]);
        // Zero if everything within the error rounds to the same numbers.
        let widths = (high[0] - low[0]) + (high[1] - low[1]);
        apart[lane] = if radius > 1e-3 { widths } else { 1.0 };
    }
    if apart != [0.0; LANES] {
        for lane in 0..LANES {
            if apart[lane] != 0.0 {
                [first[lane], second[lane]] = formula(a[lane], b[lane]);
            }
        }
    }
    [first, second]
}

/// The formula.
#[cold]
fn formula(a: u32, b: u32) -> [f32; 2] {
    let radius = (-2.0 * f64::from(unit(a)).ln()).sqrt();
    let angle = TAU * f64::from(unit(b));
    [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
}

/// Parts of `1..2` and of a turn, powers of two.
const LOGARITHMS: usize = 1 << 9;
const ANGLES: usize = 1 << 10;

/// Draws for which an angle is in the same part.
const FINE: usize = (1 << 23) / ANGLES;

static TABLES: LazyLock<Box<Tables>> = LazyLock::new(Tables::new);

/// Small enough for the innermost cache.
pub(crate) struct Tables {
    /// Inverse of the centre of each part of `1..2`, and the logarithm of the centre.
    inverses: [f64; LOGARITHMS],
    logarithms: [f64; LOGARITHMS],
    /// Sine and cosine of the centre of each part of a turn.
    sines: [f64; ANGLES],
    cosines: [f64; ANGLES],
}

impl Tables {
    /// The only ones.
    pub(crate) fn get() -> &'static Self {
        &TABLES
    }

    fn new() -> Box<Self> {
        let centre = |part: usize| 1.0 + (part as f64 + 0.5) / LOGARITHMS as f64;
        let angle = |part: usize| TAU * (part as f64 + 0.5) / ANGLES as f64;
        Box::new(Self {
            inverses: std::array::from_fn(|part| 1.0 / centre(part)),
            logarithms: std::array::from_fn(|part| centre(part).ln()),
            sines: std::array::from_fn(|part| angle(part).sin()),
            cosines: std::array::from_fn(|part| angle(part).cos()),
        })
    }
}

/// Where the logarithm of `unit(word)` is in its table.
struct Logarithm {
    part: usize,
    exponent: i32,
    /// Distance from the centre of the part.
    distance: f64,
}

impl Logarithm {
    #[inline(always)]
    fn of(word: u32) -> Self {
        const MANTISSA: u64 = (1 << 52) - 1;
        const PART: u64 = (MANTISSA + 1) / LOGARITHMS as u64;
        const ONE: u64 = 1023 << 52;
        // An odd number of at most 24 bits, over 2^24. Signed numbers of 32 bits are those that vectors convert.
        let bits = f64::from((((word >> 9) << 1) | 1) as i32).to_bits();
        let mantissa = bits & MANTISSA;
        let centre = f64::from_bits((mantissa / PART * PART + PART / 2) | ONE);
        Self {
            part: (mantissa / PART) as usize % LOGARITHMS,
            exponent: (bits >> 52) as i32 - 1023 - 24,
            distance: f64::from_bits(mantissa | ONE) - centre,
        }
    }

    /// The logarithm, from the inverse and the logarithm of the centre.
    #[inline(always)]
    fn value(self, inverse: f64, logarithm: f64) -> f64 {
        // At most 2^-10: the next term of the series is below 2^-62.
        let x = self.distance * inverse;
        let series = x * (1.0 - x * (1.0 / 2.0 - x * (1.0 / 3.0 - x * (1.0 / 4.0 - x * (1.0 / 5.0)))));
        (f64::from(self.exponent) * LN_2 + logarithm) + series
    }
}

/// Where the angle of `unit(word)` turns is in its table.
struct Angle {
    part: usize,
    /// From the centre of the part, in radians.
    distance: f64,
}

impl Angle {
    #[inline(always)]
    fn of(word: u32) -> Self {
        let step = (word >> 9) as usize;
        let fine = f64::from((step % FINE) as i32) + 0.5 - FINE as f64 / 2.0;
        Self { part: step / FINE % ANGLES, distance: fine * (TAU / (1 << 23) as f64) }
    }

    /// Sine and cosine, from those of the centre.
    #[inline(always)]
    fn values(self, sine: f64, cosine: f64) -> (f64, f64) {
        // At most π / 1,024: the next terms of both series are below 10^-18.
        let x = self.distance;
        let square = x * x;
        let small = x * (1.0 - square * (1.0 / 6.0 - square * (1.0 / 120.0)));
        let near_one = 1.0 - square * (1.0 / 2.0 - square * (1.0 / 24.0));
        (sine * near_one + cosine * small, cosine * near_one - sine * small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_the_formula() {
        // Every value of each word, with changing values of the other one.
        for start in (0..1u32 << 23).step_by(LANES) {
            let step = |lane: usize| start + lane as u32;
            let words = std::array::from_fn(|lane| step(lane) << 9);
            let others = std::array::from_fn(|lane| step(lane).wrapping_mul(0x9e37_79b9));
            for (a, b) in [(words, others), (others, words)] {
                let [first, second] = pairs(Tables::get(), &a, &b);
                for lane in 0..LANES {
                    let (found, exact) = ([first[lane], second[lane]], formula(a[lane], b[lane]));
                    assert_eq!(found.map(f32::to_bits), exact.map(f32::to_bits), "{} {}", a[lane], b[lane]);
                }
            }
        }
    }

    #[test]
    fn the_stated_errors_hold() {
        let tables = Tables::get();
        for step in (0..1u32 << 23).step_by(7).chain([0, 1, (1 << 23) - 1]) {
            let turn = f64::from(unit(step << 9));
            let angle = Angle::of(step << 9);
            let part = angle.part;
            let (sine, cosine) = angle.values(tables.sines[part], tables.cosines[part]);
            assert!((sine - (TAU * turn).sin()).abs() < 4e-15 && (cosine - (TAU * turn).cos()).abs() < 4e-15);
            let logarithm = turn.ln();
            let found = Logarithm::of(step << 9);
            let part = found.part;
            let found = found.value(tables.inverses[part], tables.logarithms[part]);
            assert!((found - logarithm).abs() < 5e-16 * (1.0 - logarithm), "{step}");
        }
    }
}
