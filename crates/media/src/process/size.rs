//! The size that a picture is resized to, for each family, in the arithmetic of Python.

use super::Sizing;
use crate::{Error, Result};

/// Longest ratio of two sides for Qwen2-VL and its successors.
const MAX_RATIO: f64 = 200.0;

/// Width and height in pixels after a resize.
///
/// # Errors
/// [`Error::Shape`].
pub(super) fn resized(sizing: &Sizing, width: u32, height: u32) -> Result<(u32, u32)> {
    match *sizing {
        Sizing::Fixed { height, width } => Ok((width, height)),
        Sizing::Within { height: most_height, width: most_width, patch_height, patch_width } => {
            let ratio = (f64::from(height) / f64::from(most_height))
                .max(f64::from(width) / f64::from(most_width));
            let side = |side: u32, patch: u32| {
                let shrunk =
                    if ratio > 1.0 { (f64::from(side) / ratio).floor() as u32 } else { side };
                shrunk.div_ceil(patch) * patch
            };
            let size = (side(width, patch_width), side(height, patch_height));
            // A long and narrow picture would have no pixels left across.
            let rule =
                "the model makes the longer side shorter, and nothing is left of the other one";
            if size.0 == 0 || size.1 == 0 {
                Err(Error::Shape { width, height, rule })
            } else {
                Ok(size)
            }
        }
        Sizing::Area { factor, min, max } => smart_resize((width, height), factor, (min, max)),
    }
}

/// Multiples of `factor`, with an area within the bounds, and about the same ratio.
///
/// Source: `smart_resize` in transformers' image_processing_pil_qwen2_vl.py.
fn smart_resize(
    (width, height): (u32, u32),
    factor: u32,
    (min, max): (u64, u64),
) -> Result<(u32, u32)> {
    let sides = (f64::from(width), f64::from(height));
    if sides.0.max(sides.1) / sides.0.min(sides.1) > MAX_RATIO {
        let rule = "the model takes sides that differ by a factor of at most 200";
        return Err(Error::Shape { width, height, rule });
    }
    let factor = f64::from(factor);
    // Python rounds halves to the even number.
    let rounded = |side: f64| (side / factor).round_ties_even() * factor;
    let size = (rounded(sides.0), rounded(sides.1));
    let (min, max) = (min as f64, max as f64);
    let size = if size.0 * size.1 > max {
        let beta = (sides.0 * sides.1 / max).sqrt();
        let shrunk = |side: f64| ((side / beta / factor).floor() * factor).max(factor);
        (shrunk(sides.0), shrunk(sides.1))
    } else if size.0 * size.1 < min {
        let beta = (min / (sides.0 * sides.1)).sqrt();
        let grown = |side: f64| (side * beta / factor).ceil() * factor;
        (grown(sides.0), grown(sides.1))
    } else {
        size
    };
    Ok((size.0 as u32, size.1 as u32))
}

/// Number of pixels that no resized picture exceeds.
pub(super) fn most_pixels(sizing: &Sizing) -> u64 {
    match *sizing {
        Sizing::Fixed { width, height } => u64::from(width) * u64::from(height),
        Sizing::Within { width, height, patch_width, patch_height } => {
            let side = |side: u32, patch: u32| u64::from(side.div_ceil(patch)) * u64::from(patch);
            side(width, patch_width) * side(height, patch_height)
        }
        Sizing::Area { factor, min, max } => {
            let factor = f64::from(factor);
            // The longer side of an area, beside the shortest one that is allowed.
            let longer = |area: f64| (area * MAX_RATIO).sqrt();
            // A long picture that is too large keeps one `factor` across.
            let shrunk = factor * longer(max as f64);
            // A picture that is too small may grow by almost one `factor` a side beyond the lower bound.
            let grown = (longer(min as f64) + factor) * ((min as f64 / MAX_RATIO).sqrt() + factor);
            max.max(shrunk.ceil() as u64).max(grown.ceil() as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `smart_resize` of transformers 5.23 with Qwen2.5-VL's settings.
    #[test]
    fn areas_stay_within_their_bounds() {
        let sizing = Sizing::Area { factor: 28, min: 3_136, max: 12_845_056 };
        for ((width, height), size) in [
            ((1, 1), (56, 56)),
            ((42, 14), (112, 56)),
            ((70, 98), (56, 112)),
            ((200, 1), (812, 28)),
            ((640, 480), (644, 476)),
            ((8_000, 8_000), (3_584, 3_584)),
        ] {
            assert_eq!(resized(&sizing, width, height), Ok(size), "{width} x {height}");
        }
        assert!(resized(&sizing, 201, 1).is_err());
    }

    #[test]
    fn narrow_pictures_are_refused_where_nothing_is_left() {
        let sizing =
            Sizing::Within { height: 1_540, width: 1_540, patch_height: 28, patch_width: 28 };
        assert_eq!(resized(&sizing, 1, 1), Ok((28, 28)));
        assert_eq!(resized(&sizing, 3_080, 2), Ok((1_540, 28)));
        assert!(resized(&sizing, 3_080, 1).is_err());
    }
}
