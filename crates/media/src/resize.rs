//! Pillow's resampling, equal to it in every value.
//!
//! A resize is two passes of weighted sums, one along the rows and one along the columns, with an 8-bit picture between
//! them. Weights are computed in float64 and rounded to integers of 22 bits, and their products are summed in 32 bits.
//! Models are trained on pictures that Pillow has resized, so a resampler with other rounding feeds them other pixels.
//!
//! Source: `precompute_coeffs`, `normalize_coeffs_8bpc` and `ImagingResampleInner` in Resample.c of Pillow 13.0.

use std::f64::consts::PI;

use crate::{Error, Limits, Picture, Result};

/// Fractional bits of a weight: 32, less 8 for a value, 1 for negative weights and 1 for sums above one.
const WEIGHT_BITS: u32 = 32 - 8 - 2;

/// Weights that are in memory at once: 4 MiB. Only pictures of a few rows or columns with millions of pixels need more.
const MAX_WEIGHTS: usize = 1 << 20;

/// A filter, whose shape gives the weights of neighbouring pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// Pillow's LANCZOS (1), of 3 pixels to each side.
    Lanczos,
    /// Pillow's BILINEAR (2), of 1 pixel to each side.
    Bilinear,
    /// Pillow's BICUBIC (3), of 2 pixels to each side.
    Bicubic,
}

