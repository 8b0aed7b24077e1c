//! The digest that tells images apart, wherever token ids alone do not.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A SHA-256 digest over a decoded picture, its size, the processor's settings and the detail.
///
/// Two images under one text must never share an answer, so the digest is wide, and it covers everything that changes the
/// values that a tower reads. The encoded bytes do not count: a PNG and a WebP of the same pixels are one image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ImageDigest([u8; 32]);

impl ImageDigest {
    pub(crate) fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 256 bits.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageDigest({self})")
    }
}
