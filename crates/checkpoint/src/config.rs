//! Typed reads from `config.json` and its like, whose errors name the key; and the one place that
//! knows how transformers 4 and 5 spell the rope settings.

use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    files::CheckpointFiles,
};

/// A JSON object of a checkpoint, or an object inside one. `null` counts as absent.
#[derive(Clone, Debug)]
pub struct HfConfig {
    file: String,
    /// The keys around this object, each with a dot after it.
    path: String,
    entries: Map<String, Value>,
    /// Keys that are not called as the file calls them, and what it does.
    renamed: &'static [(&'static str, &'static str)],
}

impl HfConfig {
    /// Reads a file; `None` where there is none.
    ///
    /// # Errors
    /// The file cannot be read or is not a JSON object.
    pub fn read(files: &CheckpointFiles, name: &str) -> Result<Option<Self>> {
        let shown = files.shown_name(name);
        files.read(name)?.map(|bytes| Self::parse(shown, &bytes)).transpose()
    }

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
        Ok(Self { file: name.to_owned(), path: String::new(), entries, renamed: &[] })
    }

    /// The object with these entries, of the file `file`.
    pub(crate) fn from_entries(file: &str, entries: Map<String, Value>) -> Self {
        Self { file: file.to_owned(), path: String::new(), entries, renamed: &[] }
    }

    /// The value of a key, unless absent or `null`.
    pub fn raw(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is written at all, be it as `null`.
    pub fn contains(&self, key: &str) -> bool {
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
            let n =
                v.as_u64().or_else(|| v.as_f64().filter(|f| f.fract() == 0.0).map(|f| f as u64));
            n.filter(|&n| n > 0 && n <= u64::from(u32::MAX)).map(|n| n as usize)
        })
    }

    /// A count of at least one, and at most `most`: what is computed from it stays far from overflowing.
    pub fn bounded(&self, key: &str, most: usize) -> Result<usize> {
        self.bounded_opt(key, most)?.ok_or_else(|| self.missing(key, COUNT))
    }

    /// As [`Self::bounded`], if given.
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
        self.typed(key, INDEX, |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))?
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
        self.typed(key, NUMBER, Value::as_f64)
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
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(default))
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
        self.typed(key, LIST, |v| v.as_array()?.iter().map(Value::as_f64).collect())?
            .ok_or_else(|| self.missing(key, LIST))
    }

    /// Token ids, written as one number or as a list; empty where absent.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>> {
        self.numbers(key, "a token id or a list of them")
    }

    /// Places in a list, written as one number or as a list; empty where absent.
    pub fn indices(&self, key: &str) -> Result<Vec<u32>> {
        self.numbers(key, "a list of whole numbers")
    }

    fn numbers(&self, key: &str, expected: &'static str) -> Result<Vec<u32>> {
        let number = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let numbers = self.typed(key, expected, |v| match v {
            Value::Array(list) => list.iter().map(number).collect(),
            one => number(one).map(|n| vec![n]),
        })?;
        Ok(numbers.unwrap_or_default())
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
            })),
            Some(other) => Err(self.ill_typed(key, other, "an object")),
        }
    }

    /// The rope settings in transformers 5's form, whichever form they are written in.
    ///
    /// transformers 4 writes `rope_theta`, `partial_rotary_factor` and
    /// `original_max_position_embeddings` beside an optional `rope_scaling` with a `type` or
    /// `rope_type`; 5 writes all of them into `rope_parameters`. As in transformers, a value inside
    /// the object wins, except for `original_max_position_embeddings`.
    /// Source: transformers `modeling_rope_utils.py`, `convert_rope_params_to_dict` and
    /// `standardize_rope_params`.
    pub fn rope_parameters(&self) -> Result<Self> {
        let written = match self.section("rope_parameters")? {
            Some(section) => Some(section),
            None => self.section("rope_scaling")?,
        };
        let mut rope = written.unwrap_or_else(|| Self {
            file: self.file.clone(),
            path: String::new(),
            entries: Map::new(),
            renamed: &[],
        });
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
        config
    }

    /// This configuration with some keys taken out.
    #[must_use]
    pub(crate) fn without(&self, keys: &[&str]) -> Self {
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

/// A file with `null` in place of the numbers that Python writes and JSON has not.
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
        let c = config(r#"{"a": 2, "b": [1, 2], "c": null, "d": -1}"#);
        assert_eq!(c.token_ids("a").unwrap(), [2]);
        assert_eq!(c.token_ids("b").unwrap(), [1, 2]);
        assert!(c.token_ids("c").unwrap().is_empty());
        assert!(c.token_ids("d").is_err());
    }
}
