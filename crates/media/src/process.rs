//! From a decoded picture to the values that a vision tower reads, equal to transformers' processors with `backend="pil"`.

mod settings;
mod size;

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::resize::{Filter, resize};
use crate::{ImageDigest, Limits, Picture, Result};

/// Longest side of a picture of low detail, in pixels.
const LOW_DETAIL_SIDE: u32 = 512;

/// A family of image processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `Gemma3ImageProcessor`: one size for all pictures.
    Gemma3,
    /// `PixtralImageProcessor`, also of Mistral 3: the shape is kept, both sides are multiples of a patch.
    Pixtral,
    /// `Qwen2VLImageProcessor`, also of Qwen2.5-VL, Qwen3-VL and Qwen3.5: the area is bounded, values are in patches.
    Qwen2Vl,
}

/// A client's demand for resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Detail {
    /// The processor's own size: `auto` or `high`.
    #[default]
    Full,
    /// At most 512 x 512 pixels, before the processor: `low`.
    Low,
}

impl FromStr for Detail {
    type Err = ();

    /// Reads `auto`, `high` or `low`; the error of another word is for the caller to phrase.
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" | "high" => Ok(Self::Full),
            "low" => Ok(Self::Low),
            _ => Err(()),
        }
    }
}

/// Order of the values of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// `[3, height, width]`.
    Channels,
    /// `[rows * columns, 3 * temporal * patch * patch]`, where `rows` and `columns` count patches. Patches of one cell of the
    /// merger follow each other: `[rows / merge, columns / merge, merge, merge]`.
    Patches {
        /// Side of a patch in pixels.
        patch: u32,
        /// Side of a cell of the merger in patches.
        merge: u32,
        /// Number of frames in a patch; a still image repeats its one frame.
        temporal: u32,
    },
}

/// Rescaling and normalization of 8-bit values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Normalize {
    scale: f64,
    mean: [f32; 3],
    std: [f32; 3],
}

impl Normalize {
    /// The float32 value for each 8-bit value of each channel, `[3][256]`.
    ///
    /// Source: `rescale` in float64 and `normalize` in float32, in transformers' image_transforms.py.
    fn table(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|channel| {
            std::array::from_fn(|value| {
                let rescaled = (value as f64 * self.scale) as f32;
                (rescaled - self.mean[channel]) / self.std[channel]
            })
        })
    }
}

/// Rule for the size of a processed picture.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sizing {
    /// Always this size, in pixels.
    Fixed { height: u32, width: u32 },
    /// Within a box, and then up to multiples of a patch, in pixels.
    Within { height: u32, width: u32, patch_height: u32, patch_width: u32 },
    /// Multiples of `factor` pixels, with an area between two bounds in pixels.
    Area { factor: u32, min: u64, max: u64 },
}

/// An image processor: the settings of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    family: Family,
    filter: Filter,
    sizing: Sizing,
    normalize: Normalize,
    layout: Layout,
}

impl Processor {
    /// Reads a model's settings from the contents of its `preprocessor_config.json` and `processor_config.json`.
    ///
    /// Settings under `image_processor` in `processor_config.json` go first, as in transformers.
    ///
    /// # Errors
    /// [`Error::NoSettings`](crate::Error::NoSettings), or [`Error::Setting`](crate::Error::Setting) for a key that is unknown
    /// or has a value that is not supported. `do_pan_and_scan` must be false or absent, so the other keys of Gemma 3's
    /// pan-and-scan have no effect.
    pub fn read(
        family: Family,
        preprocessor_config: Option<&[u8]>,
        processor_config: Option<&[u8]>,
    ) -> Result<Self> {
        settings::read(family, preprocessor_config, processor_config)
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Order of the values that it makes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Number of pixels that no resized picture exceeds.
    pub fn most_pixels(&self) -> u64 {
        size::most_pixels(&self.sizing)
    }

    /// Width and height in pixels that a picture of `width` x `height` pixels is resized to.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape): the sides differ too much.
    pub fn size(&self, width: u32, height: u32, detail: Detail) -> Result<(u32, u32)> {
        let (width, height) = bounded(width, height, detail);
        size::resized(&self.sizing, width, height)
    }

    /// Resizes a picture. The result keeps 8 bits a value, which is a quarter of what a tower reads, or less.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape): the sides differ too much for this model.
    /// [`Error::TooManyPixels`](crate::Error::TooManyPixels): the result would be larger than `limits` allow.
    pub fn process(&self, picture: &Picture, detail: Detail, limits: &Limits) -> Result<Processed> {
        let (width, height) = (picture.width(), picture.height());
        let size = self.size(width, height, detail)?;
        let bound = bounded(width, height, detail);
        let smaller = match detail {
            Detail::Low if bound != (width, height) => {
                Some(resize(picture, bound, self.filter, limits)?)
            }
            _ => None,
        };
        let pixels = resize(smaller.as_ref().unwrap_or(picture), size, self.filter, limits)?;
        let digest = self.digest(picture, detail);
        Ok(Processed { pixels, normalize: self.normalize, layout: self.layout, digest })
    }

    /// The digest of a picture as this processor sees it.
    fn digest(&self, picture: &Picture, detail: Detail) -> ImageDigest {
        let mut hasher = Sha256::new();
        // Every part has a fixed length, but for the pixels at the end, whose number the sizes give.
        hasher.update(b"candlepower image 1\0");
        hasher.update(picture.width().to_le_bytes());
        hasher.update(picture.height().to_le_bytes());
        hasher.update([self.family as u8, self.filter as u8, detail as u8]);
        let (kind, numbers) = match self.sizing {
            Sizing::Fixed { height, width } => (0, [height, width, 0, 0].map(u64::from)),
            Sizing::Within { height, width, patch_height, patch_width } => {
                (1, [height, width, patch_height, patch_width].map(u64::from))
            }
            Sizing::Area { factor, min, max } => (2, [factor.into(), min, max, 0]),
        };
        hasher.update([kind]);
        numbers.iter().for_each(|number| hasher.update(number.to_le_bytes()));
        let layout = match self.layout {
            Layout::Channels => [0; 3],
            Layout::Patches { patch, merge, temporal } => [patch, merge, temporal],
        };
        layout.iter().for_each(|number| hasher.update(number.to_le_bytes()));
        hasher.update(self.normalize.scale.to_bits().to_le_bytes());
        for value in self.normalize.mean.iter().chain(&self.normalize.std) {
            hasher.update(value.to_bits().to_le_bytes());
        }
        hasher.update(picture.rgb());
        ImageDigest::new(hasher.finalize().into())
    }
}

/// Width and height after the bound of low detail.
fn bounded(width: u32, height: u32, detail: Detail) -> (u32, u32) {
    let longest = width.max(height);
    if detail == Detail::Full || longest <= LOW_DETAIL_SIDE {
        return (width, height);
    }
    let (longest, limit) = (u64::from(longest), u64::from(LOW_DETAIL_SIDE));
    // Rounded to the nearest pixel; the shorter side keeps at least one.
    let side = |side: u32| ((u64::from(side) * limit + longest / 2) / longest).max(1) as u32;
    (side(width), side(height))
}

/// A resized picture that waits for its tower: 8 bits a value. It can be sent to other processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Processed {
    pixels: Picture,
    normalize: Normalize,
    layout: Layout,
    digest: ImageDigest,
}

