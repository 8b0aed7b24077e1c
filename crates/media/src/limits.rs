//! Limits on one image, which are checked before memory is reserved for it.

use crate::{Error, Result};

/// Limits on one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the encoded image: 32 MiB.
    pub max_encoded_bytes: usize,
    /// Pixels of the decoded image: 64 megapixels, which are 192 MB of RGB.
    pub max_pixels: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_encoded_bytes: 32 << 20, max_pixels: 64_000_000 }
    }
}

impl Limits {
    /// Checks the number of encoded bytes.
    ///
    /// # Errors
    /// [`Error::TooManyBytes`].
    pub fn check_bytes(&self, bytes: u64) -> Result<()> {
        if bytes > self.max_encoded_bytes as u64 {
            return Err(Error::TooManyBytes { limit: self.max_encoded_bytes });
        }
        Ok(())
    }

    /// Checks a width and a height in pixels, as a header states them.
    ///
    /// # Errors
    /// [`Error::NoPixels`] for a side of zero, [`Error::TooManyPixels`] for an area above the limit.
    pub fn check_size(&self, width: u64, height: u64) -> Result<()> {
        if width == 0 || height == 0 {
            return Err(Error::NoPixels { width, height });
        }
        // Sides of 64 bits could overflow, and no format has more than 32.
        let is_side = |side| side <= u64::from(u32::MAX);
        if !is_side(width) || !is_side(height) || width * height > self.max_pixels {
            return Err(Error::TooManyPixels { width, height, limit: self.max_pixels });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bounded_without_overflow() {
        let limits = Limits::default();
        for (width, height) in [(1, 1), (8_000, 8_000), (64_000_000, 1)] {
            assert!(limits.check_size(width, height).is_ok(), "{width} x {height}");
        }
        for (width, height) in [(8_001, 8_000), (u64::MAX, u64::MAX), (1 << 32, 1 << 32)] {
            let error = limits.check_size(width, height).unwrap_err();
            assert!(matches!(error, Error::TooManyPixels { .. }), "{error}");
        }
        for (width, height) in [(0, 0), (0, 5), (5, 0), (0, u64::MAX)] {
            let error = limits.check_size(width, height).unwrap_err();
            assert!(matches!(error, Error::NoPixels { .. }), "{error}");
        }
    }

    #[test]
    fn bytes_are_bounded() {
        let limits = Limits::default();
        assert!(limits.check_bytes(32 << 20).is_ok());
        assert!(limits.check_bytes((32 << 20) + 1).is_err());
    }
}
