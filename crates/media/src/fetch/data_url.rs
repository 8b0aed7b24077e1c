//! `data:` URLs and base64, bounded before they are decoded.
//!
//! Source: RFC 2397, and RFC 4648 for base64.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::{Error, Limits, Result};

const SCHEME: &str = "data:";
/// Longest media type with its parameters, in bytes.
const MAX_MEDIA_TYPE_BYTES: usize = 256;

/// Base64 with or without padding, as clients write it.
const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);

pub(super) fn is_data_url(url: &str) -> bool {
    url.get(..SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

/// The media type, where there is one, and the base64 text.
pub(super) fn split(url: &str) -> Result<(Option<&str>, &str)> {
    if !is_data_url(url) {
        return Err(Error::BadUrl("does not begin with data:"));
    }
    let rest = &url[SCHEME.len()..];
    // The comma is looked for where a media type can end, and not in megabytes of text.
    let head = rest.as_bytes().iter().take(MAX_MEDIA_TYPE_BYTES).position(|&byte| byte == b',');
    let comma = head.ok_or(Error::BadUrl("has no comma before its data"))?;
    let (head, text) = (&rest[..comma], &rest[comma + 1..]);
    let mut parameters = head.split(';').map(str::trim);
    let media_type = parameters.next().filter(|media_type| !media_type.is_empty());
    if !parameters.any(|parameter| parameter.eq_ignore_ascii_case("base64")) {
        return Err(Error::BadUrl("is not in base64: write data:image/png;base64,.."));
    }
    Ok((media_type, text))
}

/// Characters of base64 for the largest image: three bytes are four characters.
fn most_characters(limits: &Limits) -> usize {
    limits.max_encoded_bytes.div_ceil(3).saturating_mul(4)
}

/// Checks the length of a URL or of base64, before anything is copied or decoded.
pub(super) fn check_length(text: &str, limits: &Limits) -> Result<()> {
    let most = most_characters(limits);
    // Line breaks take at most two more characters in 60, and a media type a few.
    if text.len() > most + most / 16 + MAX_MEDIA_TYPE_BYTES {
        return Err(Error::TooManyBytes { limit: limits.max_encoded_bytes });
    }
    Ok(())
}

/// Decodes base64. Line breaks and spaces do not count; both alphabets are read.
pub(super) fn base64_bytes(text: &str, limits: &Limits) -> Result<Vec<u8>> {
    check_length(text, limits)?;
    let is_space = |byte: u8| byte.is_ascii_whitespace();
    let compact: String;
    let text = if text.bytes().any(is_space) {
        compact = text.chars().filter(|character| !character.is_ascii_whitespace()).collect();
        &compact
    } else {
        text
    };
    if text.len() > most_characters(limits) {
        return Err(Error::TooManyBytes { limit: limits.max_encoded_bytes });
    }
    let is_url_safe = text.bytes().any(|byte| matches!(byte, b'-' | b'_'));
    let engine = if is_url_safe { &URL_SAFE } else { &STANDARD };
    engine.decode(text).map_err(|_| Error::BadBase64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_split_from_data() {
        assert_eq!(split("data:image/png;base64,AA=="), Ok((Some("image/png"), "AA==")));
        assert_eq!(split("DATA:;Base64,"), Ok((None, "")));
        assert_eq!(split("data:image/png;name=a;base64,A,B"), Ok((Some("image/png"), "A,B")));
        for url in ["data:image/png,AA", "data:image/png;base64", "data", "dat\u{e9}:,", "data:"] {
            assert!(matches!(split(url), Err(Error::BadUrl(_))), "{url}");
        }
        let late = format!("data:{};base64,AA", "a".repeat(300));
        assert!(split(&late).is_err());
    }

    #[test]
    fn base64_is_read_as_clients_write_it() {
        let limits = Limits { max_encoded_bytes: 6, ..Limits::default() };
        for text in ["+/8=", "+/8", "-_8=", " +/\r\n8=\n"] {
            assert_eq!(base64_bytes(text, &limits), Ok(vec![0xfb, 0xff]), "{text}");
        }
        assert_eq!(base64_bytes("", &limits), Ok(Vec::new()));
        for text in ["+_8=", "A", "AA==A", "%2B/8=", "A\u{e9}A="] {
            assert_eq!(base64_bytes(text, &limits), Err(Error::BadBase64), "{text}");
        }
        for text in ["AAAAAAAAAAAAA", &" ".repeat(300)] {
            let error = base64_bytes(text, &limits);
            assert!(matches!(error, Err(Error::TooManyBytes { .. })), "{text}");
        }
    }
}
