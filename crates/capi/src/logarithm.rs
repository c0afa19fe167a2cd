//! The two logarithms that the packer computes, so that the library needs no libm: see [`libm`](crate::libm).

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// Terms of the series. The first one left out is below 2^-58 of the first.
const TERMS: u32 = 11;

/// For x = m 2^e, where m lies between √½ and √2: e and ln m = 2 artanh((m − 1) / (m + 1)). Requires a positive, finite number.
fn split(x: f64) -> (f64, f64) {
    // A subnormal number has no implicit bit.
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * 2f64.powi(54), 54) } else { (x, 0) };
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023 - shift;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let series = (0..TERMS).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    (f64::from(exponent), 2.0 * z * series)
}

/// The logarithm of a number that has no finite one: NaN below zero and of NaN, minus infinity of zero, infinity of infinity.
fn special(x: f64) -> Option<f64> {
    if x.is_nan() || x < 0.0 {
        Some(f64::NAN)
    } else if x == 0.0 {
        Some(f64::NEG_INFINITY)
    } else {
        x.is_infinite().then_some(x)
    }
}

/// The natural logarithm, correct to 4 units in the last place.
pub extern "C" fn ln(x: f64) -> f64 {
    special(x).unwrap_or_else(|| {
        let (exponent, rest) = split(x);
        exponent * LN_2 + rest
    })
}

/// The logarithm to base 2, correct to 4 units in the last place; exact for powers of 2.
pub extern "C" fn log2(x: f64) -> f64 {
    special(x).unwrap_or_else(|| {
        let (exponent, rest) = split(x);
        exponent + rest * LOG2_E
    })
}
