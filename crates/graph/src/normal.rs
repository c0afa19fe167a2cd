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

/// Two independent draws from the standard normal distribution (Box and Muller 1958).
#[inline]
pub fn pair(a: u32, b: u32) -> [f32; 2] {
    let tables = &*TABLES;
    let radius = (-2.0 * tables.logarithm(a)).sqrt();
    let (sine, cosine) = tables.angle(b);
    // Of the tables and of the C library together, with a margin: see the test of both errors. An error of a logarithm is divided by the radius.
    let error = 1e-14 * radius + 2e-12;
    match (rounded(radius * cosine, error), rounded(radius * sine, error)) {
        (Some(first), Some(second)) if radius > 1e-3 => [first, second],
        _ => formula(a, b),
    }
}

/// The formula.
#[cold]
fn formula(a: u32, b: u32) -> [f32; 2] {
    let radius = (-2.0 * f64::from(unit(a)).ln()).sqrt();
    let angle = TAU * f64::from(unit(b));
    [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
}

/// The single-precision number to which everything within `error` of a number rounds, if it is one.
fn rounded(number: f64, error: f64) -> Option<f32> {
    let (low, high) = ((number - error) as f32, (number + error) as f32);
    (low == high).then_some(low)
}

/// Parts of `1..2` and of a turn, powers of two.
const LOGARITHMS: u64 = 1 << 9;
const ANGLES: usize = 1 << 10;

/// Draws for which an angle is in the same part.
const FINE: usize = (1 << 23) / ANGLES;

static TABLES: LazyLock<Tables> = LazyLock::new(Tables::new);

/// Small enough for the innermost cache.
struct Tables {
    /// Inverse and logarithm of the centre of each part of `1..2`.
    logarithms: Vec<[f64; 2]>,
    /// Sine and cosine of the centre of each part of a turn.
    angles: Vec<[f64; 2]>,
}

impl Tables {
    fn new() -> Self {
        let logarithm = |part: u64| {
            let centre = 1.0 + (part as f64 + 0.5) / LOGARITHMS as f64;
            [1.0 / centre, centre.ln()]
        };
        let angle = |part: usize| {
            let (sine, cosine) = (TAU * (part as f64 + 0.5) / ANGLES as f64).sin_cos();
            [sine, cosine]
        };
        Self {
            logarithms: (0..LOGARITHMS).map(logarithm).collect(),
            angles: (0..ANGLES).map(angle).collect(),
        }
    }

    /// The logarithm of `unit(word)`.
    #[inline]
    fn logarithm(&self, word: u32) -> f64 {
        const MANTISSA: u64 = (1 << 52) - 1;
        const PART: u64 = (MANTISSA + 1) / LOGARITHMS;
        const ONE: u64 = 1023 << 52;
        // An odd number of at most 24 bits, over 2^24.
        let bits = f64::from(((word >> 9) << 1) | 1).to_bits();
        let exponent = (bits >> 52) as i64 - 1023 - 24;
        let mantissa = bits & MANTISSA;
        let [inverse, logarithm] = self.logarithms[(mantissa / PART % LOGARITHMS) as usize];
        let centre = f64::from_bits((mantissa / PART * PART + PART / 2) | ONE);
        // At most 2^-10: the next term of the series is below 2^-62.
        let x = (f64::from_bits(mantissa | ONE) - centre) * inverse;
        let series = x * (1.0 - x * (1.0 / 2.0 - x * (1.0 / 3.0 - x * (1.0 / 4.0 - x * (1.0 / 5.0)))));
        (exponent as f64 * LN_2 + logarithm) + series
    }

    /// Sine and cosine of `unit(word)` turns.
    #[inline]
    fn angle(&self, word: u32) -> (f64, f64) {
        let step = (word >> 9) as usize;
        let [sine, cosine] = self.angles[step / FINE % ANGLES];
        // At most π / 1,024: the next terms of both series are below 10^-18.
        let x = ((step % FINE) as f64 + 0.5 - FINE as f64 / 2.0) * (TAU / (1 << 23) as f64);
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
        for step in 0..1u32 << 23 {
            let (word, other) = (step << 9, step.wrapping_mul(0x9e37_79b9));
            for (a, b) in [(word, other), (other, word)] {
                assert_eq!(pair(a, b).map(f32::to_bits), formula(a, b).map(f32::to_bits), "{a} {b}");
            }
        }
    }

    #[test]
    fn the_stated_errors_hold() {
        let tables = &*TABLES;
        for step in (0..1u32 << 23).step_by(7).chain([0, 1, (1 << 23) - 1]) {
            let turn = f64::from(unit(step << 9));
            let (sine, cosine) = tables.angle(step << 9);
            assert!((sine - (TAU * turn).sin()).abs() < 4e-15 && (cosine - (TAU * turn).cos()).abs() < 4e-15);
            let logarithm = turn.ln();
            assert!((tables.logarithm(step << 9) - logarithm).abs() < 5e-16 * (1.0 - logarithm), "{step}");
        }
    }
}
