//! A decoded picture: 8-bit RGB.

use serde::{Deserialize, Serialize};

use crate::{Error, Limits, Result};

/// A decoded picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
}

impl Picture {
    /// A picture of `rgb`, with the shape `[height, width, 3]`, row by row from the top.
    ///
    /// # Errors
    /// [`Error::NoPixels`] for a side of zero, [`Error::Damaged`] where the number of values differs from the shape's.
    pub fn new(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self> {
        if width == 0 || height == 0 {
            return Err(Error::NoPixels { width: width.into(), height: height.into() });
        }
        let values = (width as usize).checked_mul(height as usize).and_then(|n| n.checked_mul(3));
        if values != Some(rgb.len()) {
            return Err(Error::Damaged);
        }
        Ok(Self { width, height, rgb })
    }

    /// A black picture within the limits.
    ///
    /// # Errors
    /// See [`Limits::check_size`].
    pub(crate) fn black(width: u32, height: u32, limits: &Limits) -> Result<Self> {
        limits.check_size(width.into(), height.into())?;
        let rgb = vec![0; width as usize * height as usize * 3];
        Ok(Self { width, height, rgb })
    }

    /// Number of columns.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The values, with the shape `[height, width, 3]`.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    pub(crate) fn rgb_mut(&mut self) -> &mut [u8] {
        &mut self.rgb
    }

    /// Bytes of one row.
    pub(crate) fn stride(&self) -> usize {
        self.width as usize * 3
    }
}
