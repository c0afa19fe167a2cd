//! Exponential, logistic function and hyperbolic tangent as short chains of additions and multiplications, so that loops over them become
//! vectors, and the bits are the same at every vector width and on every processor.

/// ln 2 in two parts, of which the first one times a small whole number is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `e^x` with a relative error below 2·10⁻⁷: Cody and Waite's reduction to `|r| ≤ ln 2 / 2` (*Software manual for the elementary
/// functions*, 1980), then the Taylor polynomial of degree 7. Below −87.3 it is 0 (no denormals), above 88.7 infinity.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.3;
    const HIGHEST: f32 = 88.8;
    const OVERFLOW: f32 = 88.722_84;
    // Adding and subtracting 1.5 · 2²³ rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // Outside these bounds the result is replaced below; a comparison, because `clamp` may panic, which no vector can.
    let clamped = if x > LOWEST { x } else { LOWEST };
    let clamped = if clamped < HIGHEST { clamped } else { HIGHEST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    // The integer stands in the last bits of the shifted number. 2ⁿ comes in two halves, because n reaches 128.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let y = p * power(half) * power(n.wrapping_sub(half));
    let y = if x < LOWEST { 0.0 } else { y };
    let y = if x > OVERFLOW { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

/// `2·artanh z`, which is `ln((1 + z) / (1 − z))`, for `|z| ≤ 1/3`: its Taylor polynomial of degree 13.
#[inline(always)]
fn log_of_ratio(z: f32) -> f32 {
    let s = z * z;
    let mut p = 1.0 / 13.0;
    p = p * s + 1.0 / 11.0;
    p = p * s + 1.0 / 9.0;
    p = p * s + 1.0 / 7.0;
    p = p * s + 1.0 / 5.0;
    p = p * s + 1.0 / 3.0;
    2.0 * (z + z * s * p)
}

/// `ln x` with a relative error below 3·10⁻⁷: `x = m·2ⁿ` with `m` from √½ to √2. Below zero it is no number.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    const TWO_TO_25: f32 = 33_554_432.0;
    // The exponent of a subnormal number is not in its bits.
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * TWO_TO_25 } else { x };
    let shift = if subnormal { 25 } else { 0 };
    // Bits count from those of √½, so that a quotient by 2²³ is n and a rest is m.
    let bits = (scaled.to_bits() as i32).wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32);
    let n = bits >> 23;
    let m = f32::from_bits(scaled.to_bits().wrapping_sub((n << 23) as u32));
    let n = (n - shift) as f32;
    let y = n * LN2_HIGH + (n * LN2_LOW + log_of_ratio((m - 1.0) / (m + 1.0)));
    let y = if x < f32::INFINITY { y } else { x };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 { f32::NAN } else { y }
}

/// `dy` times the derivative of [`log`] at `x`.
#[inline(always)]
pub fn log_grad(dy: f32, x: f32) -> f32 {
    dy / x
}

/// `|x|`
#[inline(always)]
pub fn abs(x: f32) -> f32 {
    x.abs()
}

/// `dy` times the derivative of [`abs`] at `x`, which is 0 at 0.
#[inline(always)]
pub fn abs_grad(dy: f32, x: f32) -> f32 {
    let other = if x < 0.0 { -dy } else { 0.0 };
    if x > 0.0 { dy } else { other }
}

/// `dy` times the derivative of [`exp`] where it gave `y`.
#[inline(always)]
pub fn exp_grad(dy: f32, y: f32) -> f32 {
    dy * y
}

/// `1 / x`
#[inline(always)]
pub fn reciprocal(x: f32) -> f32 {
    1.0 / x
}

/// `dy` times the derivative of [`reciprocal`] where it gave `y`.
#[inline(always)]
pub fn reciprocal_grad(dy: f32, y: f32) -> f32 {
    -dy * (y * y)
}

/// `√x`
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    x.sqrt()
}

/// `dy` times the derivative of [`sqrt`] where it gave `y`, which is 0 at 0.
#[inline(always)]
pub fn sqrt_grad(dy: f32, y: f32) -> f32 {
    if y == 0.0 { 0.0 } else { 0.5 * dy / y }
}

/// `x > bound ? 1 : 0`
#[inline(always)]
pub fn step(x: f32, bound: f32) -> f32 {
    if x > bound { 1.0 } else { 0.0 }
}

/// `dy` times the derivative of [`step`], which is 0.
#[inline(always)]
pub fn step_grad(_: f32, _: f32, _: f32) -> f32 {
    0.0
}