impl Filter {
    /// Pixels to each side that have a weight, when the picture is not made smaller.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// The weight of a pixel at the distance `x`.
    fn weight(self, x: f64) -> f64 {
        let distance = x.abs();
        match self {
            Self::Bilinear if distance < 1.0 => 1.0 - distance,
            Self::Bicubic if distance < 1.0 => {
                ((-0.5 + 2.0) * distance - (-0.5 + 3.0)) * distance * distance + 1.0
            }
            Self::Bicubic if distance < 2.0 => {
                (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5
            }
            // The interval is open at one end, as Pillow's.
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * PI;
    x.sin() / x
}

/// The source pixels of one pixel of the result, and their weights.
struct Taps {
    start: usize,
    weights: Vec<i32>,
}

/// The taps of pixel `index` out of `output`, along a side of `input` pixels.
fn taps(filter: Filter, input: u32, output: u32, index: u32) -> Taps {
    // Pillow keeps the box that it resizes in float32.
    let scale = f64::from(input as f32) / f64::from(output);
    let filter_scale = scale.max(1.0);
    let support = filter.support() * filter_scale;
    let center = (f64::from(index) + 0.5) * scale;
    // A cast to an integer rounds towards zero, and negative numbers become zero.
    let start = (center - support + 0.5) as usize;
    let end = ((center + support + 0.5) as usize).min(input as usize);
    let inverse = 1.0 / filter_scale;
    let weight = |x: usize| filter.weight((x as f64 - center + 0.5) * inverse);
    let mut exact: Vec<f64> = (start..end).map(weight).collect();
    // Added up in order: another order would round otherwise.
    let total = exact.iter().fold(0.0, |total, weight| total + weight);
    if total != 0.0 {
        exact.iter_mut().for_each(|weight| *weight /= total);
    }
    let one = f64::from(1_u32 << WEIGHT_BITS);
    let weights = exact.iter().map(|&weight| {
        let half = if weight < 0.0 { -0.5 } else { 0.5 };
        (half + weight * one) as i32
    });
    Taps { start, weights: weights.collect() }
}

/// The taps of the pixels from `first` on, as many as fit into [`MAX_WEIGHTS`] and at least one.
fn some_taps(filter: Filter, input: u32, output: u32, first: u32) -> Vec<Taps> {
    let mut chunk = Vec::new();
    let mut weights = 0;
    for index in first..output {
        let taps = taps(filter, input, output, index);
        weights += taps.weights.len();
        chunk.push(taps);
        if weights >= MAX_WEIGHTS {
            break;
        }
    }
    chunk
}

/// A sum of weighted values as a value: rounded, since sums begin with a half, and limited to 0 to 255.
fn clip(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Begins each sum, so that dropping the fractional bits rounds.
const HALF: i32 = 1 << (WEIGHT_BITS - 1);

/// Resamples rows: the picture becomes `width` pixels wide.
fn horizontal(source: &Picture, width: u32, filter: Filter, limits: &Limits) -> Result<Picture> {
    let mut result = Picture::black(width, source.height(), limits)?;
    let (from, to) = (source.stride(), result.stride());
    let mut first = 0;
    while first < width {
        let chunk = some_taps(filter, source.width(), width, first);
        let rows = result.rgb_mut().chunks_exact_mut(to);
        for (target, row) in rows.zip(source.rgb().chunks_exact(from)) {
            let pixels = target[first as usize * 3..].chunks_exact_mut(3);
            for (pixel, taps) in pixels.zip(&chunk) {
                let mut sums = [HALF; 3];
                let neighbours = row[taps.start * 3..].chunks_exact(3);
                for (neighbour, &weight) in neighbours.zip(&taps.weights) {
                    for (sum, &value) in sums.iter_mut().zip(neighbour) {
                        *sum = sum.wrapping_add(i32::from(value).wrapping_mul(weight));
                    }
                }
                for (value, sum) in pixel.iter_mut().zip(sums) {
                    *value = clip(sum);
                }
            }
        }
        first += chunk.len() as u32;
    }
    Ok(result)
}

/// Resamples columns: the picture becomes `height` pixels high.
fn vertical(source: &Picture, height: u32, filter: Filter, limits: &Limits) -> Result<Picture> {
    let mut result = Picture::black(source.width(), height, limits)?;
    let stride = source.stride();
    // Whole rows are added at once, which the compiler turns into vector instructions.
    let mut sums = vec![HALF; stride];
    for (index, target) in (0..).zip(result.rgb_mut().chunks_exact_mut(stride)) {
        let taps = taps(filter, source.height(), height, index);
        let rows = source.rgb()[taps.start * stride..].chunks_exact(stride);
        sums.fill(HALF);
        for (row, &weight) in rows.zip(&taps.weights) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum = sum.wrapping_add(i32::from(value).wrapping_mul(weight));
            }
        }
        for (value, &sum) in target.iter_mut().zip(&sums) {
            *value = clip(sum);
        }
    }
    Ok(result)
}

/// Resizes a picture to `width` x `height` pixels, as Pillow's `Image.resize` does.
///
/// A side that keeps its length has no pass. The rows come first, unless the height shrinks by more than twice the pixels
/// that the width does. The order matters, because the picture between the passes is rounded to 8 bits.
///
/// # Errors
/// [`Error::NoPixels`] or [`Error::TooManyPixels`]: the result would have no pixels, or more than `limits` allow.
pub fn resize(
    picture: &Picture,
    (width, height): (u32, u32),
    filter: Filter,
    limits: &Limits,
) -> Result<Picture, Error> {
    limits.check_size(width.into(), height.into())?;
    let shrink = |from: u32, to: u32| i64::from(from) - i64::from(to);
    let fewer_rows = shrink(picture.height(), height);
    let is_vertical_first = fewer_rows > 0 && fewer_rows > 2 * shrink(picture.width(), width);
    let mut result = None;
    for is_vertical in [is_vertical_first, !is_vertical_first] {
        let source = result.as_ref().unwrap_or(picture);
        if is_vertical && height != source.height() {
            result = Some(vertical(source, height, filter, limits)?);
        } else if !is_vertical && width != source.width() {
            result = Some(horizontal(source, width, filter, limits)?);
        }
    }
    Ok(result.unwrap_or_else(|| picture.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 255 times the sum of all weights' sizes must fit into 31 bits, also at the edges, where few weights are left.
    #[test]
    fn sums_fit_into_32_bits() {
        for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
            for input in 1..40 {
                for output in 1..60 {
                    for index in 0..output {
                        let taps = taps(filter, input, output, index);
                        let sizes = taps.weights.iter().map(|w| i64::from(w.abs()));
                        let most = 255 * sizes.sum::<i64>() + i64::from(HALF);
                        assert!(most < 1 << 31, "{filter:?} {input} {output} {index}: {most}");
                    }
                }
            }
        }
    }

    #[test]
    fn long_rows_are_resampled_in_chunks() {
        let limits = Limits::default();
        let rgb = (0..3_000_000).map(|i| (i / 3 / 4_000) as u8).collect();
        let long = Picture::new(1_000_000, 1, rgb).unwrap();
        let whole = resize(&long, (10, 1), Filter::Lanczos, &limits).unwrap();
        let levels: Vec<u8> = whole.rgb().chunks(3).map(|pixel| pixel[0]).collect();
        assert!(levels.is_sorted() && levels[9] > 230, "{levels:?}");
    }

    #[test]
    fn a_result_without_pixels_is_refused() {
        let one = Picture::new(1, 1, vec![1, 2, 3]).unwrap();
        let limits = Limits::default();
        assert!(resize(&one, (0, 5), Filter::Bicubic, &limits).is_err());
        assert!(resize(&one, (70_000, 70_000), Filter::Bicubic, &limits).is_err());
        let many = resize(&one, (3, 2), Filter::Bicubic, &limits).unwrap();
        assert_eq!(many.rgb(), [1, 2, 3].repeat(6));
    }
}
