//! Typed reads from `config.json` and its like, whose errors name the key; and the one place that
//! knows how transformers 4 and 5 spell the rope settings.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object of a checkpoint, or an object inside one. `null` counts as absent.
#[derive(Clone, Debug)]
pub struct HfConfig {
    file: String,
    /// The keys around this object, each with a dot after it.
    path: String,
    entries: Map<String, Value>,
    /// Keys that are not called as the file calls them, and what it does.
    renamed: &'static [(&'static str, &'static str)],
    /// The keys that were asked for, with the names of the objects around them: shared by all copies and parts.
    read: Arc<Mutex<BTreeSet<String>>>,
}

/// A key that nobody reads and nobody knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadKey {
    file: String,
    /// With the names of the objects around it.
    pub key: String,
    value: String,
    /// It may change what is computed: it is a number, or true.
    counts: bool,
}

impl UnreadKey {
    /// The key's own name.
    pub(crate) fn name(&self) -> &str {
        self.key.rsplit('.').next().unwrap_or(&self.key)
    }

    /// Whether it has a value, which is written as in JSON; 1 is 1.0.
    pub(crate) fn is(&self, value: &str) -> bool {
        let same = || self.value.parse::<f64>().ok().zip(value.parse::<f64>().ok());
        self.value == value || same().is_some_and(|(found, value)| found == value)
    }

    /// Refuses it where it may change what is computed.
    pub(crate) fn check(&self) -> Result<()> {
        match self.counts {
            true => Err(Error::UnknownKey {
                file: self.file.clone(),
                key: self.key.clone(),
                value: self.value.clone(),
            }),
            false => Ok(()),
        }
    }

    /// A line that tells users of it.
    pub(crate) fn remark(&self) -> String {
        format!("{}: `{}` = {} is not known, and not used", self.file, self.key, self.value)
    }
}

