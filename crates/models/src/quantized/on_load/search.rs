//! Scales and offsets of groups of weights, by least squares over several choices of quantized values.
//!
//! Scale and offset determine the quantized values. Another scale and offset fit these better: those of a weighted linear
//! regression. Several widths of the first steps are tried, somewhat more and less than the range divided by the largest value.
//! Large weights count more. ggml makes its K-quants on the same grounds.

use half::bf16;

/// Widths that are tried, in steps that the range has more, or less, than there are.
const WIDTHS: [f32; 7] = [-1.6, -1.2, -0.8, -0.4, 0.0, 0.4, 0.8];

/// The most weights of a group.
const GROUP: usize = 32;

/// Sums that are added up beside one another, as vectors of a processor are.
const LANES: usize = 8;

/// A number of f32 that leaves no bits for fractions: what is added to it, and taken from it again, is rounded.
const ROUNDS: f32 = 12_582_912.0;

/// The largest value that multiplies the scale or the offset of a block: six bits.
const MAX_SUB_SCALE: f32 = 63.0;

/// Writes a group's quantized values, from 0 to `most`; returns scale and offset. A weight is `scale * value + offset`.
pub(super) fn group(values: &[f32], most: u8, quants: &mut [u8]) -> [f32; 2] {
    let [scale, min] = fitted(values, f32::from(most), Floor::Any).map(rounded);
    write_quants(values, scale, min, most, quants);
    [scale, min]
}

/// Like [`group`], for a super-block of groups of `group` weights, with each group's sub-scale and sub-offset. The offset is
/// zero or less.
pub(super) fn block(
    values: &[f32],
    group: usize,
    most: u8,
    quants: &mut [u8],
    sub_scales: &mut Vec<[i8; 2]>,
) -> [f32; 2] {
    let groups = values.chunks(group);
    let factors: Vec<[f32; 2]> =
        groups.map(|values| fitted(values, f32::from(most), Floor::ZeroOrLess)).collect();
    let largest = |which: usize| factors.iter().fold(0f32, |most, f| most.max(f[which].abs()));
    let scale = rounded(largest(0) / MAX_SUB_SCALE);
    let min = -rounded(largest(1) / MAX_SUB_SCALE);
    let multiple = |of: f32, unit: f32| {
        let times = if unit == 0.0 { 0.0 } else { of / unit };
        times.round().clamp(0.0, MAX_SUB_SCALE)
    };
    for ((values, quants), factors) in
        values.chunks(group).zip(quants.chunks_mut(group)).zip(&factors)
    {
        let times = [multiple(factors[0], scale), multiple(factors[1], min)];
        write_quants(values, scale * times[0], min * times[1], most, quants);
        sub_scales.push(times.map(|times| times as i8));
    }
    [scale, min]
}

/// The range of an offset.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Floor {
    Any,
    ZeroOrLess,
}

/// Scale and offset that lose least of a group, among those that are tried. The scale is zero or more.
fn fitted(values: &[f32], most: f32, floor: Floor) -> [f32; 2] {
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut low = values.iter().copied().fold(f32::INFINITY, f32::min);
    if floor == Floor::ZeroOrLess {
        low = low.min(0.0);
    }
    let range = high - low;
    // Also where a value is NaN. The caller refuses a scale that
    // is not finite, so a NaN or an infinity is passed on.
    if !(range > 0.0 && range.is_finite()) {
        return [if range == 0.0 { 0.0 } else { range }, low];
    }
    let sums = Sums::of(values);
    let mut best = [range / most, low];
    let mut least = f32::INFINITY;
    for width in WIDTHS {
        let quants = sums.quant_sums(low, (most + width) / range, most);
        let Some(found) = sums.regression(quants, floor) else { continue };
        let lost = sums.lost(quants, found);
        if lost < least {
            (best, least) = (found, lost);
        }
    }
    best
}

/// A group with its weights, and weighted sums over it.
struct Sums {
    /// Zeros behind the last one, which weigh nothing.
    values: [f32; GROUP],
    /// A value's size, and the root of the mean square.
    of_each: [f32; GROUP],
    weights: f32,
    sum: f32,
    squares: f32,
}

/// Weighted sums of the quantized values, of their squares, and of them times the weights.
type QuantSums = [f32; 3];

impl Sums {
    fn of(group: &[f32]) -> Self {
        let mut values = [0.0; GROUP];
        values[..group.len()].copy_from_slice(group);
        let [squares] = sums(&values, &values, |x, _| [x * x]);
        // The root of the mean square keeps small weights from counting for nothing.
        let base = (squares / group.len() as f32).sqrt();
        let mut of_each = [0.0; GROUP];
        for (weight, value) in of_each.iter_mut().zip(group) {
            *weight = base + value.abs();
        }
        let [weights, sum, squares] =
            sums(&values, &of_each, |x, weight| [weight, weight * x, weight * x * x]);
        Self { values, of_each, weights, sum, squares }
    }

    fn quant_sums(&self, low: f32, inverse: f32, most: f32) -> QuantSums {
        sums(&self.values, &self.of_each, |x, weight| {
            let quant = ((x - low) * inverse).max(0.0).min(most);
            let quant = (quant + ROUNDS) - ROUNDS;
            [weight * quant, weight * quant * quant, weight * quant * x]
        })
    }

    /// Scale and offset by which the quantized values lose least.
    fn regression(&self, [quants, squares, products]: QuantSums, floor: Floor) -> Option<[f32; 2]> {
        let divisor = self.weights * squares - quants * quants;
        let scale = (self.weights * products - self.sum * quants) / divisor;
        let min = (squares * self.sum - quants * products) / divisor;
        let found = match floor {
            // With an offset of zero the best scale is that of a regression through the origin.
            Floor::ZeroOrLess if min > 0.0 => [products / squares, 0.0],
            _ => [scale, min],
        };
        // The divisor is zero where all quantized values are the same.
        (divisor > 0.0 && found[0] >= 0.0).then_some(found)
    }

    /// The loss: the weighted squares of the differences.
    fn lost(&self, [quants, squares, products]: QuantSums, [scale, min]: [f32; 2]) -> f32 {
        self.squares - 2.0 * (scale * products + min * self.sum)
            + scale * scale * squares
            + 2.0 * scale * min * quants
            + min * min * self.weights
    }
}

/// The sums of `of` over all weights of a group, with their importance.
#[inline(always)]
fn sums<const N: usize>(
    values: &[f32; GROUP],
    weights: &[f32; GROUP],
    of: impl Fn(f32, f32) -> [f32; N],
) -> [f32; N] {
    // Lanes are summed apart, so the compiler can use vectors; the
    // order is fixed, so results do not depend on the machine.
    let mut lanes = [[0.0; LANES]; N];
    for (values, weights) in values.chunks_exact(LANES).zip(weights.chunks_exact(LANES)) {
        let mut terms = [[0.0; LANES]; N];
        for lane in 0..LANES {
            let of_lane = of(values[lane], weights[lane]);
            for which in 0..N {
                terms[which][lane] = of_lane[which];
            }
        }
        for which in 0..N {
            for lane in 0..LANES {
                lanes[which][lane] += terms[which][lane];
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

fn write_quants(values: &[f32], scale: f32, min: f32, most: u8, quants: &mut [u8]) {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (value, quant) in values.iter().zip(quants) {
        let exact = ((value - min) * inverse).max(0.0).min(f32::from(most));
        // The value is zero or more, so adding a half and cutting off rounds it.
        *quant = (exact + 0.5) as i32 as u8;
    }
}

/// To the sixteen bits that are kept of it: of its range nothing is lost.
fn rounded(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}
