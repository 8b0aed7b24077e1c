//! Reasons why an image is refused: one line each, which names the rule and never repeats a decoder's own words.

use std::fmt;

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A reason why an image is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The first bytes are those of no format that is read.
    #[error("the image is none of PNG, JPEG, GIF and WebP: convert it to one of them")]
    UnknownFormat,
    /// A media type that is not read.
    #[error(
        "the media type `{0}` is not read: send image/png, image/jpeg, image/gif or image/webp"
    )]
    UnsupportedMediaType(String),
    /// The bytes are of another format than the media type says.
    #[error("the media type is {said}, but the bytes are {found}: correct one of them")]
    MediaTypeDiffers {
        /// The media type that came with the bytes.
        said: &'static str,
        /// The media type of the bytes.
        found: &'static str,
    },
    /// A variant of a format that is not read.
    #[error("{0} is not read: convert the image to 8-bit PNG or baseline JPEG")]
    UnsupportedFeature(&'static str),
    /// More encoded bytes than the limit.
    #[error("the image has too many bytes; at most {} are read", Mebibytes(*limit))]
    TooManyBytes {
        /// Largest number of bytes.
        limit: usize,
    },
    /// More pixels than the limit.
    #[error("the picture is {} x {} pixels; at most {} megapixels are read", Thousands(*width), Thousands(*height), limit / 1_000_000)]
    TooManyPixels {
        /// Width in pixels.
        width: u64,
        /// Height in pixels.
        height: u64,
        /// Largest number of pixels.
        limit: u64,
    },
    /// A side of zero pixels.
    #[error("the picture is {width} x {height} pixels: both sides need at least one")]
    NoPixels {
        /// Width in pixels.
        width: u64,
        /// Height in pixels.
        height: u64,
    },
    /// The encoded bytes are cut off or contradict themselves.
    #[error("the image is damaged or incomplete: encode it again")]
    Damaged,
    /// The sides differ too much for the model.
    #[error("the picture is {width} x {height} pixels; {rule}")]
    Shape {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// The model's rule.
        rule: &'static str,
    },
    /// The work took longer than the limit.
    #[error("the image took longer than {seconds} seconds to read: send a smaller one")]
    TimedOut {
        /// The limit.
        seconds: f64,
    },
    /// Nobody waits for the image any more.
    #[error("the request was cancelled while its image was read")]
    Cancelled,
    /// Base64 that cannot be decoded.
    #[error("the image is not valid base64")]
    BadBase64,
    /// A text that is no URL, or one of a kind that is not read.
    #[error("the image URL {0}")]
    BadUrl(&'static str),
    /// A host that is not allowed.
    #[error("images are not fetched from `{host}`: the server's --allowed-media-domains does not list it{}", WithPort(*port))]
    HostNotAllowed {
        /// The host in the URL.
        host: String,
        /// The port in the URL, where it is the reason.
        port: Option<u16>,
    },
    /// A host whose address is private, local or reserved.
    #[error("images are not fetched from `{host}`: it has an address that is {reason}")]
    AddressNotAllowed {
        /// The host in the URL.
        host: String,
        /// The kind of the address; the address itself is not repeated.
        reason: &'static str,
    },
    /// A redirect that is not followed.
    #[error("the image URL redirects {0}: give the address that it leads to")]
    Redirect(&'static str),
    /// A host that has no address, or does not answer.
    #[error("cannot fetch the image from `{host}`: {problem}")]
    Unreachable {
        /// The host in the URL.
        host: String,
        /// The problem, in this crate's words.
        problem: &'static str,
    },
    /// An HTTP status other than 200.
    #[error("cannot fetch the image from `{host}`: it answered with status {status}")]
    Status {
        /// The host in the URL.
        host: String,
        /// The HTTP status.
        status: u16,
    },
    /// A file that is outside of the allowed folder, or is no file.
    #[error("there is no such image file below --allowed-local-media-path")]
    FileNotAllowed,
    /// File URLs are not read at all.
    #[error("file URLs are not read: the server has no --allowed-local-media-path")]
    NoFiles,
    /// A setting of a processor that is not supported.
    #[error("{file}: `{key}` {problem}")]
    Setting {
        /// The file.
        file: &'static str,
        /// The key.
        key: String,
        /// The problem.
        problem: String,
    },
    /// A file of settings that cannot be parsed.
    #[error("{0} is no JSON object: copy it from the model's source again")]
    BadSettings(&'static str),
    /// A model without settings for images.
    #[error(
        "the model has no preprocessor_config.json, and no image_processor in processor_config.json: copy one of them from its source"
    )]
    NoSettings,
    /// An entry of the list of allowed domains that is none.
    #[error(
        "`{0}` is no domain: give a host such as images.example.com, or .example.com, with :PORT if it is not 80 or 443"
    )]
    BadDomain(String),
    /// The HTTP client cannot be set up.
    #[error(
        "cannot prepare to fetch images: the TLS library or its root certificates are not usable"
    )]
    Client,
}