impl HfConfig {
    /// Parses the contents of the file `name`.
    ///
    /// # Errors
    /// They are not a JSON object.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self> {
        let entries = serde_json::from_slice(bytes).or_else(|error| {
            // Python writes infinities, which are no JSON.
            serde_json::from_slice(&without_infinities(bytes)).map_err(|_| error)
        });
        let entries =
            entries.map_err(|e| Error::Json { file: name.to_owned(), reason: e.to_string() })?;
        Ok(Self::from_entries(name, entries))
    }

    /// The object with these entries, of the file `file`.
    pub(crate) fn from_entries(file: &str, entries: Map<String, Value>) -> Self {
        let (path, read) = (String::new(), Arc::default());
        Self { file: file.to_owned(), path, entries, renamed: &[], read }
    }

    /// The value of a key, unless absent or `null`.
    pub fn raw(&self, key: &str) -> Option<&Value> {
        self.note(key);
        self.entries.get(key).filter(|v| !v.is_null())
    }

    fn note(&self, key: &str) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.insert(self.full(key));
    }

    /// The keys that nobody has asked for. Those with `null` are none.
    pub(crate) fn unread_keys(&self) -> Vec<UnreadKey> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let entries = self.entries.iter().filter(|(_, value)| !value.is_null());
        // A key that is off changes nothing.
        let off = [Value::Bool(false), 0.into(), 0.0.into()];
        let unread =
            entries.filter(|(key, value)| !off.contains(value) && !read.contains(&self.full(key)));
        unread.map(|(key, value)| self.unread(key, value)).collect()
    }

    pub(crate) fn unread(&self, key: &str, value: &Value) -> UnreadKey {
        let counts = value.is_number() || *value == Value::Bool(true);
        UnreadKey { file: self.file.clone(), key: self.full(key), value: shorten(value), counts }
    }

    /// Whether the key is written at all, be it as `null`.
    pub fn contains(&self, key: &str) -> bool {
        self.note(key);
        self.entries.contains_key(key)
    }

    /// All keys and values.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// A count of at least one.
    pub fn count(&self, key: &str) -> Result<usize> {
        self.count_opt(key)?.ok_or_else(|| self.missing(key, COUNT))
    }

    /// A count of at least one, if given.
    pub fn count_opt(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, COUNT, |v| {
            whole(v).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).map(|n| n as usize)
        })
    }

    /// A count of at least one, and at most `most`: what is computed from it stays far from overflowing.
    pub fn bounded(&self, key: &str, most: usize) -> Result<usize> {
        self.bounded_opt(key, most)?.ok_or_else(|| self.missing(key, COUNT))
    }

    /// The same as [`Self::bounded`], if given.
    pub fn bounded_opt(&self, key: &str, most: usize) -> Result<Option<usize>> {
        match self.count_opt(key)? {
            Some(count) if count > most => {
                let found = self.raw(key).cloned().unwrap_or_default();
                Err(self.unsupported(key, &found, &format!("; at most {most} is")))
            }
            count => Ok(count),
        }
    }

    /// A whole number, zero included.
    pub fn index(&self, key: &str) -> Result<usize> {
        const INDEX: &str = "a whole number";
        self.typed(key, INDEX, |v| whole(v).and_then(|n| usize::try_from(n).ok()))?
            .ok_or_else(|| self.missing(key, INDEX))
    }

    /// A whole number, zero included; `default` where absent.
    pub fn index_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.raw(key).is_none() { Ok(default) } else { self.index(key) }
    }

    /// A finite number.
    pub fn float(&self, key: &str) -> Result<f64> {
        self.float_opt(key)?.ok_or_else(|| self.missing(key, NUMBER))
    }

    /// A finite number, if given.
    pub fn float_opt(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, NUMBER, number)
    }

    /// A number that must be written, though it may be `null`: its absence would mean a default
    /// that changes the computation.
    pub fn float_or_null(&self, key: &str) -> Result<Option<f64>> {
        self.written(key, "a number or null")?;
        self.float_opt(key)
    }

    /// A count that must be written, though it may be `null`.
    pub fn count_or_null(&self, key: &str) -> Result<Option<usize>> {
        self.written(key, "a number or null")?;
        self.count_opt(key)
    }

    /// A boolean; `default` where absent.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.typed(key, "true or false", flag)?.unwrap_or(default))
    }

    /// A string, if given.
    pub fn text_opt(&self, key: &str) -> Result<Option<&str>> {
        match self.raw(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.ill_typed(key, other, "a string")),
        }
    }

    /// A list of strings, if given.
    pub fn texts_opt(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.raw(key) else { return Ok(None) };
        let texts = value.as_array().and_then(|l| l.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.ill_typed(key, value, "a list of strings"))
    }

    /// A list of numbers.
    pub fn floats(&self, key: &str) -> Result<Vec<f64>> {
        const LIST: &str = "a list of numbers";
        self.typed(key, LIST, |v| v.as_array()?.iter().map(number).collect())?
            .ok_or_else(|| self.missing(key, LIST))
    }

    /// Token ids, written as one number or as a list; empty where absent. One below zero or `null` is none.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>> {
        let id = |v: &Value| match v {
            Value::Null => Some(None),
            v => whole(v).filter(|n| *n <= i64::from(u32::MAX)).map(|n| u32::try_from(n).ok()),
        };
        let ids = self.typed(key, "a token id or a list of them", |v| match v {
            Value::Array(list) => list.iter().map(id).collect::<Option<Vec<_>>>(),
            one => id(one).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default().into_iter().flatten().collect())
    }

    /// Places in a list, written as one number or as a list; empty where absent.
    pub fn indices(&self, key: &str) -> Result<Vec<u32>> {
        let index = |v: &Value| whole(v).and_then(|n| u32::try_from(n).ok());
        let indices = self.typed(key, "a list of integers", |v| match v {
            Value::Array(list) => list.iter().map(index).collect(),
            one => index(one).map(|n| vec![n]),
        })?;
        Ok(indices.unwrap_or_default())
    }

    /// An object inside this one, if given.
    pub fn section(&self, key: &str) -> Result<Option<Self>> {
        match self.raw(key) {
            None => Ok(None),
            Some(Value::Object(entries)) => Ok(Some(Self {
                file: self.file.clone(),
                path: format!("{}{key}.", self.path),
                entries: entries.clone(),
                renamed: &[],
                read: Arc::clone(&self.read),
            })),
            Some(other) => Err(self.ill_typed(key, other, "an object")),
        }
    }

    /// The RoPE settings in transformers 5's form, whichever form they are written in.
    ///
    /// transformers 4 writes `rope_theta`, `partial_rotary_factor` and
    /// `original_max_position_embeddings` beside an optional `rope_scaling` with a `type` or
    /// `rope_type`; 5 writes all of them into `rope_parameters`. A value inside the object wins,
    /// except for `original_max_position_embeddings`; transformers does the same.
    /// Source: transformers `modeling_rope_utils.py`, `convert_rope_params_to_dict` and
    /// `standardize_rope_params`.
    pub fn rope_parameters(&self) -> Result<Self> {
        let written = match self.section("rope_parameters")? {
            Some(section) => Some(section),
            None => self.section("rope_scaling")?,
        };
        let mut rope = written.unwrap_or_else(|| Self::from_entries(&self.file, Map::new()));
        if let Some((key, value)) = rope.entries().find(|(_, v)| v.is_object()) {
            return Err(rope.unsupported(
                key,
                value,
                "; one set of rope settings for all layers is",
            ));
        }
        if rope.raw("rope_type").is_none() {
            let kind = rope.raw("type").cloned().unwrap_or_else(|| "default".into());
            rope.entries.insert("rope_type".into(), kind);
        }
        for key in ["rope_theta", "partial_rotary_factor"] {
            if let (None, Some(value)) = (rope.raw(key), self.raw(key)) {
                rope.entries.insert(key.into(), value.clone());
            }
        }
        let original = "original_max_position_embeddings";
        if let Some(value) = self.raw(original) {
            rope.entries.insert(original.into(), value.clone());
        }
        Ok(rope)
    }

    /// This configuration with a key set where it is absent.
    #[must_use]
    pub(crate) fn with_default(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut config = self.clone();
        if config.raw(key).is_none() {
            config.entries.insert(key.into(), value.into());
        }
        config
    }

    /// This configuration with keys by their usual names, each of which is given with what the file calls it; errors name the latter.
    #[must_use]
    pub(crate) fn renamed(&self, names: &'static [(&'static str, &'static str)]) -> Self {
        let mut config = Self { renamed: names, ..self.clone() };
        for (usual, written) in names {
            if let Some(value) = config.entries.remove(*written) {
                config.entries.insert((*usual).into(), value);
            }
        }
        // Two keys may be the same one.
        for (_, written) in names {
            config.note(written);
        }
        config
    }

    /// This configuration with some keys taken out.
    #[must_use]
    pub(crate) fn without(&self, keys: &[&str]) -> Self {
        keys.iter().for_each(|key| self.note(key));
        let mut config = self.clone();
        config.entries.retain(|key, _| !keys.contains(&key.as_str()));
        config
    }

    /// This configuration with the rope settings of one type of layers in place of those of all types; `None` where all
    /// layers have the same.
    pub(crate) fn with_rope_of(&self, layer_type: &str) -> Result<Option<Self>> {
        let Some(all) = self.section("rope_parameters")? else { return Ok(None) };
        if all.entries.values().all(|settings| !settings.is_object()) {
            return Ok(None);
        }
        let settings = all.section(layer_type)?;
        let settings = settings.ok_or_else(|| all.missing(layer_type, "an object"))?;
        let mut config = self.clone();
        config.entries.insert("rope_parameters".into(), Value::Object(settings.entries));
        Ok(Some(config))
    }

    /// Refuses a key by name unless it is absent, `null`, `false` or an empty list.
    pub fn refuse(&self, key: &str) -> Result<()> {
        match self.raw(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::Array(list)) if list.is_empty() => Ok(()),
            Some(value) => Err(self.unsupported(key, value, " by this architecture")),
        }
    }

    pub(crate) fn missing(&self, key: &str, expected: &'static str) -> Error {
        Error::KeyMissing { file: self.file.clone(), key: self.full(key), expected }
    }

    pub(crate) fn ill_typed(&self, key: &str, found: &Value, expected: &'static str) -> Error {
        let found = shorten(found);
        Error::KeyType { file: self.file.clone(), key: self.full(key), found, expected }
    }

    pub(crate) fn unsupported(&self, key: &str, value: &Value, hint: &str) -> Error {
        Error::Unsupported {
            file: self.file.clone(),
            key: self.full(key),
            value: shorten(value),
            hint: hint.to_owned(),
        }
    }

    fn written(&self, key: &str, expected: &'static str) -> Result<()> {
        if self.contains(key) { Ok(()) } else { Err(self.missing(key, expected)) }
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.raw(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.ill_typed(key, value, expected))
    }

    fn full(&self, key: &str) -> String {
        let written = self.renamed.iter().find(|(usual, _)| *usual == key);
        format!("{}{}", self.path, written.map_or(key, |(_, written)| written))
    }
}

