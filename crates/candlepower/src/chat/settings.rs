//! Fields of the requests, such as the temperature, checked by the bounds in the server's OpenAPI document.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

/// Fields that the conversation sets itself.
const OWN: [&str; 7] = ["messages", "model", "stream", "stream_options", "tools", "n", "echo"];
/// Maximum depth of schemas that refer to each other.
const MAX_DEPTH: usize = 8;

/// Settings of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) values: BTreeMap<String, Value>,
    /// The fields that the server documents; empty if it documents none.
    fields: BTreeMap<String, Value>,
}

impl Settings {
    /// Settings for the server with this OpenAPI document.
    pub(super) fn new(document: &Value) -> Self {
        let post = &document["paths"]["/v1/chat/completions"]["post"];
        let schema = &post["requestBody"]["content"]["application/json"]["schema"];
        let mut fields = BTreeMap::new();
        collect(document, schema, 0, &mut fields);
        Self { values: BTreeMap::new(), fields }
    }

    /// Sets a field, or with `default` removes it.
    ///
    /// # Errors
    /// The server has no such field, or the value is not allowed.
    pub(super) fn set(&mut self, name: &str, text: &str) -> Result<()> {
        if OWN.contains(&name) {
            bail!("{name} is set by the conversation itself");
        }
        let field = self.fields.get(name);
        if field.is_none() && !self.fields.is_empty() {
            bail!("the server has no field {name}; /set lists the usual ones");
        }
        if text == "default" {
            self.values.remove(name);
            return Ok(());
        }
        // A value that is no JSON is a text, so that texts need no quotes.
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
        if let Some(field) = field {
            check(name, &value, field)?;
        }
        self.values.insert(name.to_owned(), value);
        Ok(())
    }

    /// The settings in force and the usual fields with their bounds, one a line.
    pub(super) fn describe(&self, has_own_limit: bool) -> String {
        const USUAL: [&str; 9] = [
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "max_tokens",
            "seed",
            "stop",
            "repetition_penalty",
            "reasoning_effort",
        ];
        let others = self.values.keys().map(String::as_str).filter(|name| !USUAL.contains(name));
        let line = |name: &str| {
            let field = self.fields.get(name).unwrap_or(&Value::Null);
            let value = self.values.get(name).map(Value::to_string);
            let value = value.unwrap_or_else(|| match &field["default"] {
                Value::Null if name == "max_tokens" && has_own_limit => {
                    "(the rest of the context)".into()
                }
                Value::Null => "(the server's default)".into(),
                default => format!("{default} (default)"),
            });
            let bounds = bounds(field).map_or_else(String::new, |bounds| format!("  {bounds}"));
            format!("{name:<20} {value}{bounds}\n")
        };
        USUAL.into_iter().chain(others).map(line).collect()
    }
}

/// Collects the properties of a schema and of the schemas that it consists of.
fn collect(document: &Value, schema: &Value, depth: usize, fields: &mut BTreeMap<String, Value>) {
    if depth > MAX_DEPTH {
        return;
    }
    let referred =
        schema["$ref"].as_str().and_then(|path| document.pointer(path.strip_prefix('#')?));
    let parts = schema["allOf"].as_array().into_iter().flatten();
    for part in referred.into_iter().chain(parts) {
        collect(document, part, depth + 1, fields);
    }
    let own = schema["properties"].as_object().into_iter().flat_map(Map::iter);
    fields.extend(own.map(|(name, field)| (name.clone(), field.clone())));
}

/// Checks type and bounds of a value. Fields of several kinds are left to the server.
fn check(name: &str, value: &Value, field: &Value) -> Result<()> {
    let types: Vec<&str> = match &field["type"] {
        Value::String(only) => vec![only],
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        _ => return Ok(()),
    };
    let is = |kind: &&str| match *kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    if !types.iter().any(is) {
        let needed: Vec<&str> = types.into_iter().filter(|kind| *kind != "null").collect();
        bail!("{name} needs a value of the type {}, not {value}", needed.join(" or "));
    }
    let Some(number) = value.as_f64() else { return Ok(()) };
    let is_below = field["minimum"].as_f64().is_some_and(|minimum| number < minimum);
    let is_above = field["maximum"].as_f64().is_some_and(|maximum| number > maximum);
    if is_below || is_above {
        bail!("{name} must be {}, not {value}", bounds(field).unwrap_or_default());
    }
    Ok(())
}

/// The bounds of a field as text.
fn bounds(field: &Value) -> Option<String> {
    match (&field["minimum"], &field["maximum"]) {
        (Value::Null, Value::Null) => None,
        (minimum, Value::Null) => Some(format!("at least {minimum}")),
        (Value::Null, maximum) => Some(format!("at most {maximum}")),
        (minimum, maximum) => Some(format!("from {minimum} to {maximum}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings() -> Settings {
        let sampling = json!({"properties": {
            "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2, "default": 1.0},
            "seed": {"type": ["integer", "null"]},
        }});
        let chat = json!({"allOf": [{"$ref": "#/components/schemas/S"}], "properties": {"stop": {"oneOf": []}, "n": {}}});
        let body = json!({"content": {"application/json": {"schema": chat}}});
        Settings::new(&json!({
            "paths": {"/v1/chat/completions": {"post": {"requestBody": body}}}, "components": {"schemas": {"S": sampling}},
        }))
    }

    #[test]
    fn values_are_checked_by_the_servers_bounds() {
        let mut settings = settings();
        for (name, value) in
            [("temperature", "0"), ("seed", "7"), ("stop", "a b"), ("stop", "[\"x\"]")]
        {
            settings.set(name, value).unwrap();
        }
        assert_eq!(settings.values["stop"], json!(["x"]));
        for (name, value, words) in [
            ("temperature", "2.5", "from 0 to 2"),
            ("temperature", "warm", "number"),
            ("seed", "1.5", "integer"),
            ("n", "2", "itself"),
            ("tempo", "1", "no field"),
        ] {
            let error = settings.set(name, value).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        settings.set("temperature", "default").unwrap();
        assert!(!settings.values.contains_key("temperature"));
        assert!(settings.describe(false).contains("1.0 (default)  from 0 to 2"));
    }

    #[test]
    fn types_and_bounds_of_any_kind_are_named() {
        let field = |kind: &str| json!({"type": kind});
        for (good, bad, kind) in [
            (json!("a"), json!(1), "string"),
            (json!([1]), json!("a"), "array"),
            (json!({}), json!([]), "object"),
            (json!(true), json!(0), "boolean"),
        ] {
            check("x", &good, &field(kind)).unwrap();
            let error = check("x", &bad, &field(kind)).unwrap_err().to_string();
            assert!(error.contains(&format!("of the type {kind}")), "{error}");
        }
        check("x", &json!(1), &field("a type of later versions")).unwrap();
        for (bounds, value, words) in [
            (json!({"type": "integer", "minimum": 1}), 0, "must be at least 1"),
            (json!({"type": "integer", "maximum": 1}), 2, "must be at most 1"),
        ] {
            let error = check("x", &json!(value), &bounds).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_schema_that_contains_itself_is_read_to_a_depth() {
        let schema = json!({"$ref": "#/s"});
        let document = json!({"s": {"allOf": [schema], "properties": {"a": {"type": "string"}}}});
        let mut fields = BTreeMap::new();
        collect(&document, &document["s"], 0, &mut fields);
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn a_server_without_a_document_takes_all_fields() {
        let mut settings = Settings::new(&Value::Null);
        settings.set("tempo", "1").unwrap();
        assert!(settings.set("messages", "[]").is_err());
    }
}
