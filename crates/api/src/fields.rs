//! The top-level fields of a request body. Endpoints take them one by one, and the rest is refused.

use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{FieldError, clip, excerpt};
use crate::neutral::{is_neutral, is_off, neutral_values};
use crate::not_held::NotHeld;
use crate::scalar::Integer;

/// Maximum number of fields, more than any request has.
const MAX_FIELDS: usize = 256;

/// Fields of the protocol that would change the output and are not supported yet.
const NOT_YET: &[&str] = &[
    "allowed_token_ids",
    "audio",
    "bad_words",
    "documents",
    "length_penalty",
    "truncate_prompt_tokens",
    "web_search_options",
];

/// The fields of a JSON object that are not taken yet. `null` counts as absent.
#[derive(Debug)]
pub struct Fields<'a> {
    entries: Vec<(String, &'a RawValue)>,
    not_held: NotHeld,
}

impl<'a> Fields<'a> {
    /// Splits a body into its fields without parsing the values.
    pub fn parse(body: &'a [u8]) -> Result<Self, FieldError> {
        let text = std::str::from_utf8(body).map_err(|e| {
            FieldError::body(format!(
                "The request body is not UTF-8: byte {} is invalid.",
                e.valid_up_to()
            ))
        })?;
        serde_json::from_str(text).map_err(|e| {
            let what = if e.is_data() { "is not a valid request" } else { "is not valid JSON" };
            FieldError::body(format!("The request body {what}: {}.", clip(&e.to_string())))
        })
    }

    /// The field `name` as a `T`; `None` if it is absent, null, or a neutral value of another type, such as `[]` for an object.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, FieldError> {
        let Some(index) = self.entries.iter().position(|(key, _)| key == name) else {
            return Ok(None);
        };
        let (_, raw) = self.entries.swap_remove(index);
        if raw.get() == "null" {
            return Ok(None);
        }
        let mut deserializer = serde_json::Deserializer::from_str(raw.get());
        match serde_path_to_error::deserialize(&mut deserializer) {
            Ok(value) => Ok(Some(value)),
            Err(_) if is_off(name, raw.get()) => Ok(None),
            Err(e) => Err(value_error(name, &e.path().to_string(), e.inner())),
        }
    }

    /// The field `name` as an integer; `1.0` is accepted.
    pub fn take_integer(&mut self, name: &str) -> Result<Option<i64>, FieldError> {
        Ok(self.take::<Integer>(name)?.map(|integer| integer.0))
    }

    /// The field `name`, which is required.
    pub fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, FieldError> {
        self.take(name)?.ok_or_else(|| FieldError::new(name, format!("`{name}` is missing.")))
    }

    /// Ignores the part at `path`, of this kind. The response header lists it.
    pub(crate) fn leave_out(&mut self, path: impl AsRef<str>, kind: Option<&str>) {
        self.not_held.push(path, kind);
    }

    /// Refuses fields that were not taken, except nulls and values that cannot change the output. Returns the ignored parts.
    pub fn finish(self) -> Result<NotHeld, FieldError> {
        for (name, raw) in self.entries {
            if raw.get() == "null" || is_neutral(&name, raw.get()) {
                continue;
            }
            if let Some(values) = neutral_values(&name) {
                let message =
                    format!("`{name}` other than {values} is not supported yet: leave it out.");
                return Err(FieldError::new(&name, message));
            }
            if NOT_YET.contains(&name.as_str()) {
                return Err(FieldError::new(
                    &name,
                    format!("`{name}` is not supported yet: leave it out."),
                ));
            }
            return Err(FieldError::new(
                &name,
                format!("`{}` is not a field of this endpoint: leave it out.", excerpt(&name)),
            ));
        }
        Ok(self.not_held)
    }
}

/// The error of a value inside the field `name`; `path` is `.` for the field itself.
fn value_error(name: &str, path: &str, error: &serde_json::Error) -> FieldError {
    // The path of an invalid key ends without a name.
    let path =
        path.strip_suffix('?').map_or(path, |before| before.strip_suffix('.').unwrap_or("."));
    let param = match path {
        "." => name.to_owned(),
        inner if inner.starts_with('[') => format!("{name}{inner}"),
        inner => format!("{name}.{inner}"),
    };
    // serde's position is relative to the field, which does not help a user.
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(before, _)| before);
    // serde's error for a lone surrogate complains about the next escape, which does not exist.
    let is_half =
        ["unexpected end of hex escape", "lone leading surrogate in hex escape"].contains(&message);
    let message = if is_half {
        "it has a lone surrogate (half of a UTF-16 pair), which is not a character"
    } else {
        message
    };
    FieldError { message: format!("`{name}`: {}.", clip(message)), ..FieldError::new(param, "") }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_map(FieldsVisitor)
            .map(|entries| Fields { entries, not_held: NotHeld::default() })
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Vec<(String, &RawValue)> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format_args!(
                    "the field `{}` occurs twice",
                    excerpt(&key)
                )));
            }
            if entries.len() == MAX_FIELDS {
                return Err(A::Error::custom(format_args!("more than {MAX_FIELDS} fields")));
            }
            entries.push((key, map.next_value()?));
        }
        Ok(entries)
    }
}