/// `ln(1 + eˣ)`, which is `max(x, 0) + ln(1 + e)` with `e = e^−|x|`, and that logarithm `ln((1 + z) / (1 − z))` with `z = e / (2 + e)`.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let e = exp(-x.abs());
    relu(x) + log_of_ratio(e / (2.0 + e))
}

/// `dy` times the derivative of [`softplus`] at `x`.
#[inline(always)]
pub fn softplus_grad(dy: f32, x: f32) -> f32 {
    dy * sigmoid(x)
}

/// `1 / (1 + e^−x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `tanh x`, with a relative error of a few 10⁻⁷: an odd Taylor polynomial near zero, where the quotient of exponentials would
/// cancel, and `1 − 2 / (e^{2|x|} + 1)` beyond.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let s = x * x;
    let mut p = 21_844.0 / 6_081_075.0;
    p = p * s - 1382.0 / 155_925.0;
    p = p * s + 62.0 / 2835.0;
    p = p * s - 17.0 / 315.0;
    p = p * s + 2.0 / 15.0;
    p = p * s - 1.0 / 3.0;
    let near = x + x * s * p;
    let far = (1.0 - 2.0 / (exp(2.0 * a) + 1.0)).copysign(x);
    if a < 0.4 { near } else { far }
}

const GELU_SLOPE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

/// `½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x)))
}

/// `dy` times the derivative of [`gelu`] at `x`.
#[inline(always)]
pub fn gelu_grad(dy: f32, x: f32) -> f32 {
    let t = tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x));
    let inner = GELU_SLOPE * (1.0 + 3.0 * GELU_CUBE * x * x);
    dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
}

/// `erf x` with an absolute error below 3·10⁻⁷: Chebyshev's fit of `erfc` (Press et al., *Numerical recipes*, section 6.2).
#[inline(always)]
fn erf(x: f32) -> f32 {
    let z = x.abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let mut p = 0.170_872_77;
    p = p * t - 0.822_152_2;
    p = p * t + 1.488_515_9;
    p = p * t - 1.135_204;
    p = p * t + 0.278_868_07;
    p = p * t - 0.186_288_06;
    p = p * t + 0.096_784_18;
    p = p * t + 0.374_091_96;
    p = p * t + 1.000_023_7;
    p = p * t - 1.265_512_2;
    (1.0 - t * exp(p - z * z)).copysign(x)
}

/// `½·x·(1 + erf(x / √2))`.
#[inline(always)]
pub fn gelu_exact(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// `dy` times the derivative of [`gelu_exact`] at `x`.
#[inline(always)]
pub fn gelu_exact_grad(dy: f32, x: f32) -> f32 {
    const INVERSE_ROOT_OF_TWO_PI: f32 = 0.398_942_3;
    let density = INVERSE_ROOT_OF_TWO_PI * exp(-0.5 * x * x);
    dy * (0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)) + x * density)
}

/// `x / (1 + e^−x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `dy` times the derivative of [`silu`] at `x`.
#[inline(always)]
pub fn silu_grad(dy: f32, x: f32) -> f32 {
    let s = sigmoid(x);
    dy * (s * (1.0 + x * (1.0 - s)))
}

/// `min(max(x, 0), 6)`, but a NaN stays one.
#[inline(always)]
pub fn relu6(x: f32) -> f32 {
    let x = relu(x);
    if x > 6.0 { 6.0 } else { x }
}

/// `dy` times the derivative of [`relu6`] where it gave `y`.
#[inline(always)]
pub fn relu6_grad(dy: f32, y: f32) -> f32 {
    if y > 0.0 && y < 6.0 { dy } else { 0.0 }
}

/// `min(max(x, least), most)`, but a NaN stays one.
#[inline(always)]
pub fn clamp(x: f32, least: f32, most: f32) -> f32 {
    let x = if x < least { least } else { x };
    if x > most { most } else { x }
}

/// `dy` times the derivative of [`clamp`] where it gave `y`.
#[inline(always)]
pub fn clamp_grad(dy: f32, y: f32, least: f32, most: f32) -> f32 {
    if y > least && y < most { dy } else { 0.0 }
}

/// `x > 0 ? x : α·(eˣ − 1)`, where `eˣ − 1 = 2t / (1 − t)` with `t = tanh(x/2)` does not cancel near zero.
#[inline(always)]
pub fn elu(x: f32, alpha: f32) -> f32 {
    let t = tanh(0.5 * x);
    let below = alpha * (2.0 * t / (1.0 - t));
    if x > 0.0 { x } else { below }
}

