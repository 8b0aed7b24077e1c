//! The orientation of EXIF and XMP: found in metadata, applied to a picture.

use crate::Picture;

/// The EXIF tag of the orientation.
const TAG: u16 = 0x0112;

/// How a stored picture is to be turned: 1 to 8 as in EXIF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Orientation(u8);

impl Default for Orientation {
    fn default() -> Self {
        Self(1)
    }
}

impl Orientation {
    /// The orientation in EXIF metadata, or in XMP metadata where EXIF has none.
    ///
    /// Source: `Image.getexif` in Pillow.
    pub(super) fn of(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> Self {
        let found = exif.and_then(exif_orientation).or_else(|| xmp.and_then(xmp_orientation));
        Self(found.filter(|number| (1..=8).contains(number)).unwrap_or(1) as u8)
    }

    /// Turns a picture upright.
    ///
    /// Source: `exif_transpose` in Pillow's ImageOps.py.
    pub(super) fn apply(self, picture: Picture) -> Picture {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let is_on_its_side = self.0 >= 5;
        // Columns of the result come from the right, or from the bottom of a picture on its side; rows likewise.
        let (is_mirrored, is_upside_down) = match self.0 {
            2 => (true, false),
            3 => (true, true),
            4 => (false, true),
            5 => (false, false),
            6 => (true, false),
            7 => (true, true),
            8 => (false, true),
            _ => return picture,
        };
        let (columns, rows) = if is_on_its_side { (height, width) } else { (width, height) };
        let mut turned = Vec::with_capacity(picture.rgb().len());
        let source = picture.rgb();
        for row in 0..rows {
            let row = if is_upside_down { rows - 1 - row } else { row };
            for column in 0..columns {
                let column = if is_mirrored { columns - 1 - column } else { column };
                let (x, y) = if is_on_its_side { (row, column) } else { (column, row) };
                let at = (y * width + x) * 3;
                turned.extend_from_slice(&source[at..at + 3]);
            }
        }
        // The number of values is the same, so this is a picture.
        Picture::new(columns as u32, rows as u32, turned).unwrap_or(picture)
    }
}

/// The orientation in the first directory of a TIFF structure, with or without `Exif\0\0` before it.
fn exif_orientation(exif: &[u8]) -> Option<u32> {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let is_little = match tiff.get(..2)? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let u32_at = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    if u16_at(2)? != 42 {
        return None;
    }
    let directory = u32_at(4)? as usize;
    let entries = usize::from(u16_at(directory)?);
    let first = directory.checked_add(2)?;
    let entry = (0..entries).map(|index| first.saturating_add(12 * index));
    let entry = entry.take_while(|&at| u16_at(at).is_some()).find(|&at| u16_at(at) == Some(TAG))?;
    // One number of 16 or 32 bits, signed or not.
    match (u16_at(entry + 2)?, u32_at(entry + 4)?) {
        (3 | 8, 1) => u16_at(entry + 8).map(u32::from),
        (4 | 9, 1) => u32_at(entry + 8),
        _ => None,
    }
}

/// The digit behind `tiff:Orientation="` or `tiff:Orientation>`.
fn xmp_orientation(xmp: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"tiff:Orientation";
    xmp.windows(NAME.len()).enumerate().filter(|(_, window)| *window == NAME).find_map(|(at, _)| {
        let rest = &xmp[at + NAME.len()..];
        let rest = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"))?;
        rest.first().filter(|digit| digit.is_ascii_digit()).map(|digit| u32::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiff(is_little: bool, kind: u16, count: u32, value: [u8; 4]) -> Vec<u8> {
        let two = |n: u16| if is_little { n.to_le_bytes() } else { n.to_be_bytes() };
        let four = |n: u32| if is_little { n.to_le_bytes() } else { n.to_be_bytes() };
        let mut bytes = if is_little { b"II".to_vec() } else { b"MM".to_vec() };
        bytes.extend(two(42));
        bytes.extend(four(8));
        bytes.extend(two(2));
        bytes.extend([0; 12]);
        bytes.extend(two(TAG));
        bytes.extend(two(kind));
        bytes.extend(four(count));
        bytes.extend(value);
        bytes
    }

    #[test]
    fn numbers_of_both_byte_orders_are_read() {
        for (exif, found) in [
            (tiff(true, 3, 1, [6, 0, 0, 0]), Some(6)),
            (tiff(false, 3, 1, [0, 6, 0, 0]), Some(6)),
            (tiff(false, 4, 1, [0, 0, 0, 8]), Some(8)),
            (tiff(true, 1, 1, [6, 0, 0, 0]), None),
            (tiff(true, 3, 2, [6, 0, 0, 0]), None),
        ] {
            assert_eq!(exif_orientation(&exif), found, "{exif:?}");
            assert_eq!(exif_orientation(&[b"Exif\0\0", &exif[..]].concat()), found);
            for len in 0..exif.len() {
                let _ = exif_orientation(&exif[..len]);
            }
        }
    }

    #[test]
    fn exif_goes_before_xmp() {
        let exif = tiff(true, 3, 1, [3, 0, 0, 0]);
        let xmp = b"<x tiff:Orientation='1' tiff:Orientation=\"8\"/>";
        assert_eq!(Orientation::of(Some(&exif), Some(xmp)), Orientation(3));
        assert_eq!(Orientation::of(Some(b"II"), Some(xmp)), Orientation(8));
        assert_eq!(Orientation::of(None, Some(b"<tiff:Orientation>6<")), Orientation(6));
        assert_eq!(Orientation::of(None, Some(b"<tiff:Orientation>9<")), Orientation(1));
        assert_eq!(Orientation::of(None, None), Orientation(1));
    }
}
