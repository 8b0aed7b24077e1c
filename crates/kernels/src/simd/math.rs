//! Elementary functions on sixteen lanes.

use super::Simd;

/// Below this `exp` gives 0 (the result would be subnormal).
const EXP_LOW: f32 = -87.336_54;
/// From about this on `exp` gives infinity.
const EXP_HIGH: f32 = 88.722_84;

/// `e^x` within 2 units in the last place, exactly 1 at 0 and exactly 0 at minus infinity.
///
/// Source: the Cephes library's `expf` (Moshier): `x = n ln 2 + r`, a polynomial in `r`, times `2^n`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let low = s.splat(EXP_LOW);
    // `min` and `max` return their second operand for NaN, so NaN passes in this order of operands.
    let clamped = s.min(s.splat(EXP_HIGH), s.max(low, x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts: the first has few bits, so its products with n are exact.
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let coefficients =
        [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5, 1.0, 1.0];
    let polynomial = horner(s, r, &coefficients);
    s.select_lt(x, low, s.splat(0.0), s.mul(polynomial, s.pow2(n)))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let negated = s.sub(s.splat(0.0), x);
    s.div(s.splat(1.0), s.add(s.splat(1.0), exp(s, negated)))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let negated = s.sub(s.splat(0.0), x);
    s.div(x, s.add(s.splat(1.0), exp(s, negated)))
}

/// The tanh approximation of gelu, `x (1 + tanh u) / 2 = x sigmoid(2 u)` with
/// `u = sqrt(2 / pi) (x + 0.044715 x^3)`: without the cancellation of `1 + tanh u`.
///
/// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const MINUS_TWO_ROOT: f32 = -1.595_769;
    let cubic = s.fma(s.mul(x, x), s.splat(0.044_715), s.splat(1.0));
    let exponent = s.mul(s.mul(x, cubic), s.splat(MINUS_TWO_ROOT));
    s.div(x, s.add(s.splat(1.0), exp(s, exponent)))
}

/// `x Phi(x)`, where `Phi` is the normal distribution function, within 3e-7 of `max(1, |x|)`.
///
/// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26, for
/// `erfc(z) = 2 Phi(-z sqrt 2)`.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let zero = s.splat(0.0);
    let magnitude = s.max(s.sub(zero, x), x);
    let z = s.mul(magnitude, s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = s.div(s.splat(1.0), s.fma(s.splat(0.327_591_1), z, s.splat(1.0)));
    let coefficients = [1.061_405_4, -1.453_152, 1.421_413_8, -0.284_496_72, 0.254_829_6, 0.0];
    let polynomial = horner(s, t, &coefficients);
    let tail = s.mul(s.mul(polynomial, s.splat(0.5)), exp(s, s.mul(s.sub(zero, z), z)));
    s.mul(x, s.select_lt(x, zero, tail, s.sub(s.splat(1.0), tail)))
}

/// `tanh x`.
///
/// Source: the Cephes library's `tanhf` (Moshier): an odd polynomial near zero, else
/// `1 - 2 / (e^(2 |x|) + 1)` with the sign of `x`.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let (zero, one, two) = (s.splat(0.0), s.splat(1.0), s.splat(2.0));
    let magnitude = s.max(s.sub(zero, x), x);
    // For a large `x` the power is infinite and the quotient 0.
    let far = s.sub(one, s.div(two, s.add(exp(s, s.mul(magnitude, two)), one)));
    let far = s.select_lt(x, zero, s.sub(zero, far), far);
    let square = s.mul(x, x);
    let coefficients = [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 0.133_314_42, -0.333_332_8];
    let near = s.fma(s.mul(horner(s, square, &coefficients), square), x, x);
    s.select_lt(magnitude, s.splat(0.625), near, far)
}

/// The polynomial with these coefficients, highest power first.
#[inline(always)]
fn horner<S: Simd>(s: S, x: S::F32, coefficients: &[f32]) -> S::F32 {
    let mut value = s.splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        value = s.fma(value, x, s.splat(*coefficient));
    }
    value
}
