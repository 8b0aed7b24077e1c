//! The types of settings, with their text forms.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use axum::http::HeaderName;
use candlepower_checkpoint::Choice;
use candlepower_media::AllowedDomain;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use ipnet::IpNet;
use serde_json::{Map, Value};

/// The serving mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Framework {
    /// High throughput for independent requests.
    #[default]
    Blaze,
    /// Reuse of prefixes between conversations and their branches.
    Prism,
}

impl Framework {
    /// Prefix of the names of its environment variables.
    pub fn env_prefix(self) -> &'static str {
        match self {
            Self::Blaze => "BLAZE_",
            Self::Prism => "PRISM_",
        }
    }

    /// The default port.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Blaze => 8000,
            Self::Prism => 30000,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blaze => "blaze",
            Self::Prism => "prism",
        }
    }
}

/// A setting's value; `None` is its `auto`. The alias hides `Option` from clap, which would make the flag optional.
pub type Asked<T> = Option<T>;

/// Parses a value of a list by its name; help and errors show the list.
pub fn one_of<T>(choices: impl IntoIterator<Item = Choice<T>>) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let choices: Vec<Choice<T>> = choices.into_iter().collect();
    let possible = choices.iter().map(|choice| {
        let value = PossibleValue::new(choice.name).aliases(choice.aliases);
        if choice.help.is_empty() { value } else { value.help(choice.help) }
    });
    PossibleValuesParser::new(possible.collect::<Vec<_>>())
        .map(move |text| Choice::find(&choices, &text).expect("clap takes names of the list alone"))
}

/// The source of default sampling parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GenerationConfigSource {
    /// The defaults of the OpenAI API.
    #[default]
    None,
    /// The model's `generation_config.json`.
    Auto,
}

/// Callers that share cached prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheScope {
    /// All callers share them.
    Server,
    /// Each caller has its own.
    Caller,
}

/// The device that runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// A GPU if this build supports it and the machine has one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// The lowest level of messages that are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Readable lines.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The server whose metric names are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricsCompat {
    /// The names of vLLM.
    Vllm,
}

/// `max_tokens` of requests that do not set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultMaxTokens {
    /// This number of tokens.
    Tokens(NonZeroUsize),
    /// The rest of the context.
    Max,
}

impl FromStr for DefaultMaxTokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        text.parse()
            .map(Self::Tokens)
            .map_err(|_| "a whole number of at least 1, or `max`, is needed".to_owned())
    }
}

impl fmt::Display for DefaultMaxTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => tokens.fmt(f),
            Self::Max => f.write_str("max"),
        }
    }
}

/// A number of bytes, written `1073741824`, `1Gi`, `1GiB`, `512M` or `512MB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<candlepower_checkpoint::Bytes>().map(|bytes| Self(bytes.0))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        candlepower_checkpoint::Bytes(self.0).fmt(f)
    }
}

/// Maximum images of a request, written `8`, `image=8` or `{"image": 8}`.
///
/// Limits of `video` and `audio` are accepted, because commands for other servers have them. Requests cannot have either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaLimit {
    /// Number of images.
    pub images: usize,
}

impl FromStr for MediaLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "a number, image=NUMBER or {\"image\": NUMBER} is needed".to_owned();
        let mut limit = Self { images: 8 };
        if let Ok(images) = text.parse() {
            return Ok(Self { images });
        }
        let mut set = |kind: &str, count: Option<usize>| {
            let count = count.ok_or_else(wrong)?;
            match kind {
                "image" => limit.images = count,
                "video" | "audio" => {}
                _ => return Err(wrong()),
            }
            Ok(())
        };
        if text.starts_with('{') {
            let object: Map<String, Value> = serde_json::from_str(text).map_err(|_| wrong())?;
            let number = |value: &Value| value.as_u64().and_then(|count| count.try_into().ok());
            object.iter().try_for_each(|(kind, value)| set(kind, number(value)))?;
        } else {
            for pair in text.split(',') {
                let (kind, count) = pair.split_once('=').ok_or_else(wrong)?;
                set(kind.trim(), count.trim().parse().ok())?;
            }
        }
        Ok(limit)
    }
}

impl fmt::Display for MediaLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image={}", self.images)
    }
}

/// A host from which images may be fetched.
pub(super) fn media_domain(text: &str) -> Result<AllowedDomain, String> {
    if text.contains('*') {
        return Err("name each host; .example.com is all hosts below example.com".into());
    }
    text.parse().map_err(|error: candlepower_media::Error| error.to_string())
}

/// A folder that exists.
pub(super) fn folder(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() { Ok(path) } else { Err("a folder that exists is needed".into()) }
}

/// A number of at least 1.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse::<NonZeroUsize>()
        .map(NonZeroUsize::get)
        .map_err(|_| "a whole number of at least 1 is needed".into())
}

