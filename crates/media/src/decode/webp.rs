//! WebP: lossy and lossless; of an animation the first frame, on a black canvas.
//!
//! The container is read here. It says the size, the orientation and where the first frame is, and the decoder then gets
//! that frame alone, as a file of its own. Alpha of lossy images lies in a chunk beside the frame, and is never decoded.
//!
//! Source: "WebP Container Specification" of the WebP project.

use image_webp::{DecodingError, WebPDecoder};

use super::Stored;
use super::orientation::Orientation;
use super::source::Source;
use crate::{Error, Limits, Picture, Result};

/// Flags of an extended file.
const HAS_EXIF: u8 = 0x08;
const HAS_XMP: u8 = 0x04;
const IS_ANIMATED: u8 = 0x02;

/// Bytes before the chunks of a file: `RIFF`, a length, `WEBP`.
const FILE_HEADER: usize = 12;
/// Bytes before the chunks of a frame: its place, size, duration and flags.
const FRAME_HEADER: usize = 16;

pub(super) fn decode(source: Source<'_>, limits: &Limits) -> Result<Stored> {
    let file = Chunks(source.bytes().get(FILE_HEADER..).unwrap_or_default());
    let (name, payload) = file.clone().next().ok_or(Error::Damaged)?;
    if name != b"VP8X" {
        let (width, height) = image_size(name, payload)?;
        limits.check_size(width.into(), height.into())?;
        let picture = still(&source, (name, payload), limits)?;
        return Ok(Stored { picture, orientation: Orientation::default() });
    }
    let flags = *payload.first().ok_or(Error::Damaged)?;
    let (width, height) = (u24(payload, 4)? + 1, u24(payload, 7)? + 1);
    limits.check_size(width.into(), height.into())?;
    let metadata = |flag, name| {
        let chunk = file.clone().find(|(found, _)| *found == name);
        chunk.filter(|_| flags & flag != 0).map(|(_, payload)| payload)
    };
    let orientation = Orientation::of(metadata(HAS_EXIF, b"EXIF"), metadata(HAS_XMP, b"XMP "));
    let picture = if flags & IS_ANIMATED == 0 {
        let picture = still(&source, image_chunk(file.clone())?, limits)?;
        if (picture.width(), picture.height()) != (width, height) {
            return Err(Error::Damaged);
        }
        picture
    } else {
        let (_, frame) = file.clone().find(|(name, _)| *name == b"ANMF").ok_or(Error::Damaged)?;
        let chunks = Chunks(frame.get(FRAME_HEADER..).unwrap_or_default());
        let picture = still(&source, image_chunk(chunks)?, limits)?;
        let canvas = Picture::black(width, height, limits)?;
        placed(canvas, &picture, (2 * u24(frame, 0)?, 2 * u24(frame, 3)?))?
    };
    Ok(Stored { picture, orientation })
}

/// A chunk: its name and its payload.
type Chunk<'a> = (&'a [u8; 4], &'a [u8]);

/// The chunks of a file or of a frame; the last one may be cut off.
#[derive(Clone)]
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = Chunk<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_first_chunk::<4>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        let payload = rest.get(..len).unwrap_or(rest);
        // Payloads of an odd length are followed by a byte of padding.
        self.0 = rest.get(len.saturating_add(len % 2)..).unwrap_or_default();
        Some((name, payload))
    }
}

/// The first chunk with pixels.
fn image_chunk(mut chunks: Chunks<'_>) -> Result<Chunk<'_>> {
    chunks.find(|(name, _)| matches!(*name, b"VP8 " | b"VP8L")).ok_or(Error::Damaged)
}

/// Three bytes as a number.
fn u24(bytes: &[u8], at: usize) -> Result<u32> {
    let bytes = bytes.get(at..at + 3).ok_or(Error::Damaged)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]))
}

/// Width and height in the header of a chunk with pixels.
fn image_size(name: &[u8; 4], payload: &[u8]) -> Result<(u32, u32)> {
    let u16_at = |at: usize| {
        let bytes: &[u8; 2] = payload.get(at..at + 2)?.try_into().ok()?;
        Some(u32::from(u16::from_le_bytes(*bytes)))
    };
    let size = match name {
        b"VP8 " if payload.get(3..6) == Some(&[0x9d, 0x01, 0x2a]) => {
            u16_at(6).zip(u16_at(8)).map(|(width, height)| (width & 0x3fff, height & 0x3fff))
        }
        b"VP8L" if payload.first() == Some(&0x2f) => u16_at(1).zip(u16_at(3)).map(|(low, high)| {
            let bits = low | high << 16;
            ((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1)
        }),
        _ => None,
    };
    size.ok_or(Error::Damaged)
}

/// Decodes one chunk with pixels, as the only one of a file.
fn still(source: &Source<'_>, (name, payload): Chunk<'_>, limits: &Limits) -> Result<Picture> {
    let (width, height) = image_size(name, payload)?;
    limits.check_size(width.into(), height.into())?;
    // `WEBP`, the header of the chunk, its payload and its padding.
    let riff_len = 12 + payload.len() + payload.len() % 2;
    let mut file = Vec::with_capacity(8 + riff_len);
    file.extend_from_slice(b"RIFF");
    file.extend_from_slice(&(riff_len as u32).to_le_bytes());
    file.extend_from_slice(b"WEBP");
    file.extend_from_slice(name);
    file.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    file.extend_from_slice(payload);
    file.resize(8 + riff_len, 0);
    let mut decoder = WebPDecoder::new(source.over(&file)).map_err(refused)?;
    if decoder.dimensions() != (width, height) {
        return Err(Error::Damaged);
    }
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let pixels = width as usize * height as usize;
    let mut values = vec![0; pixels * channels];
    decoder.read_image(&mut values).map_err(refused)?;
    if channels == 4 {
        for pixel in 0..pixels {
            values.copy_within(pixel * 4..pixel * 4 + 3, pixel * 3);
        }
        values.truncate(pixels * 3);
    }
    Picture::new(width, height, values)
}

/// Places a frame on a canvas.
fn placed(mut canvas: Picture, frame: &Picture, (left, top): (u32, u32)) -> Result<Picture> {
    if left + frame.width() > canvas.width() || top + frame.height() > canvas.height() {
        return Err(Error::Damaged);
    }
    let (stride, width) = (canvas.stride(), frame.stride());
    let start = left as usize * 3;
    let targets = canvas.rgb_mut().chunks_exact_mut(stride).skip(top as usize);
    for (target, row) in targets.zip(frame.rgb().chunks_exact(width)) {
        target[start..start + width].copy_from_slice(row);
    }
    Ok(canvas)
}

/// Our error for one of the crate's, whose words are not repeated.
fn refused(error: DecodingError) -> Error {
    match error {
        DecodingError::UnsupportedFeature(_) => {
            Error::UnsupportedFeature("a WebP with a feature that still images do not have")
        }
        _ => Error::Damaged,
    }
}
