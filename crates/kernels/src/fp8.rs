//! Rounding of activations to FP8 (e4m3) before a product with FP8 weights (W8A8).
//!
//! A scale is the largest magnitude divided by 448, the largest value of e4m3. A rounded activation is
//! `e4m3(x / scale) * scale`, where the division is that of f32, and `e4m3` rounds to nearest, ties to even, and limits
//! magnitudes to 448. The product is that of [`linear_reference`](crate::linear_reference) with rounded activations and
//! dequantized weights.
//!
//! Source: transformers' FP8 kernels (`act_quant`) for scales of groups; compressed-tensors' `calculate_qparams` and
//! `quantize` for scales of rows and fixed scales.

use std::borrow::Cow;

use candlepower_layout::ActivationScales;
use rayon::prelude::*;

/// The largest value of e4m3.
pub const E4M3_MAX: f32 = 448.0;

/// Smallest number of activations that several threads round.
const PARALLEL_VALUES: usize = 1 << 15;

/// How the activations of a product are rounded to FP8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fp8Rounding {
    /// The scales.
    pub scales: ActivationScales,
    /// The scale of [`ActivationScales::Fixed`]; not read otherwise.
    pub fixed: f32,
}

impl Fp8Rounding {
    /// The scale of some activations that share one. It is NaN if one of them is not finite, unless the scale is fixed.
    #[must_use]
    pub fn scale_of(&self, values: &[f32]) -> f32 {
        if self.scales == ActivationScales::Fixed {
            return self.fixed;
        }
        let mut largest = 0f32;
        let mut is_finite = true;
        for value in values {
            largest = largest.max(value.abs());
            is_finite &= value.is_finite();
        }
        let scale = largest / E4M3_MAX;
        match (is_finite, scale == 0.0) {
            (false, _) => f32::NAN,
            // Zeros stay zeros, whatever the scale.
            (true, true) => 1.0,
            (true, false) => scale,
        }
    }

    /// Rounds rows of `k` activations: the reference and, with several threads, the fast path.
    pub fn round_rows(&self, rows: &mut [f32], k: usize) {
        let group = self.scales.group(k);
        let round = |row: &mut [f32]| {
            for values in row.chunks_mut(group) {
                let scale = self.scale_of(values);
                for value in values {
                    *value = e4m3_rounded(*value / scale) * scale;
                }
            }
        };
        match rows.len() < PARALLEL_VALUES {
            true => rows.chunks_mut(k).for_each(round),
            false => rows.par_chunks_mut(k).for_each(round),
        }
    }

    /// The rounding of matrices that multiply the same activations, such as those of all experts: with the largest of their
    /// fixed scales. `None` if activations are not rounded, or not alike.
    #[must_use]
    pub fn common(roundings: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let join = |a: Self, b: Self| {
            (a.scales == b.scales).then(|| Self { fixed: a.fixed.max(b.fixed), ..a })
        };
        let joined = |a: Option<Self>, b: Option<Self>| join(a?, b?);
        roundings.into_iter().reduce(joined).flatten()
    }

    /// Rows of `k` activations after `rounding`, if there is one.
    pub(crate) fn rounded<'a>(rounding: Option<Self>, rows: &'a [f32], k: usize) -> Cow<'a, [f32]> {
        let Some(rounding) = rounding else { return Cow::Borrowed(rows) };
        let mut rounded = rows.to_vec();
        rounding.round_rows(&mut rounded, k);
        Cow::Owned(rounded)
    }
}

/// The value of e4m3 nearest to `value`, ties to even; magnitudes above 448 become 448. NaN stays NaN.
#[must_use]
#[inline]
pub fn e4m3_rounded(value: f32) -> f32 {
    /// Values below have a step of 2^-9 each.
    const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
    const STEPS: f32 = 512.0;
    // Bits of an f32's mantissa that e4m3 lacks.
    const DROPPED: u32 = 20;
    let size = value.abs();
    let rounded = if size < SMALLEST_NORMAL {
        (size * STEPS).round_ties_even() / STEPS
    } else {
        let bits = size.to_bits();
        let half = (1 << (DROPPED - 1)) - 1 + (bits >> DROPPED & 1);
        f32::from_bits((bits + half) >> DROPPED << DROPPED)
    };
    // `min` would make a number of NaN.
    let limited = if rounded > E4M3_MAX { E4M3_MAX } else { rounded };
    if value.is_nan() { value } else { limited.copysign(value) }
}