impl Processed {
    /// The resized picture.
    pub fn pixels(&self) -> &Picture {
        &self.pixels
    }

    /// Order of the values.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The digest over the decoded picture, the processor's settings and the detail.
    pub fn digest(&self) -> ImageDigest {
        self.digest
    }

    /// Bytes that the picture takes while it waits.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.pixels.rgb().len()
    }

    /// Bytes that [`Self::values`] will take.
    pub fn value_bytes(&self) -> usize {
        let frames = match self.layout {
            Layout::Channels => 1,
            Layout::Patches { temporal, .. } => temporal as usize,
        };
        self.pixels.rgb().len() * frames * size_of::<f32>()
    }

    /// Rows and columns of patches, where the values are in patches: transformers' `image_grid_thw` without its one frame.
    pub fn grid(&self) -> Option<(u32, u32)> {
        match self.layout {
            Layout::Channels => None,
            Layout::Patches { patch, .. } => {
                Some((self.pixels.height() / patch, self.pixels.width() / patch))
            }
        }
    }

    /// The values that a tower reads: `pixel_values` of transformers, in the order of [`Self::layout`].
    pub fn values(&self) -> Vec<f32> {
        let table = self.normalize.table();
        match self.layout {
            Layout::Channels => {
                let mut values = Vec::with_capacity(self.pixels.rgb().len());
                for (channel, table) in table.iter().enumerate() {
                    let bytes = self.pixels.rgb().iter().skip(channel).step_by(3);
                    values.extend(bytes.map(|&byte| table[usize::from(byte)]));
                }
                values
            }
            Layout::Patches { patch, merge, temporal } => {
                let mut values = Vec::with_capacity(self.value_bytes() / size_of::<f32>());
                for (top, left) in self.patches(patch, merge) {
                    for (channel, table) in table.iter().enumerate() {
                        let start = values.len();
                        self.push_patch(&mut values, (top, left, patch), (channel, table));
                        let frame = start..values.len();
                        (1..temporal).for_each(|_| values.extend_from_within(frame.clone()));
                    }
                }
                values
            }
        }
    }

    /// The upper left pixels of all patches, as row and column, in the merger's order.
    fn patches(&self, patch: u32, merge: u32) -> impl Iterator<Item = (usize, usize)> {
        let cell = patch * merge;
        let (rows, columns) = (self.pixels.height() / cell, self.pixels.width() / cell);
        let cells = (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)));
        cells.flat_map(move |(row, column)| {
            (0..merge * merge).map(move |index| {
                let (inner_row, inner_column) = (index / merge, index % merge);
                let top = (row * merge + inner_row) * patch;
                let left = (column * merge + inner_column) * patch;
                (top as usize, left as usize)
            })
        })
    }

    /// Adds one channel of one patch, row by row.
    fn push_patch(
        &self,
        values: &mut Vec<f32>,
        (top, left, patch): (usize, usize, u32),
        (channel, table): (usize, &[f32; 256]),
    ) {
        let stride = self.pixels.stride();
        for row in top..top + patch as usize {
            let start = row * stride + left * 3;
            let bytes = &self.pixels.rgb()[start..start + patch as usize * 3];
            let of_channel = bytes.iter().skip(channel).step_by(3);
            values.extend(of_channel.map(|&byte| table[usize::from(byte)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_detail_bounds_the_longest_side() {
        for ((width, height), bound) in [
            ((512, 512), (512, 512)),
            ((513, 512), (512, 511)),
            ((10_000, 1), (512, 1)),
            ((3, 64_000_000), (1, 512)),
            ((1_000, 2_000), (256, 512)),
        ] {
            assert_eq!(bounded(width, height, Detail::Low), bound);
            assert_eq!(bounded(width, height, Detail::Full), (width, height));
        }
    }

    #[test]
    fn details_are_three_words() {
        assert_eq!("auto".parse(), Ok(Detail::Full));
        assert_eq!("high".parse(), Ok(Detail::Full));
        assert_eq!("low".parse(), Ok(Detail::Low));
        assert_eq!("original".parse::<Detail>(), Err(()));
    }
}