/// A switch of a nested object that has to be off: `false` or `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Off;

impl<'de> Deserialize<'de> for Off {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<bool>::deserialize(deserializer)? {
            None | Some(false) => Ok(Off),
            Some(true) => Err(D::Error::custom("only false is supported: leave it out")),
        }
    }
}

/// An unsupported key of a nested object, accepted only as `null`.
pub(crate) struct Absent;

impl<'de> Deserialize<'de> for Absent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<serde::de::IgnoredAny>::deserialize(deserializer)? {
            None => Ok(Absent),
            Some(_) => Err(D::Error::custom("this field is not supported: leave it out")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &str) -> Fields<'_> {
        Fields::parse(body.as_bytes()).unwrap()
    }

    #[test]
    fn null_counts_as_absent() {
        let mut fields = fields(r#"{"a": null, "b": 2.0, "unknown": null}"#);
        assert_eq!(fields.take_integer("a").unwrap(), None);
        assert_eq!(fields.take_integer("b").unwrap(), Some(2));
        fields.finish().unwrap();
    }

    #[test]
    fn neutral_values_may_be_of_another_type() {
        type Map = std::collections::BTreeMap<String, f64>;
        for (body, name) in [(r#"{"logit_bias": []}"#, "logit_bias"), (r#"{"n": null}"#, "n")] {
            assert_eq!(fields(body).take::<Map>(name).unwrap(), None);
        }
        for (body, name) in [
            (r#"{"logit_bias": [1]}"#, "logit_bias"),
            // Any value is accepted only where nobody reads it.
            (r#"{"metadata": 5}"#, "metadata"),
        ] {
            let error = fields(body).take::<Map>(name).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
        }
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        let error = fields(r#"{"colour": 1}"#).finish().unwrap_err();
        assert_eq!(error.param.as_deref(), Some("colour"));
        let error = fields(r#"{"bad_words": ["a"]}"#).finish().unwrap_err();
        assert!(error.message.contains("not supported yet"), "{}", error.message);
        fields(r#"{"user": "u", "metadata": {"a": "b"}, "store": true, "bad_words": []}"#)
            .finish()
            .unwrap();
    }

    #[test]
    fn errors_name_the_path() {
        let error = fields(r#"{"ids": [1, "x"]}"#).take::<Vec<u32>>("ids").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("ids[1]"));
        assert!(!error.message.contains("line"), "{}", error.message);
        let error = fields(r#"{"t": "hot"}"#).take::<f64>("t").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("t"));
    }

    #[test]
    fn broken_bodies_are_refused() {
        for body in
            ["", "{", "[]", "null", "7", "{\"a\": NaN}", "{\"a\":1,\"a\":2}", "\u{feff}{}", "{} x"]
        {
            assert_eq!(Fields::parse(body.as_bytes()).unwrap_err().param, None, "{body}");
        }
        assert!(Fields::parse(b"{\"a\": \"\xff\"}").is_err());
    }

    #[test]
    fn a_long_value_is_not_echoed() {
        let body = format!(r#"{{"n": "{}"}}"#, "a".repeat(10_000));
        let error = fields(&body).take_integer("n").unwrap_err();
        assert!(error.message.len() < 200, "{}", error.message);
    }

    #[test]
    fn deep_nesting_is_refused_and_not_followed() {
        let body = format!(r#"{{"a": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let error = fields(&body).take::<serde_json::Value>("a").unwrap_err();
        assert!(error.message.contains("recursion"), "{}", error.message);
    }

    #[test]
    fn half_a_surrogate_pair_is_called_so() {
        for text in [r#""\ud83d""#, r#""\ud83d\u0041""#, r#""\udc00""#] {
            let body = format!(r#"{{"t": {text}}}"#);
            let error = fields(&body).take::<String>("t").unwrap_err();
            assert!(error.message.contains("lone surrogate"), "{}", error.message);
        }
    }

    #[test]
    fn numbers_beyond_floats_are_refused() {
        assert!(fields(r#"{"t": 1e999}"#).take::<f64>("t").is_err());
    }
}
