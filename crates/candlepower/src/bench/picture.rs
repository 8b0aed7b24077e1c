//! Random pictures for requests with images: PNG files in `data:` URLs.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// Side of a square of one colour, in pixels. Squares keep the files small, and are nothing to a vision tower.
const SQUARE: u32 = 16;
/// Maximum of pixels. Servers accept no more.
const MAX_PIXELS: u64 = 64_000_000;

/// Width and height of a picture in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PictureSize {
    width: u32,
    height: u32,
}

impl FromStr for PictureSize {
    type Err = String;

    /// Reads `896x896`, or `896` for a square.
    fn from_str(text: &str) -> Result<Self, String> {
        let (width, height) = text.split_once('x').unwrap_or((text, text));
        let side = |text: &str| text.parse().ok().filter(|side: &u32| *side > 0);
        let size = side(width).zip(side(height));
        let size = size.filter(|(w, h)| u64::from(*w) * u64::from(*h) <= MAX_PIXELS);
        let (width, height) =
            size.ok_or("a width and a height in pixels are needed, such as 896x896")?;
        Ok(Self { width, height })
    }
}

impl fmt::Display for PictureSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

impl PictureSize {
    /// A random picture as a URL. The same state of `rng` gives the same picture.
    pub(super) fn data_url(self, rng: &mut fastrand::Rng) -> String {
        let Self { width, height } = self;
        let columns = width.div_ceil(SQUARE) as usize;
        let mut pixels = Vec::with_capacity(width as usize * height as usize * 3);
        let mut colours: Vec<[u8; 3]> = Vec::new();
        for row in 0..height {
            if row % SQUARE == 0 {
                colours = (0..columns).map(|_| [rng.u8(..), rng.u8(..), rng.u8(..)]).collect();
            }
            pixels.extend((0..width).flat_map(|column| colours[(column / SQUARE) as usize]));
        }
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        // A Vec takes all bytes, and the pixels fit the size.
        let written = encoder.write_header().and_then(|mut file| file.write_image_data(&pixels));
        written.expect("a picture can be written to memory");
        format!("data:image/png;base64,{}", BASE64_STANDARD.encode(&file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_png_files_of_their_size() {
        let size: PictureSize = "50x33".parse().unwrap();
        let url = |seed| size.data_url(&mut fastrand::Rng::with_seed(seed));
        assert_eq!(url(1), url(1));
        assert_ne!(url(1), url(2));
        let base64 = url(1).strip_prefix("data:image/png;base64,").unwrap().to_owned();
        let file = BASE64_STANDARD.decode(base64).unwrap();
        let reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        assert_eq!(reader.info().size(), (50, 33));
    }

    #[test]
    fn sizes_are_two_sides_or_one() {
        let size = |width, height| Ok::<_, String>(PictureSize { width, height });
        assert_eq!("896x640".parse(), size(896, 640));
        assert_eq!("896".parse(), size(896, 896));
        assert_eq!(size(896, 640).unwrap().to_string(), "896x640");
        for wrong in ["", "0", "5x", "x5", "5x0", "-1x5", "9000x9000", "a"] {
            assert!(wrong.parse::<PictureSize>().is_err(), "{wrong}");
        }
    }
}
