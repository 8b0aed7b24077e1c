//! PNG: all bit depths and colour types, interlaced or not.

use std::borrow::Cow;

use png::{BitDepth, ColorType, DecodingError, Info, InterlaceInfo, Transformations};

use super::Stored;
use super::colour::Palette;
use super::orientation::Orientation;
use super::source::Source;
use crate::{Error, Limits, Picture, Result};

/// Bytes of a text chunk after decompression. Metadata with an orientation is far shorter.
const MAX_TEXT_BYTES: usize = 1 << 20;

pub(super) fn decode(source: Source<'_>, limits: &Limits) -> Result<Stored> {
    let deadline = source.deadline();
    let mut decoder = png::Decoder::new(source);
    // Rows are converted here and not by the crate: it scales 16-bit grey, which Pillow clips.
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(refused)?;
    let (width, height) = (header.width, header.height);
    limits.check_size(width.into(), height.into())?;
    let mut reader = decoder.read_info().map_err(refused)?;
    // The first frame of an animation covers the whole picture, so another size is a contradiction.
    let frame = reader.info().frame_control;
    if frame.is_some_and(|frame| (frame.width, frame.height) != (width, height)) {
        return Err(Error::Damaged);
    }
    let row_to_rgb = RowToRgb::new(reader.info())?;
    let mut picture = Picture::black(width, height, limits)?;
    let stride = picture.stride();
    // Rows of an interlaced picture are shorter, and their pixels lie apart.
    let mut short_row = vec![0; if reader.info().interlaced { stride } else { 0 }];
    let mut start = 0;
    while let Some(row) = reader.next_interlaced_row().map_err(refused)? {
        deadline.check()?;
        if let InterlaceInfo::Adam7(pass) = row.interlace() {
            row_to_rgb.convert(row.data(), &mut short_row);
            png::expand_interlaced_row(picture.rgb_mut(), stride, &short_row, pass, 24);
            continue;
        }
        let target = picture.rgb_mut().get_mut(start..start + stride).ok_or(Error::Damaged)?;
        row_to_rgb.convert(row.data(), target);
        start += stride;
    }
    // Metadata may follow the pixels. A file without its last chunk is a picture nevertheless, as in Pillow.
    let _ = reader.finish();
    Ok(Stored { picture, orientation: orientation(reader.info()) })
}

/// Conversion of stored rows to RGB.
struct RowToRgb {
    depth: BitDepth,
    colour: ColorType,
    palette: Palette,
}

impl RowToRgb {
    fn new(info: &Info<'_>) -> Result<Self> {
        let palette = match (info.color_type, &info.palette) {
            (ColorType::Indexed, None) => return Err(Error::Damaged),
            (ColorType::Indexed, Some(palette)) => Palette::new(palette),
            (_, _) => grey_levels(info.bit_depth),
        };
        Ok(Self { depth: info.bit_depth, colour: info.color_type, palette })
    }

    /// Writes the pixels of `row` to `rgb`; what either has more is left alone.
    fn convert(&self, row: &[u8], rgb: &mut [u8]) {
        let pixels = rgb.chunks_exact_mut(3);
        let channels = self.colour.samples();
        let is_wide = self.depth == BitDepth::Sixteen;
        match self.colour {
            ColorType::Grayscale | ColorType::Indexed if is_wide => {
                for (pixel, value) in pixels.zip(row.chunks_exact(2)) {
                    // Pillow keeps 16-bit grey whole and clips it when it becomes RGB.
                    pixel.fill(if value[0] == 0 { value[1] } else { 255 });
                }
            }
            ColorType::Grayscale | ColorType::Indexed => {
                let bits = self.depth as usize;
                let mask = (1_u16 << bits) - 1;
                let in_byte = 8 / bits;
                for (index, pixel) in pixels.enumerate() {
                    let Some(&byte) = row.get(index / in_byte) else { break };
                    let shift = 8 - bits * (index % in_byte + 1);
                    let value = (u16::from(byte) >> shift) & mask;
                    pixel.copy_from_slice(&self.palette.colour(value as u8));
                }
            }
            ColorType::GrayscaleAlpha | ColorType::Rgb | ColorType::Rgba => {
                // The upper byte of 16 bits is kept, and it comes first.
                let step = if is_wide { 2 } else { 1 };
                let is_grey = self.colour == ColorType::GrayscaleAlpha;
                for (pixel, values) in pixels.zip(row.chunks_exact(channels * step)) {
                    let channel = |index: usize| values[if is_grey { 0 } else { index * step }];
                    pixel.copy_from_slice(&[channel(0), channel(1), channel(2)]);
                }
            }
        }
    }
}

/// The greys of 1 to 8 bits as a palette.
fn grey_levels(depth: BitDepth) -> Palette {
    let most = match depth {
        BitDepth::One => 1,
        BitDepth::Two => 3,
        BitDepth::Four => 15,
        BitDepth::Eight | BitDepth::Sixteen => return Palette::grey(),
    };
    let levels: Vec<u8> = (0..=most).flat_map(|level| [level * (255 / most); 3]).collect();
    Palette::new(&levels)
}

/// The orientation in an `eXIf` chunk, in EXIF that ImageMagick writes as text, or in XMP.
fn orientation(info: &Info<'_>) -> Orientation {
    let exif = info.exif_metadata.clone().or_else(|| raw_profile(info).map(Cow::Owned));
    let xmp = info.utf8_text.iter().find(|chunk| chunk.keyword == "XML:com.adobe.xmp");
    let xmp = xmp.and_then(|chunk| {
        let mut chunk = chunk.clone();
        chunk.decompress_text_with_limit(MAX_TEXT_BYTES).ok()?;
        chunk.get_text().ok()
    });
    Orientation::of(exif.as_deref(), xmp.as_deref().map(str::as_bytes))
}

/// EXIF as a text of hexadecimal digits behind three lines.
fn raw_profile(info: &Info<'_>) -> Option<Vec<u8>> {
    const KEYWORD: &str = "Raw profile type exif";
    let plain = info.uncompressed_latin1_text.iter().find(|chunk| chunk.keyword == KEYWORD);
    let text = match plain {
        Some(chunk) => chunk.text.clone(),
        None => {
            let chunks = &info.compressed_latin1_text;
            let mut chunk = chunks.iter().find(|chunk| chunk.keyword == KEYWORD)?.clone();
            chunk.decompress_text_with_limit(MAX_TEXT_BYTES).ok()?;
            chunk.get_text().ok()?
        }
    };
    let digits = text.split('\n').skip(3).flat_map(str::bytes).filter(|b| !b.is_ascii_whitespace());
    let digits: Vec<u32> = digits.map(|b| char::from(b).to_digit(16)).collect::<Option<_>>()?;
    Some(digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect())
}

/// Our error for one of the crate's, whose words are not repeated.
fn refused(error: DecodingError) -> Error {
    match error {
        DecodingError::LimitsExceeded => {
            Error::UnsupportedFeature("a PNG with a row or a chunk of more than 64 MiB")
        }
        _ => Error::Damaged,
    }
}
