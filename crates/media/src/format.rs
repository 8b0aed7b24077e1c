//! Formats of encoded images, known by their first bytes.

use crate::error::line;
use crate::{Error, Result};

/// Format of an encoded image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `image/png`; of an animation, its default image.
    Png,
    /// `image/jpeg`.
    Jpeg,
    /// `image/gif`; its first frame.
    Gif,
    /// `image/webp`; of an animation, its first frame.
    WebP,
}

impl Format {
    /// The format that the first bytes show.
    ///
    /// Source: `_accept` of Pillow's plugins.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`].
    pub fn of(bytes: &[u8]) -> Result<Self> {
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            return Ok(Self::Png);
        }
        if bytes.starts_with(b"\xff\xd8\xff") {
            return Ok(Self::Jpeg);
        }
        if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
            return Ok(Self::Gif);
        }
        if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            return Ok(Self::WebP);
        }
        Err(Error::UnknownFormat)
    }

    /// The format that a media type names; `None` where it leaves the format open.
    ///
    /// # Errors
    /// [`Error::UnsupportedMediaType`].
    pub fn of_media_type(media_type: &str) -> Result<Option<Self>> {
        match media_type.trim().to_ascii_lowercase().as_str() {
            "" | "application/octet-stream" | "image/*" => Ok(None),
            "image/png" | "image/apng" => Ok(Some(Self::Png)),
            "image/jpeg" | "image/jpg" => Ok(Some(Self::Jpeg)),
            "image/gif" => Ok(Some(Self::Gif)),
            "image/webp" => Ok(Some(Self::WebP)),
            other => Err(Error::UnsupportedMediaType(line(other, 60))),
        }
    }

    /// The media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::WebP => "image/webp",
        }
    }
}