/// Seconds until an idle session ends: 1 to 86400, a day.
pub(super) fn session_seconds(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(seconds) if (1..=24 * 60 * 60).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 1 to 86400 is needed".into()),
    }
}

/// A fraction above 0 and at most 1.
pub(super) fn part(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if part > 0.0 && part <= 1.0 => Ok(part),
        _ => Err("a number above 0 and at most 1 is needed".into()),
    }
}

/// A number of gigabytes that is not negative.
pub(super) fn gigabytes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("a number of gigabytes, 0 or more, is needed".into()),
    }
}

/// An origin of web pages, or `*` for all of them.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let is_origin =
        text == "*" || (text.contains("://") && text.bytes().all(|byte| byte.is_ascii_graphic()));
    if is_origin {
        Ok(text.to_owned())
    } else {
        Err("an origin such as https://example.com, or *, is needed".into())
    }
}

/// A host without a scheme and without a port.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_name) {
        Ok(text.to_owned())
    } else {
        Err("a host such as example.com, without scheme and port, is needed".into())
    }
}

/// A header's name.
pub(super) fn header_name(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| "the name of a header, such as X-User, is needed".into())
}

/// An address or a network.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from).ok();
    address
        .or_else(|| text.parse().ok())
        .ok_or_else(|| "an address or a network such as 10.0.0.0/8 is needed".into())
}

/// A Boolean in the words that `huggingface_hub` accepts.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("1, true, yes or on, or 0, false, no or off is needed".into()),
    }
}

/// The address of a hub, without a slash at its end.
pub(super) fn endpoint(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let host = host.unwrap_or_default().trim_end_matches('/');
    if !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err("a URL such as https://huggingface.co is needed".into())
    }
}

/// A text that is not empty.
pub(super) fn not_empty(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        Err("the value is empty; leave it out or give one".into())
    } else {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_the_hubs() {
        for text in ["1", "true", "YES", "On"] {
            assert_eq!(switch(text), Ok(true), "{text}");
        }
        for text in ["0", "False", "no", "OFF"] {
            assert_eq!(switch(text), Ok(false), "{text}");
        }
        for text in ["", "perhaps"] {
            assert!(switch(text).is_err(), "{text}");
        }
    }

    #[test]
    fn endpoints_lose_their_last_slash() {
        assert_eq!(endpoint("http://127.0.0.1:9000/").as_deref(), Ok("http://127.0.0.1:9000"));
        for text in ["", "huggingface.co", "https://", "ftp://a", "https://a b"] {
            assert!(endpoint(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_have_neither_scheme_nor_port() {
        assert_eq!(host_name("a-b.example.com").as_deref(), Ok("a-b.example.com"));
        for text in ["", "http://a", "a:80", "a b", "*"] {
            assert!(host_name(text).is_err(), "{text}");
        }
    }

    #[test]
    fn networks_are_addresses_too() {
        let contains = |text: &str, address: &str| {
            network(text).unwrap().contains(&address.parse::<IpAddr>().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.9.9.9") && !contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("::1", "::1") && !contains("10.0.0.1", "10.0.0.2"));
        assert!(network("10.0.0.0/33").is_err() && network("example.com").is_err());
    }

    #[test]
    fn limits_of_images_are_written_in_three_ways() {
        for (text, images) in [
            ("8", 8),
            ("0", 0),
            ("image=3", 3),
            ("image=3,video=1", 3),
            ("video=0", 8),
            ("{\"image\": 4}", 4),
            ("{\"image\": 4, \"video\": 2, \"audio\": 0}", 4),
            ("{}", 8),
        ] {
            assert_eq!(text.parse(), Ok(MediaLimit { images }), "{text}");
        }
        for text in
            ["", "-1", "image", "image=", "image=x", "images=3", "{\"image\": -1}", "{", "1.5"]
        {
            let error = text.parse::<MediaLimit>().unwrap_err();
            assert!(error.contains("image=NUMBER"), "{text}");
        }
        assert_eq!(MediaLimit { images: 2 }.to_string(), "image=2");
    }

    #[test]
    fn media_come_from_hosts_and_folders() {
        assert_eq!(media_domain(".example.com:8080").unwrap().to_string(), ".example.com:8080");
        assert!(media_domain("https://example.com").is_err() && media_domain("*").is_err());
        assert!(folder("/").is_ok() && folder("/no/such/folder").is_err());
    }

    #[test]
    fn default_max_tokens_is_a_number_or_max() {
        assert_eq!("max".parse(), Ok(DefaultMaxTokens::Max));
        assert!("0".parse::<DefaultMaxTokens>().is_err());
        assert!("-1".parse::<DefaultMaxTokens>().is_err());
    }
}
