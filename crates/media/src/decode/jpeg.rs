//! JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK.

use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::Stored;
use super::colour::{cmyk_of_ycck, inverted_cmyk};
use super::orientation::Orientation;
use super::source::Source;
use crate::{Error, Limits, Picture, Result};

/// Scans of a progressive image. Encoders write about ten; each one is a walk over all coefficients.
const MAX_SCANS: usize = 64;

pub(super) fn decode(source: Source<'_>, limits: &Limits) -> Result<Stored> {
    let (bytes, deadline) = (source.bytes(), source.deadline());
    let options = DecoderOptions::new_safe()
        // Pillow refuses an image that is cut off, too.
        .set_strict_mode(true)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_max_scans(MAX_SCANS);
    let options = options.jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(source, options);
    decoder.decode_headers().map_err(refused)?;
    let info = decoder.info().ok_or(Error::Damaged)?;
    let (width, height) = (u32::from(info.width), u32::from(info.height));
    limits.check_size(width.into(), height.into())?;
    let stored = decoder.input_colorspace().ok_or(Error::Damaged)?;
    let channels = match stored {
        ColorSpace::CMYK | ColorSpace::YCCK => 4,
        ColorSpace::Luma | ColorSpace::RGB | ColorSpace::YCbCr => 3,
        _ => return Err(Error::UnsupportedFeature("a JPEG with this number of channels")),
    };
    if channels == 4 {
        // The stored values, since the crate's own conversion rounds otherwise than Pillow's.
        decoder.set_options(options.jpeg_set_out_colorspace(stored));
    }
    let orientation = orientation(bytes);
    deadline.check()?;
    let mut values = vec![0; width as usize * height as usize * channels];
    decoder.decode_into(&mut values).map_err(refused)?;
    if channels == 4 {
        cmyk_to_rgb(&mut values, stored == ColorSpace::YCCK);
    }
    Ok(Stored { picture: Picture::new(width, height, values)?, orientation })
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

/// The orientation in the segments before the first scan.
fn orientation(bytes: &[u8]) -> Orientation {
    let (mut exif, mut xmp) = (None, None);
    let mut at = 2;
    while let Some(&[0xff, marker]) = bytes.get(at..at + 2) {
        // Fill bytes may stand before a marker.
        if marker == 0xff {
            at += 1;
            continue;
        }
        // The start of a scan, after which pixels follow, and markers without a length.
        if matches!(marker, 0xd0..=0xda) {
            break;
        }
        let Some(&[high, low]) = bytes.get(at + 2..at + 4) else { break };
        let len = usize::from(u16::from_be_bytes([high, low]));
        let segment = bytes.get(at + 4..at + 2 + len).unwrap_or_default();
        if marker == 0xe1 && exif.is_none() && segment.starts_with(b"Exif\0\0") {
            exif = Some(segment);
        }
        if let (0xe1, Some(text)) =
            (marker, segment.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0"))
        {
            xmp = Some(text);
        }
        at += 2 + len.max(2);
    }
    Orientation::of(exif, xmp)
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
