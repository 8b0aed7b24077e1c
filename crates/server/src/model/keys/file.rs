//! The file of API keys: TOML with a table `[[key]]` for each key. No error shows a key.

use std::io::Read;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{KeyDigest, KeyLimits, digest};

/// Maximum bytes of the file.
const MAX_BYTES: u64 = 4 << 20;
/// Maximum number of keys.
const MAX_KEYS: usize = 10_000;
/// Maximum length of a name.
const MAX_NAME_LEN: usize = 64;

/// The reason why keys are invalid.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", place.display())]
pub struct KeysError {
    /// The file, or the flag.
    place: PathBuf,
    problem: String,
}

impl KeysError {
    pub(super) fn new(place: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<toml::Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<toml::Value>,
    key: Option<toml::Value>,
    sha256: Option<toml::Value>,
    max_concurrent: Option<toml::Value>,
    max_tokens_per_minute: Option<toml::Value>,
    weight: Option<toml::Value>,
    min_priority: Option<toml::Value>,
    admin: Option<toml::Value>,
}

/// The keys of a file.
pub(super) fn read(path: &Path) -> Result<Vec<(KeyDigest, String, KeyLimits)>, KeysError> {
    let refused = |problem: String| KeysError::new(path, problem);
    let mut text = String::new();
    let unreadable = |error: std::io::Error| {
        refused(format!("the file of --api-keys-file cannot be read: {error}"))
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // One byte more shows that the file is too long, whatever its size says.
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    read.map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(refused(format!("it has more than {} MiB", MAX_BYTES >> 20)));
    }
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let file: File = toml::from_str(&text).map_err(|error| {
        // The whole error shows the line of the file, which may contain a key.
        let at = error.span().map_or(0, |span| span.start);
        refused(format!("line {}: {}", line(at), error.message()))
    })?;
    if file.key.is_empty() {
        return Err(refused("it has no keys: add a table [[key]] for each".into()));
    }
    if file.key.len() > MAX_KEYS {
        return Err(refused(format!("it has more than {MAX_KEYS} keys")));
    }
    let entries = file.key.into_iter().map(|entry| {
        let at = entry.span().start;
        let entry = entry.into_inner();
        let name = entry.name.as_ref().and_then(toml::Value::as_str).unwrap_or("?").to_owned();
        entry.check().map_err(|problem| {
            refused(format!("the key `{}` at line {}: {problem}", name.escape_debug(), line(at)))
        })
    });
    entries.collect()
}

impl Entry {
    fn check(&self) -> Result<(KeyDigest, String, KeyLimits), String> {
        let name = text(self.name.as_ref(), "name")?.ok_or("it has no `name`")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@:/".contains(c);
        if name.is_empty() || name.len() > MAX_NAME_LEN || !name.chars().all(is_plain) {
            return Err(format!(
                "`name` must have 1 to {MAX_NAME_LEN} ASCII letters, digits and . _ - @ : /"
            ));
        }
        let key = text(self.key.as_ref(), "key")?;
        let digest = match (key, text(self.sha256.as_ref(), "sha256")?) {
            (Some(""), None) => return Err("`key` is empty".into()),
            // A header's value is trimmed, so such a key could never be sent.
            (Some(key), None) if key.trim() != key => {
                return Err("`key` begins or ends with a space".into());
            }
            (Some(key), None) => digest(key.as_bytes()),
            (None, Some(hex)) => from_hex(hex).ok_or("`sha256` must have 64 hexadecimal digits")?,
            (None, None) => return Err("it has neither `key` nor `sha256`".into()),
            (Some(_), Some(_)) => return Err("it has both `key` and `sha256`".into()),
        };
        let positive = |value, name| integer(value, name, 1, i64::from(u32::MAX));
        let limits = KeyLimits {
            max_concurrent: positive(self.max_concurrent.as_ref(), "max_concurrent")?
                .map(|value| value as u32),
            max_tokens_per_minute: positive(
                self.max_tokens_per_minute.as_ref(),
                "max_tokens_per_minute",
            )?
            .map(|value| value as u32),
            weight: integer(self.weight.as_ref(), "weight", 1, 1000)?
                .and_then(|value| NonZeroU32::new(value as u32))
                .unwrap_or(NonZeroU32::MIN),
            min_priority: integer(
                self.min_priority.as_ref(),
                "min_priority",
                i64::from(i32::MIN),
                i64::from(i32::MAX),
            )?
            .map(|value| value as i32),
            admin: match &self.admin {
                None => false,
                Some(toml::Value::Boolean(value)) => *value,
                Some(_) => return Err("`admin` must be true or false".into()),
            },
        };
        Ok((digest, name.to_owned(), limits))
    }
}

fn text<'a>(value: Option<&'a toml::Value>, name: &str) -> Result<Option<&'a str>, String> {
    value.map(|value| value.as_str().ok_or(format!("`{name}` must be a string"))).transpose()
}

fn integer(
    value: Option<&toml::Value>,
    name: &str,
    least: i64,
    most: i64,
) -> Result<Option<i64>, String> {
    let is_in = |value: &i64| (least..=most).contains(value);
    let check = |value: &toml::Value| {
        let value = value.as_integer().filter(is_in);
        value.ok_or(format!("`{name}` must be a whole number from {least} to {most}"))
    };
    value.map(check).transpose()
}

/// The bytes of 64 hexadecimal digits.
fn from_hex(text: &str) -> Option<KeyDigest> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let byte = |pair: &[u8; 2]| {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)
    };
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok()
}