/// A finite number. Tools write some as texts.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        value => value.as_f64(),
    }
}

/// A whole number, which may be written with a point or as a text.
fn whole(value: &Value) -> Option<i64> {
    let rounded =
        || number(value).filter(|number| number.fract() == 0.0).map(|number| number as i64);
    value.as_i64().or_else(rounded)
}

/// True or false. Python's spelling occurs as a text.
fn flag(value: &Value) -> Option<bool> {
    match value {
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        value => value.as_bool(),
    }
}

/// A file with `null` in place of the infinities and NaNs that Python writes and JSON has not.
fn without_infinities(bytes: &[u8]) -> Vec<u8> {
    const NAMES: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let mut out = Vec::with_capacity(bytes.len());
    let (mut rest, mut in_string) = (bytes, false);
    while let [first, ..] = rest {
        let name = NAMES.iter().find(|name| !in_string && rest.starts_with(name));
        let taken = match (name, first) {
            (Some(name), _) => {
                out.extend_from_slice(b"null");
                rest = &rest[name.len()..];
                continue;
            }
            (None, b'\\') if in_string => 2.min(rest.len()),
            (None, b'"') => {
                in_string = !in_string;
                1
            }
            _ => 1,
        };
        out.extend_from_slice(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

const COUNT: &str = "a whole number of at least 1";
const NUMBER: &str = "a number";

/// A value as JSON, cut to 80 characters.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> HfConfig {
        HfConfig::parse("config.json", text.as_bytes()).unwrap()
    }

    #[test]
    fn errors_name_the_key_and_what_is_needed() {
        let c = config(r#"{"hidden_size": "big", "zero": 0, "rope": {"factor": []}}"#);
        assert_eq!(
            c.count("hidden_size").unwrap_err().to_string(),
            "config.json: `hidden_size` is \"big\", but a whole number of at least 1 is needed"
        );
        assert!(c.count("zero").is_err());
        assert_eq!(
            c.count("layers").unwrap_err().to_string(),
            "config.json: `layers` is missing; a whole number of at least 1 is needed"
        );
        let rope = c.section("rope").unwrap().unwrap();
        assert_eq!(
            rope.float("factor").unwrap_err().to_string(),
            "config.json: `rope.factor` is [], but a number is needed"
        );
    }

    #[test]
    fn infinities_are_null_and_texts_stay_as_they_are() {
        let c =
            config(r#"{"a": [0.0, Infinity, -Infinity, NaN], "b": "\\\"Infinity\"", "c": "NaN"}"#);
        assert_eq!(c.raw("a").unwrap().to_string(), "[0.0,null,null,null]");
        assert_eq!(c.text_opt("b").unwrap(), Some("\\\"Infinity\""));
        assert_eq!(c.text_opt("c").unwrap(), Some("NaN"));
        let error = HfConfig::parse("config.json", b"{\"a\": Infini}").unwrap_err().to_string();
        assert!(error.contains("line 1 column 7"), "{error}");
        assert!(HfConfig::parse("config.json", b"{\"a\": \"\\").is_err());
    }

    #[test]
    fn both_spellings_of_rope_read_the_same() {
        let four = config(
            r#"{"rope_theta": 5e5, "partial_rotary_factor": 0.5,
                "rope_scaling": {"type": "linear", "factor": 2.0}}"#,
        );
        let five = config(
            r#"{"rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5,
                "rope_type": "linear", "factor": 2.0}}"#,
        );
        for c in [four, five] {
            let rope = c.rope_parameters().unwrap();
            assert_eq!(rope.text_opt("rope_type").unwrap(), Some("linear"));
            assert_eq!(rope.float("rope_theta").unwrap(), 5e5);
            assert_eq!(rope.float("partial_rotary_factor").unwrap(), 0.5);
            assert_eq!(rope.float("factor").unwrap(), 2.0);
        }
    }

    #[test]
    fn rope_settings_per_layer_type_are_refused() {
        let c = config(r#"{"rope_parameters": {"full_attention": {"rope_type": "default"}}}"#);
        let e = c.rope_parameters().unwrap_err().to_string();
        assert!(e.contains("`rope_parameters.full_attention`"), "{e}");
    }

    #[test]
    fn token_ids_are_one_or_many() {
        let c = config(
            r#"{"a": 2, "b": [1, 2], "c": null, "d": -1, "e": [3.0, -1, null, "4"], "f": [1.5]}"#,
        );
        assert_eq!(c.token_ids("a").unwrap(), [2]);
        assert_eq!(c.token_ids("b").unwrap(), [1, 2]);
        assert!(c.token_ids("c").unwrap().is_empty());
        assert!(c.token_ids("d").unwrap().is_empty());
        assert_eq!(c.token_ids("e").unwrap(), [3, 4]);
        assert!(c.token_ids("f").is_err());
    }

    #[test]
    fn numbers_may_be_texts() {
        let c = config(r#"{"a": "1e-05", "b": "10000.0", "c": 12.0, "d": "True", "e": "wide"}"#);
        assert_eq!((c.float("a").unwrap(), c.float("b").unwrap()), (1e-5, 1e4));
        assert_eq!((c.count("b").unwrap(), c.count("c").unwrap()), (10_000, 12));
        assert!(c.flag_or("d", false).unwrap());
        for refused in
            [c.float("e").map(drop), c.count("e").map(drop), c.flag_or("e", true).map(drop)]
        {
            assert!(refused.unwrap_err().to_string().contains("`e` is \"wide\", but"));
        }
    }
}
