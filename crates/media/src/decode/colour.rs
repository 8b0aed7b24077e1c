//! Colour conversions, equal to those of Pillow's `convert("RGB")`.

/// A table of colours, by index.
pub(super) struct Palette([[u8; 3]; 256]);

impl Palette {
    /// A palette of `rgb` triples; indices without a triple are black, as in Pillow.
    pub(super) fn new(rgb: &[u8]) -> Self {
        let mut colours = [[0; 3]; 256];
        for (colour, triple) in colours.iter_mut().zip(rgb.chunks_exact(3)) {
            colour.copy_from_slice(triple);
        }
        Self(colours)
    }

    /// A palette in which each index is its own grey.
    pub(super) fn grey() -> Self {
        Self(std::array::from_fn(|index| [index as u8; 3]))
    }

    pub(super) fn colour(&self, index: u8) -> [u8; 3] {
        self.0[usize::from(index)]
    }
}

/// `a * b / 255`, rounded as Pillow's `MULDIV255` does.
fn multiply(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    (((product >> 8) + product) >> 8) as u8
}

/// RGB from the four values that a CMYK JPEG stores, which are inverted by Adobe's convention.
///
/// Source: `cmyk2rgb` in Pillow's Convert.c, after the raw mode `CMYK;I`.
pub(super) fn inverted_cmyk([c, m, y, k]: [u8; 4]) -> [u8; 3] {
    [c, m, y].map(|ink| k.saturating_sub(multiply(255 - ink, k)))
}

/// RGB from YCbCr.
///
/// Source: `ycc_rgb_convert` in libjpeg's jdcolor.c.
pub(super) fn rgb_of_ycbcr([luma, blue, red]: [u8; 3]) -> [u8; 3] {
    let (luma, blue, red) = (i32::from(luma), i32::from(blue) - 128, i32::from(red) - 128);
    // The factors 1.402, 0.344136, 0.714136 and 1.772 with 16 fractional bits.
    let round = |sum: i32| (sum + (1 << 15)) >> 16;
    let rgb = [
        luma + round(91_881 * red),
        luma + round(-22_554 * blue - 46_802 * red),
        luma + round(116_130 * blue),
    ];
    rgb.map(|value| value.clamp(0, 255) as u8)
}

/// CMYK from YCCK, both as a JPEG stores them.
///
/// Source: `ycck_cmyk_convert` in libjpeg's jdcolor.c.
pub(super) fn cmyk_of_ycck([luma, blue, red, k]: [u8; 4]) -> [u8; 4] {
    let [r, g, b] = rgb_of_ycbcr([luma, blue, red]);
    [255 - r, 255 - g, 255 - b, k]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_rounded() {
        for (a, b, product) in [(255, 255, 255), (255, 7, 7), (128, 1, 1), (127, 1, 0), (0, 9, 0)] {
            assert_eq!(multiply(a, b), product, "{a} * {b}");
        }
    }

    #[test]
    fn indices_beyond_a_palette_are_black() {
        let palette = Palette::new(&[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(
            [0, 1, 2, 255].map(|index| palette.colour(index))[1..],
            [[4, 5, 6], [0; 3], [0; 3]]
        );
    }

    #[test]
    fn neutral_chroma_is_grey() {
        assert_eq!(rgb_of_ycbcr([77, 128, 128]), [77; 3]);
        assert_eq!(cmyk_of_ycck([10, 128, 128, 9]), [245, 245, 245, 9]);
        assert_eq!(inverted_cmyk([255, 255, 255, 255]), [255; 3]);
        assert_eq!(inverted_cmyk([9, 99, 200, 0]), [0; 3]);
    }
}