/// `dy` times the derivative of [`elu`] where it gave `y`.
#[inline(always)]
pub fn elu_grad(dy: f32, y: f32, alpha: f32) -> f32 {
    if y > 0.0 { dy } else { dy * (y + alpha) }
}

/// `min(max(x + 3, 0), 6) / 6`
#[inline(always)]
pub fn hard_sigmoid(x: f32) -> f32 {
    relu6(x + 3.0) / 6.0
}

/// `dy` times the derivative of [`hard_sigmoid`] where it gave `y`.
#[inline(always)]
pub fn hard_sigmoid_grad(dy: f32, y: f32) -> f32 {
    if y > 0.0 && y < 1.0 { dy / 6.0 } else { 0.0 }
}

/// `x · min(max(x + 3, 0), 6) / 6`
#[inline(always)]
pub fn hard_swish(x: f32) -> f32 {
    x * hard_sigmoid(x)
}

/// `dy` times the derivative of [`hard_swish`] at `x`.
#[inline(always)]
pub fn hard_swish_grad(dy: f32, x: f32) -> f32 {
    let inside = dy * (x / 3.0 + 0.5);
    let above = if x > 3.0 { dy } else { inside };
    if x < -3.0 { 0.0 } else { above }
}

/// `x > 0 ? x : slope · x`
#[inline(always)]
pub fn leaky_relu(x: f32, slope: f32) -> f32 {
    if x > 0.0 { x } else { slope * x }
}

/// `dy` times the derivative of [`leaky_relu`] where it gave `y`.
#[inline(always)]
pub fn leaky_relu_grad(dy: f32, y: f32, slope: f32) -> f32 {
    if y > 0.0 { dy } else { slope * dy }
}

/// `max(x, 0)`, but a NaN stays one.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `dy` times the derivative of [`relu`] where it gave `y`.
#[inline(always)]
pub fn relu_grad(dy: f32, y: f32) -> f32 {
    if y > 0.0 { dy } else { 0.0 }
}

/// `dy` times the derivative of [`tanh`] where it gave `y`.
#[inline(always)]
pub fn tanh_grad(dy: f32, y: f32) -> f32 {
    dy * (1.0 - y * y)
}

/// `dy` times the derivative of [`sigmoid`] where it gave `y`.
#[inline(always)]
pub fn sigmoid_grad(dy: f32, y: f32) -> f32 {
    dy * (y * (1.0 - y))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest relative error over many arguments.
    fn error(range: std::ops::Range<i32>, ours: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        range
            .map(|i| {
                let x = i as f32 / 997.0;
                let (y, z) = (f64::from(ours(x)), exact(f64::from(x)));
                (y - z).abs() / z.abs().max(1e-30)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn close_to_the_exact_functions() {
        assert!(error(-86_000..88_000, exp, f64::exp) < 3e-7);
        assert!(error(-20_000..20_000, tanh, f64::tanh) < 6e-7);
        assert!(error(-50_000..50_000, sigmoid, |x| 1.0 / (1.0 + (-x).exp())) < 6e-7);
        assert!(error(1..90_000, log, f64::ln) < 3e-7);
        assert!(error(-80_000..80_000, softplus, |x| x.exp().ln_1p()) < 6e-7);
        let small = |x: f32| log(x * 1e-38);
        assert!(error(1..3_000, small, |x| f64::from(x as f32 * 1e-38).ln()) < 3e-7);
    }

    #[test]
    fn ends_of_the_range() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!((exp(-100.0), exp(89.0)), (0.0, f32::INFINITY));
        assert!(exp(88.7).is_finite() && exp(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
        assert_eq!((tanh(50.0), tanh(-50.0), tanh(0.0)), (1.0, -1.0, 0.0));
        assert_eq!((sigmoid(100.0), sigmoid(-100.0)), (1.0, 0.0));
        assert_eq!((log(0.0), log(-0.0)), (f32::NEG_INFINITY, f32::NEG_INFINITY));
        assert_eq!((log(1.0), log(f32::INFINITY)), (0.0, f32::INFINITY));
        assert!(log(-1.0).is_nan() && log(f32::NAN).is_nan() && log(f32::NEG_INFINITY).is_nan());
        assert!((log(f32::MAX) - 88.722_84).abs() < 1e-5);
        assert_eq!((softplus(100.0), softplus(-100.0)), (100.0, 0.0));
        assert!(softplus(f32::NAN).is_nan());
        assert_eq!((sqrt_grad(0.0, 0.0), sqrt_grad(3.0, 0.0), sqrt_grad(3.0, 1.5)), (0.0, 0.0, 1.0));
    }
}
