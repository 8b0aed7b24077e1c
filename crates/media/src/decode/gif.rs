//! GIF: the first frame, on a canvas as Pillow makes it.

use gif::{ColorOutput, DecodeOptions, MemoryLimit};

use super::Stored;
use super::colour::Palette;
use super::orientation::Orientation;
use super::source::Source;
use crate::{Error, Limits, Picture, Result};

pub(super) fn decode(source: Source<'_>, limits: &Limits) -> Result<Stored> {
    let deadline = source.deadline();
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // Frames are read into a buffer of ours; this bounds metadata.
    options.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = options.read_info(source).map_err(refused)?;
    let screen = (u32::from(decoder.width()), u32::from(decoder.height()));
    let frame = decoder.next_frame_info().map_err(refused)?.ok_or(Error::Damaged)?;
    let (left, top) = (u32::from(frame.left), u32::from(frame.top));
    let (columns, rows) = (u32::from(frame.width), u32::from(frame.height));
    let background = frame.transparent.unwrap_or(0);
    // The canvas grows where the frame reaches beyond the screen.
    let (width, height) = (screen.0.max(left + columns), screen.1.max(top + rows));
    limits.check_size(width.into(), height.into())?;
    limits.check_size(columns.into(), rows.into())?;
    let palette = palette(decoder.palette().map_err(refused)?);
    let mut indices = vec![0; columns as usize * rows as usize];
    decoder.read_into_buffer(&mut indices).map_err(refused)?;
    deadline.check()?;
    let mut picture = Picture::black(width, height, limits)?;
    let stride = picture.stride();
    let colour = palette.colour(background);
    if colour != [0; 3] {
        picture.rgb_mut().chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&colour));
    }
    let canvas_rows = picture.rgb_mut().chunks_exact_mut(stride).skip(top as usize);
    for (target, row) in canvas_rows.zip(indices.chunks_exact(columns as usize)) {
        let pixels = target.chunks_exact_mut(3).skip(left as usize);
        for (pixel, &index) in pixels.zip(row) {
            pixel.copy_from_slice(&palette.colour(index));
        }
    }
    Ok(Stored { picture, orientation: Orientation::default() })
}

/// The frame's palette. Pillow takes one whose colours are their own indices as grey of all 256 levels.
fn palette(rgb: &[u8]) -> Palette {
    let is_own_index =
        |(index, colour): (usize, &[u8])| colour.iter().all(|&v| usize::from(v) == index);
    if rgb.chunks_exact(3).enumerate().all(is_own_index) {
        return Palette::grey();
    }
    Palette::new(rgb)
}

/// Our error for one of the crate's, whose words are not repeated.
fn refused(_: gif::DecodingError) -> Error {
    Error::Damaged
}