/// Kind of an [`enum@Error`], stable for the HTTP layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The format or a feature of it is not read.
    Unsupported,
    /// The image contradicts itself, its media type or the model's rules.
    Invalid,
    /// A limit in bytes or pixels.
    TooLarge,
    /// A limit in time, or the end of the request.
    Timeout,
    /// A URL, host, address or file that is not allowed.
    NotAllowed,
    /// A host that gives no image.
    Unreachable,
    /// The server's own settings, not the request.
    Configuration,
}

impl ErrorKind {
    /// The kind as an error code: lower case, with underscores.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unsupported => "unsupported_image",
            Self::Invalid => "invalid_image",
            Self::TooLarge => "image_too_large",
            Self::Timeout => "image_timeout",
            Self::NotAllowed => "image_url_not_allowed",
            Self::Unreachable => "image_unreachable",
            Self::Configuration => "image_configuration",
        }
    }
}

impl Error {
    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownFormat | Self::UnsupportedMediaType(_) | Self::UnsupportedFeature(_) => {
                ErrorKind::Unsupported
            }
            Self::MediaTypeDiffers { .. }
            | Self::NoPixels { .. }
            | Self::Damaged
            | Self::Shape { .. }
            | Self::BadBase64
            | Self::BadUrl(_) => ErrorKind::Invalid,
            Self::TooManyBytes { .. } | Self::TooManyPixels { .. } => ErrorKind::TooLarge,
            Self::TimedOut { .. } | Self::Cancelled => ErrorKind::Timeout,
            Self::HostNotAllowed { .. }
            | Self::AddressNotAllowed { .. }
            | Self::Redirect(_)
            | Self::FileNotAllowed
            | Self::NoFiles => ErrorKind::NotAllowed,
            Self::Unreachable { .. } | Self::Status { .. } => ErrorKind::Unreachable,
            Self::Setting { .. }
            | Self::BadSettings(_)
            | Self::NoSettings
            | Self::BadDomain(_)
            | Self::Client => ErrorKind::Configuration,
        }
    }
}

/// Words from outside as a part of an error: in one line, and no longer than `most` characters.
pub(crate) fn line(words: &str, most: usize) -> String {
    words.chars().filter(|character| !character.is_control()).take(most).collect()
}

/// A number with commas between its thousands.
struct Thousands(u64);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// A port, where it is the reason.
struct WithPort(Option<u16>);

impl fmt::Display for WithPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |port| write!(f, " with port {port}"))
    }
}

/// A number of bytes, in MiB where it is a multiple.
struct Mebibytes(usize);

impl fmt::Display for Mebibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % (1 << 20) {
            0 => write!(f, "{} MiB", self.0 >> 20),
            _ => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_from_outside_stay_in_one_line() {
        assert_eq!(line("image/\n\u{0}\u{85}png", 60), "image/png");
        assert_eq!(line("ééé", 2), "éé");
    }

    #[test]
    fn errors_name_the_rule() {
        let error = Error::TooManyPixels { width: 70_000, height: 1_234_567, limit: 64_000_000 };
        assert_eq!(
            error.to_string(),
            "the picture is 70,000 x 1,234,567 pixels; at most 64 megapixels are read"
        );
        let error = Error::TooManyBytes { limit: 32 << 20 };
        assert_eq!(error.to_string(), "the image has too many bytes; at most 32 MiB are read");
        assert_eq!(error.kind().code(), "image_too_large");
        let host = "a.example".to_owned();
        let error = Error::HostNotAllowed { host, port: Some(8080) };
        assert!(error.to_string().ends_with("does not list it with port 8080"), "{error}");
    }
}
