//! JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK.

use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::Stored;
use super::colour::{cmyk_of_ycck, inverted_cmyk, rgb_of_ycbcr};
use super::orientation::Orientation;
use super::source::Source;
use crate::{Error, Limits, Picture, Result};

/// Scans of a progressive image. Encoders write about ten; each one is a walk over all coefficients.
const MAX_SCANS: usize = 64;

pub(super) fn decode(source: Source<'_>, limits: &Limits) -> Result<Stored> {
    let (bytes, deadline) = (source.bytes(), source.deadline());
    let options = DecoderOptions::new_safe()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_max_scans(MAX_SCANS)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(source, options);
    decoder.decode_headers().map_err(refused)?;
    let info = decoder.info().ok_or(Error::Damaged)?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    limits.check_size(width.into(), height.into())?;
    let stored = decoder.input_colorspace().ok_or(Error::Damaged)?;
    let (wanted, channels) = match stored {
        // The stored values, since the crate's own conversions differ from libjpeg's and Pillow's.
        ColorSpace::CMYK | ColorSpace::YCCK => (stored, 4),
        ColorSpace::YCbCr => (stored, 3),
        ColorSpace::Luma | ColorSpace::RGB => (ColorSpace::RGB, 3),
        _ => return Err(Error::UnsupportedFeature("a JPEG with this number of channels")),
    };
    // Bytes between segments do no harm. Pixels that are cut off are refused, as in Pillow.
    decoder.set_options(options.set_strict_mode(true).jpeg_set_out_colorspace(wanted));
    let orientation = orientation(bytes);
    deadline.check()?;
    let mut values = vec![0; width as usize * height as usize * channels];
    decoder.decode_into(&mut values).map_err(refused)?;
    match stored {
        ColorSpace::CMYK | ColorSpace::YCCK => {
            cmyk_to_rgb(&mut values, stored == ColorSpace::YCCK);
        }
        ColorSpace::YCbCr => {
            mend_edges(&mut values, (width as usize, height as usize), chroma_ratio(bytes));
            for pixel in values.chunks_exact_mut(3) {
                pixel.copy_from_slice(&rgb_of_ycbcr([pixel[0], pixel[1], pixel[2]]));
            }
        }
        _ => {}
    }
    Ok(Stored { picture: Picture::new(width, height, values)?, orientation })
}

/// Whether chroma has half the columns of luma, and half the rows.
fn chroma_ratio(bytes: &[u8]) -> (bool, bool) {
    let frame = Segments::new(bytes).find(|(marker, _)| matches!(marker, 0xc0..=0xc2));
    // Behind precision, sides and number of channels: an id, both sampling factors and a table, for each channel.
    let factors = |channel: usize| {
        let byte = frame?.1.get(6 + 3 * channel + 1)?;
        Some((byte >> 4, byte & 15))
    };
    match (factors(0), factors(1), factors(2)) {
        (Some(luma), Some(blue), Some(red)) if blue == red => {
            (luma.0 == 2 * blue.0, luma.1 == 2 * blue.1)
        }
        _ => (false, false),
    }
}

/// Corrects chroma in the last column and the last row.
///
/// Where chroma has half the resolution, it is interpolated between neighbours. `zune-jpeg` takes the padding of the last
/// block for a neighbour, and libjpeg repeats the last sample. That sample is not there any more, but the two pixels before
/// it are three quarters of a sample and one quarter of the other one, so a difference of both gives it back.
///
/// Source: `h2v1_fancy_upsample` in libjpeg-turbo's jdsample.c.
fn mend_edges(
    ycbcr: &mut [u8],
    (width, height): (usize, usize),
    (half_width, half_height): (bool, bool),
) {
    // An odd side ends with the first pixel of its sample, and whole blocks have no padding.
    let is_padded = |side: usize| side >= 4 && side.is_multiple_of(2) && !side.is_multiple_of(16);
    let sample = |near: u8, far: u8| {
        let twice = 3 * i32::from(near) - i32::from(far);
        ((twice + 1) >> 1).clamp(0, 255) as u8
    };
    let stride = width * 3;
    if half_width && is_padded(width) {
        for row in ycbcr.chunks_exact_mut(stride) {
            for channel in 1..3 {
                let at = |back: usize| stride - 3 * back + channel;
                row[at(1)] = sample(row[at(2)], row[at(3)]);
            }
        }
    }
    if half_height && is_padded(height) {
        for column in 0..width {
            for channel in 1..3 {
                let at = |back: usize| (height - back) * stride + 3 * column + channel;
                ycbcr[at(1)] = sample(ycbcr[at(2)], ycbcr[at(3)]);
            }
        }
    }
}

/// Converts four values a pixel to three, in place.
fn cmyk_to_rgb(values: &mut Vec<u8>, is_ycck: bool) {
    let pixels = values.len() / 4;
    for pixel in 0..pixels {
        let at = pixel * 4;
        let stored = [values[at], values[at + 1], values[at + 2], values[at + 3]];
        let stored = if is_ycck { cmyk_of_ycck(stored) } else { stored };
        values[pixel * 3..pixel * 3 + 3].copy_from_slice(&inverted_cmyk(stored));
    }
    values.truncate(pixels * 3);
}

/// The segments before the first scan: their markers and payloads.
struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Segments<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 2 }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        // Fill bytes may stand before a marker.
        while self.bytes.get(self.at..self.at + 2) == Some(&[0xff, 0xff]) {
            self.at += 1;
        }
        let &[0xff, marker, high, low] = self.bytes.get(self.at..self.at + 4)? else { return None };
        // The start of a scan, after which pixels follow, and markers without a length.
        if matches!(marker, 0xd0..=0xda) {
            return None;
        }
        let len = usize::from(u16::from_be_bytes([high, low]));
        let payload = self.bytes.get(self.at + 4..self.at + 2 + len).unwrap_or_default();
        self.at += 2 + len.max(2);
        Some((marker, payload))
    }
}

/// The orientation in EXIF or XMP metadata.
fn orientation(bytes: &[u8]) -> Orientation {
    let metadata = |prefix: &[u8]| {
        let of_kind = Segments::new(bytes).filter(|(marker, _)| *marker == 0xe1);
        let mut of_kind = of_kind.filter(|(_, payload)| payload.starts_with(prefix));
        of_kind.next().map(|(_, payload)| &payload[prefix.len()..])
    };
    Orientation::of(metadata(b"Exif\0\0"), metadata(b"http://ns.adobe.com/xap/1.0/\0"))
}

/// Our error for one of the crate's, whose words are not repeated.
fn refused(error: DecodeErrors) -> Error {
    match error {
        DecodeErrors::Unsupported(_) => {
            Error::UnsupportedFeature("a lossless, hierarchical or arithmetic-coded JPEG")
        }
        DecodeErrors::ZeroError => Error::NoPixels { width: 0, height: 0 },
        _ => Error::Damaged,
    }
}
