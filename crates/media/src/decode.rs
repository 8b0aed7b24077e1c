//! Encoded bytes become a picture, equal to the one that Pillow's `open`, `exif_transpose` and `convert("RGB")` give.

mod colour;
mod gif;
mod jpeg;
mod orientation;
mod png;
mod source;
mod webp;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::format::Format;
use crate::{Deadline, Error, Limits, Picture, Result};
use orientation::Orientation;
use source::Source;

/// A picture as it is stored, and how it is to be turned.
struct Stored {
    picture: Picture,
    orientation: Orientation,
}

/// Decodes an image: 8-bit RGB, with the EXIF orientation applied.
///
/// Limits are checked from the header, before memory is reserved for pixels. An animation gives its first frame and
/// nothing else. Alpha is dropped, and 16-bit values become 8 bits as in Pillow: grey is clipped at 255, colours keep
/// their upper byte.
///
/// Peak memory is at most 12 bytes a pixel beside the encoded bytes, and small buffers. A progressive CMYK JPEG needs 8 for
/// its coefficients and 4 for its values. Other progressive JPEGs need 9, lossless WebPs 7, and the rest at most 5.
///
/// This computes for up to seconds, so async code calls it on a thread of its own.
///
/// Source: `load_image` in transformers' image_utils.py.
///
/// # Errors
/// - [`Error::TooManyBytes`], [`Error::TooManyPixels`], [`Error::NoPixels`]: a limit.
/// - [`Error::UnknownFormat`], [`Error::UnsupportedFeature`]: a format, or a feature of one, that is not read.
/// - [`Error::Damaged`]: the bytes are incomplete or contradict themselves.
/// - [`Error::TimedOut`], [`Error::Cancelled`]: the deadline.
pub fn decode(bytes: &[u8], limits: &Limits, deadline: &Deadline) -> Result<Picture> {
    limits.check_bytes(bytes.len() as u64)?;
    deadline.check()?;
    let format = Format::of(bytes)?;
    let decode_format = match format {
        Format::Png => png::decode,
        Format::Jpeg => jpeg::decode,
        Format::Gif => gif::decode,
        Format::WebP => webp::decode,
    };
    let source = Source::new(bytes, deadline);
    // The decoders are other people's code. A panic there is a damaged image to us, and must not end the server.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_format(source, limits)));
    // A reader past its deadline fails in a decoder's words, so the deadline decides what the error was.
    let stored =
        decoded.unwrap_or(Err(Error::Damaged)).map_err(|error| match deadline.check() {
            Err(late) => late,
            Ok(()) => error,
        })?;
    deadline.check()?;
    Ok(stored.orientation.apply(stored.picture))
}