/// The bits in e4m3 of a value that [`e4m3_rounded`] has returned.
#[must_use]
pub fn e4m3_bits(rounded: f32) -> u8 {
    let sign = if rounded.is_sign_negative() { 0x80 } else { 0 };
    if rounded.is_nan() {
        return sign | 0x7f;
    }
    let size = rounded.abs();
    let bits = if size < 1.0 / 64.0 {
        (size * 512.0) as u32
    } else {
        // The exponent biases of f32 and e4m3 differ by 120.
        (size.to_bits() >> 20) - (120 << 3)
    };
    sign | bits as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight::e4m3_part;

    /// The value of bits in e4m3.
    fn value_of(bits: u8) -> f32 {
        e4m3_part(bits) * 256.0
    }

    #[test]
    fn every_value_of_e4m3_stays_and_has_its_bits() {
        for bits in (0..=255u8).filter(|bits| bits & 0x7f != 0x7f) {
            let value = value_of(bits);
            assert_eq!(e4m3_rounded(value).to_bits(), value.to_bits(), "{bits:#x}");
            assert_eq!(e4m3_bits(value), bits, "{value}");
        }
        assert!(e4m3_rounded(f32::NAN).is_nan());
        assert_eq!((e4m3_bits(f32::NAN), e4m3_bits(-0.0)), (0x7f, 0x80));
        assert_eq!([e4m3_rounded(1e9), e4m3_rounded(f32::NEG_INFINITY)], [448.0, -448.0]);
    }

    #[test]
    fn values_between_two_of_e4m3_become_the_nearer_and_ties_the_even_one() {
        for bits in 0..0x7eu8 {
            let (low, high) = (value_of(bits), value_of(bits + 1));
            let middle = (low + high) / 2.0;
            let even = if bits % 2 == 0 { low } else { high };
            assert_eq!(e4m3_rounded(middle), even, "{middle}");
            assert_eq!(e4m3_rounded(f32::from_bits(middle.to_bits() - 1)), low, "below {middle}");
            assert_eq!(e4m3_rounded(-f32::from_bits(middle.to_bits() + 1)), -high, "{middle}");
        }
    }

    #[test]
    fn scales_are_of_rows_of_groups_or_fixed() {
        let row = [1.0, -3.5, 0.1, 0.0, 0.02, -0.01, 0.0, 0.0];
        let round = |scales, fixed| {
            let mut rounded = row;
            Fp8Rounding { scales, fixed }.round_rows(&mut rounded, 8);
            rounded
        };
        let expected = |scale: f32| row.map(|value| e4m3_rounded(value / scale) * scale);
        assert_eq!(round(ActivationScales::Row, 0.0), expected(3.5 / 448.0));
        assert_eq!(round(ActivationScales::Fixed, 0.25), expected(0.25));
        let grouped = round(ActivationScales::Group(3), 0.0);
        assert_eq!(grouped[..3], expected(3.5 / 448.0)[..3]);
        assert_eq!(grouped[3..6], expected(0.02 / 448.0)[3..6]);
        // The last group has two values, and is zero.
        assert_eq!(grouped[6..], [0.0, 0.0]);
    }

    #[test]
    fn a_row_with_a_value_that_is_not_finite_is_nan() {
        for value in [f32::NAN, f32::INFINITY] {
            let mut rows = [1.0, value, 1.0, 2.0];
            Fp8Rounding { scales: ActivationScales::Row, fixed: 0.0 }.round_rows(&mut rows, 2);
            assert!(rows[0].is_nan() && rows[1].is_nan(), "{rows:?}");
            assert_eq!(rows[2..], [1.0, 2.0]);
        }
    }
}
