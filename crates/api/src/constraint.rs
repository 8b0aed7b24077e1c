//! Constraints on the output: `response_format`, `structured_outputs` and older field names.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::{FieldError, excerpt};
use crate::fields::{Fields, Off};

/// A constraint on the output, and its field.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputConstraint {
    /// Path of the field.
    pub param: &'static str,
    /// The kind of constraint.
    pub kind: ConstraintKind,
}

/// A kind of constraint on the output.
#[derive(Clone, Debug, PartialEq)]
pub enum ConstraintKind {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema.
    JsonSchema(Value),
    /// Text that matches a regular expression as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of a grammar, in Lark's notation or GBNF.
    Grammar(String),
    /// Text with constrained parts.
    StructuralTag(Value),
}

/// Format of the answer: plain text, any JSON object, JSON of a schema, or text with constrained parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    /// `text`, `json_object`, `json_schema` or `structural_tag`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema, with the type `json_schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<JsonSchemaFormat>,
    /// With the type `structural_tag`: the structure, an object with a `type` (`triggered_tags`, `tag`, `json_schema`, ..).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// With the type `structural_tag`, older form: `begin`, `schema` and `end` of each constrained part.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub structures: Option<Value>,
    /// With `structures`: strings after which one of them must follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggers: Option<Vec<String>>,
    /// With the type `json_object` or `json_schema`: the schema, for clients of Together and llama.cpp.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Same as `schema`, for clients of TGI; with the type `regex`, the regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub value: Option<Value>,
}

/// A schema and its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonSchemaFormat {
    /// Name of the schema; it has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Purpose of the schema; it has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON schema.
    #[schema(value_type = Object)]
    pub schema: Option<Value>,
    /// Accepted and ignored: the schema is always enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// A constraint on the output; exactly one field is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StructuredOutputs {
    /// JSON schema, as an object or as JSON text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub json: Option<Value>,
    /// Regular expression that the whole text must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// Texts; the output is one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Vec<String>>,
    /// Grammar, in Lark's notation or in GBNF, llama.cpp's EBNF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<String>,
    /// With true, the output is any JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_object: Option<bool>,
    /// Structural tag, as an object or as JSON text; see `response_format`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub structural_tag: Option<Value>,
    /// Fields of vLLM's class, which its clients send with all others.
    #[serde(default, skip_serializing)]
    #[schema(ignore)]
    disable_any_whitespace: Off,
    #[serde(default, skip_serializing)]
    #[schema(ignore)]
    disable_additional_properties: Off,
    /// It has no effect, since there is one implementation.
    #[serde(default, skip_serializing)]
    #[schema(ignore)]
    disable_fallback: Option<bool>,
    #[serde(default, skip_serializing)]
    #[schema(ignore)]
    whitespace_pattern: Option<Never>,
}

/// The type of a field that may only be null.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum Never {}

impl OutputConstraint {
    /// The constraint of a request, from one of its fields.
    ///
    /// # Errors
    /// A field is invalid, or two fields have a constraint.
    pub fn new(
        response_format: Option<&ResponseFormat>,
        structured_outputs: Option<&StructuredOutputs>,
        fields: &mut Fields<'_>,
    ) -> Result<Option<Self>, FieldError> {
        let mut found = Vec::new();
        if let Some(format) = response_format {
            found.extend(of_format(format.clone())?);
        }
        if let Some(outputs) = structured_outputs {
            let said = of_outputs(outputs.clone())?;
            if said.is_empty() {
                let message = "`structured_outputs` is empty: set one of json, regex, choice, grammar, json_object and structural_tag.";
                return Err(FieldError::new("structured_outputs", message));
            }
            found.extend(said);
        }
        found.extend(of_older_names(fields)?);
        if let [first, second, ..] = &*found {
            let message = format!(
                "`{}` and `{}` are both constraints on the output: give one of them.",
                first.param, second.param
            );
            return Err(FieldError::new(second.param, message));
        }
        Ok(found.pop())
    }
}

fn of_format(format: ResponseFormat) -> Result<Option<OutputConstraint>, FieldError> {
    const PARAM: &str = "response_format";
    if format.kind != "json_schema" && format.json_schema.is_some() {
        let message = "`json_schema` needs the type `json_schema`.";
        return Err(FieldError::new("response_format.json_schema", message));
    }
    if format.kind != "structural_tag"
        && (format.format.is_some() || format.structures.is_some() || format.triggers.is_some())
    {
        let message = "`format`, `structures` and `triggers` need the type `structural_tag`.";
        return Err(FieldError::new(PARAM, message));
    }
    if let Some(constraint) = of_other_servers(&format)? {
        return Ok(Some(constraint));
    }
    match format.kind.as_str() {
        "structural_tag" => {
            Ok(Some(OutputConstraint { param: PARAM, kind: structural_tag(format)? }))
        }
        "text" => Ok(None),
        "json_object" => {
            Ok(Some(OutputConstraint { param: PARAM, kind: ConstraintKind::JsonObject }))
        }
        "json_schema" => match format.json_schema.and_then(|format| format.schema) {
            Some(schema) => Ok(Some(OutputConstraint {
                param: "response_format.json_schema.schema",
                kind: ConstraintKind::JsonSchema(checked_schema(
                    "response_format.json_schema.schema",
                    schema,
                )?),
            })),
            None => Err(FieldError::new(
                "response_format.json_schema",
                "The type `json_schema` needs `json_schema` with a `schema`.",
            )),
        },
        other => Err(FieldError::new(
            "response_format.type",
            format!(
                "`response_format` of type `{}` is not supported; use text, json_object, json_schema or structural_tag.",
                excerpt(other)
            ),
        )),
    }
}

/// The constraint in `schema` or `value`. Sources: the protocols of Together and llama.cpp (`schema`), and of TGI (`value`).
fn of_other_servers(format: &ResponseFormat) -> Result<Option<OutputConstraint>, FieldError> {
    let (param, given) = match (&format.schema, &format.value) {
        (None, None) => return Ok(None),
        (Some(schema), None) => ("response_format.schema", schema),
        (None, Some(value)) => ("response_format.value", value),
        (Some(_), Some(_)) => {
            let message = "`schema` and `value` mean the same: give one of them.";
            return Err(FieldError::new("response_format.value", message));
        }
    };
    let kind = match (format.kind.as_str(), given) {
        ("json_object" | "json" | "json_schema", schema) if format.json_schema.is_none() => {
            ConstraintKind::JsonSchema(schema_of(param, schema.clone())?)
        }
        ("regex", Value::String(regex)) => ConstraintKind::Regex(regex.clone()),
        _ => {
            let message = format!(
                "`{param}` needs the type json_object or json_schema and no `json_schema` field, or the type regex and a string."
            );
            return Err(FieldError::new(param, message));
        }
    };
    Ok(Some(OutputConstraint { param, kind }))
}

/// The structural tag in one of its two forms.
fn structural_tag(format: ResponseFormat) -> Result<ConstraintKind, FieldError> {
    let tag = match format {
        ResponseFormat { format: Some(format), structures: None, triggers: None, .. } => {
            json!({"format": format})
        }
        ResponseFormat {
            format: None,
            structures: Some(structures),
            triggers: Some(triggers),
            ..
        } => {
            json!({"structures": structures, "triggers": triggers})
        }
        _ => {
            let message =
                "The type `structural_tag` needs either `format`, or `structures` and `triggers`.";
            return Err(FieldError::new("response_format", message));
        }
    };
    Ok(ConstraintKind::StructuralTag(tag))
}

fn of_outputs(outputs: StructuredOutputs) -> Result<Vec<OutputConstraint>, FieldError> {
    let StructuredOutputs { json, regex, choice, grammar, json_object, structural_tag, .. } =
        outputs;
    let json = json.map(|schema| schema_of("structured_outputs.json", schema)).transpose()?;
    let tag =
        structural_tag.map(|tag| json_of("structured_outputs.structural_tag", tag)).transpose()?;
    let kinds = [
        ("structured_outputs.json", json.map(ConstraintKind::JsonSchema)),
        ("structured_outputs.regex", regex.map(ConstraintKind::Regex)),
        ("structured_outputs.choice", choice.map(ConstraintKind::Choice)),
        ("structured_outputs.grammar", grammar.map(ConstraintKind::Grammar)),
        (
            "structured_outputs.json_object",
            json_object.and_then(|wanted| wanted.then_some(ConstraintKind::JsonObject)),
        ),
        ("structured_outputs.structural_tag", tag.map(ConstraintKind::StructuralTag)),
    ];
    let said =
        kinds.into_iter().filter_map(|(param, kind)| Some(OutputConstraint { param, kind: kind? }));
    Ok(said.collect())
}

/// A constraint that is a string; an empty string is no constraint.
fn take_text(fields: &mut Fields<'_>, name: &str) -> Result<Option<String>, FieldError> {
    Ok(fields.take::<String>(name)?.filter(|text| !text.is_empty()))
}

/// `grammar`: a string, or an object with a `type` and a `value` from TGI's clients.
fn take_grammar(fields: &mut Fields<'_>) -> Result<Option<ConstraintKind>, FieldError> {
    const PARAM: &str = "grammar";
    match fields.take::<Value>(PARAM)? {
        None => Ok(None),
        Some(Value::String(grammar)) => {
            Ok((!grammar.is_empty()).then_some(ConstraintKind::Grammar(grammar)))
        }
        Some(typed) => match (typed["type"].as_str(), &typed["value"]) {
            (
                Some("json" | "json_object" | "json_schema"),
                schema @ (Value::Object(_) | Value::String(_)),
            ) => {
                schema_of("grammar.value", schema.clone()).map(ConstraintKind::JsonSchema).map(Some)
            }
            (Some("regex"), Value::String(regex)) => Ok(Some(ConstraintKind::Regex(regex.clone()))),
            _ => {
                let message = "`grammar` must be a string, or an object with the `type` json or regex and a `value`.";
                Err(FieldError::new(PARAM, message))
            }
        },
    }
}

/// `json_schema`: a schema as an object or as text, perhaps in the wrapper of OpenAI's clients.
fn take_json_schema(fields: &mut Fields<'_>) -> Result<Option<ConstraintKind>, FieldError> {
    const PARAM: &str = "json_schema";
    let Some(given) = fields.take::<Value>(PARAM)? else { return Ok(None) };
    let schema = match given {
        Value::Object(mut wrapped)
            if wrapped.contains_key("name") && wrapped.contains_key("schema") =>
        {
            wrapped.remove("schema").unwrap_or_default()
        }
        Value::String(text) if text.is_empty() => return Ok(None),
        other => other,
    };
    schema_of(PARAM, schema).map(ConstraintKind::JsonSchema).map(Some)
}

/// Constraints in older fields. Sources: `guided_*` of vLLM's protocol before `structured_outputs`; `regex`, `ebnf` and
/// `json_schema` of SGLang's; `grammar` and `json_schema` of llama.cpp's.
fn of_older_names(fields: &mut Fields<'_>) -> Result<Vec<OutputConstraint>, FieldError> {
    let json = fields.take::<Value>("guided_json")?.filter(|schema| *schema != "");
    let json = json.map(|schema| schema_of("guided_json", schema)).transpose()?;
    let is_given = |text: &String| !text.is_empty();
    let regex: Option<String> = fields.take("guided_regex")?;
    let grammar: Option<String> = fields.take("guided_grammar")?;
    let choice: Option<Vec<String>> = fields.take("guided_choice")?;
    let choice = choice.filter(|texts| !texts.is_empty());
    let kinds = [
        ("regex", take_text(fields, "regex")?.map(ConstraintKind::Regex)),
        ("ebnf", take_text(fields, "ebnf")?.map(ConstraintKind::Grammar)),
        ("json_schema", take_json_schema(fields)?),
        ("grammar", take_grammar(fields)?),
        ("guided_json", json.map(ConstraintKind::JsonSchema)),
        ("guided_regex", regex.filter(is_given).map(ConstraintKind::Regex)),
        ("guided_choice", choice.map(ConstraintKind::Choice)),
        ("guided_grammar", grammar.filter(is_given).map(ConstraintKind::Grammar)),
    ];
    let said =
        kinds.into_iter().filter_map(|(param, kind)| Some(OutputConstraint { param, kind: kind? }));
    Ok(said.collect())
}

/// A schema, which may be JSON text.
fn schema_of(param: &'static str, schema: Value) -> Result<Value, FieldError> {
    checked_schema(param, json_of(param, schema)?)
}

/// A JSON value, which may be JSON text.
fn json_of(param: &'static str, value: Value) -> Result<Value, FieldError> {
    match value {
        Value::String(text) => serde_json::from_str(&text).map_err(|_| {
            FieldError::new(param, format!("`{param}` is a string that is not valid JSON."))
        }),
        value => Ok(value),
    }
}

fn checked_schema(param: &'static str, schema: Value) -> Result<Value, FieldError> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(schema),
        _ => Err(FieldError::new(param, format!("`{param}` must be a JSON schema: an object."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: Value) -> Result<Option<OutputConstraint>, FieldError> {
        let body = body.to_string();
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        let format = fields.take("response_format")?;
        let outputs = fields.take("structured_outputs")?;
        let found = OutputConstraint::new(format.as_ref(), outputs.as_ref(), &mut fields)?;
        fields.finish().map(|_| found)
    }

    #[test]
    fn each_way_of_saying_it_is_understood() {
        let schema = json!({"type": "object"});
        let said = |body| take(body).unwrap().map(|found| found.kind);
        assert_eq!(said(json!({"response_format": {"type": "text"}})), None);
        assert_eq!(said(json!({"structured_outputs": null, "guided_json": null})), None);
        let as_schema = Some(ConstraintKind::JsonSchema(schema.clone()));
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}}}),
            json!({"structured_outputs": {"json": schema}}),
            json!({"structured_outputs": {"json": schema.to_string()}}),
            json!({"guided_json": schema}),
        ] {
            assert_eq!(said(body), as_schema);
        }
        for body in [
            json!({"response_format": {"type": "json_object"}}),
            json!({"structured_outputs": {"json_object": true}}),
        ] {
            assert_eq!(said(body), Some(ConstraintKind::JsonObject));
        }
        let choice = Some(ConstraintKind::Choice(vec!["a".into(), "b".into()]));
        assert_eq!(said(json!({"structured_outputs": {"choice": ["a", "b"]}})), choice);
        assert_eq!(said(json!({"guided_choice": ["a", "b"]})), choice);
        for body in [
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"response_format": {"type": "json_object", "value": schema}}),
            json!({"response_format": {"type": "json", "value": schema}}),
            json!({"response_format": {"type": "json_schema", "schema": schema}}),
            json!({"json_schema": schema}),
            json!({"json_schema": schema.to_string()}),
            json!({"json_schema": {"name": "n", "schema": schema}}),
            json!({"grammar": {"type": "json", "value": schema}}),
        ] {
            assert_eq!(said(body.clone()), as_schema, "{body}");
        }
        let regex = Some(ConstraintKind::Regex("a+".into()));
        for body in [
            json!({"regex": "a+"}),
            json!({"grammar": {"type": "regex", "value": "a+"}}),
            json!({"response_format": {"type": "regex", "value": "a+"}}),
        ] {
            assert_eq!(said(body), regex);
        }
        for name in ["ebnf", "grammar"] {
            let grammar = Some(ConstraintKind::Grammar("root ::= \"a\"".into()));
            assert_eq!(said(json!({name: "root ::= \"a\""})), grammar);
            assert_eq!(said(json!({name: ""})), None);
        }
        assert_eq!(said(json!({"structured_outputs": {"regex": "a+"}})), regex);
        let grammar = Some(ConstraintKind::Grammar("start: \"a\"".into()));
        assert_eq!(said(json!({"guided_grammar": "start: \"a\""})), grammar);
        let format = json!({"type": "any_text"});
        let tag = Some(ConstraintKind::StructuralTag(json!({"format": format})));
        assert_eq!(
            said(json!({"response_format": {"type": "structural_tag", "format": format}})),
            tag
        );
        let outputs = |tag: Value| said(json!({"structured_outputs": {"structural_tag": tag}}));
        assert_eq!(outputs(json!({"format": format})), tag);
        assert_eq!(outputs(json!({"format": format}).to_string().into()), tag);
        let older = json!({"structures": [], "triggers": ["<"]});
        let format = json!({"type": "structural_tag", "structures": [], "triggers": ["<"]});
        assert_eq!(
            said(json!({"response_format": format})),
            Some(ConstraintKind::StructuralTag(older))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, param) in [
            (json!({"response_format": {"type": "xml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}),
                "response_format.json_schema",
            ),
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {"type": "text", "schema": {}}}), "response_format.schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}}}),
                "response_format.schema",
            ),
            (json!({"response_format": {"type": "regex", "value": 1}}), "response_format.value"),
            (
                json!({"response_format": {"type": "json", "schema": {}, "value": {}}}),
                "response_format.value",
            ),
            (json!({"grammar": {"type": "xml"}}), "grammar"),
            (json!({"regex": "a", "ebnf": "b"}), "ebnf"),
            (json!({"json_schema": 7}), "json_schema"),
            (json!({"response_format": {"type": "structural_tag"}}), "response_format"),
            (
                json!({"response_format": {"type": "structural_tag", "structures": []}}),
                "response_format",
            ),
            (json!({"response_format": {"type": "text", "triggers": ["<"]}}), "response_format"),
            (
                json!({"structured_outputs": {"structural_tag": "{"}}),
                "structured_outputs.structural_tag",
            ),
            (json!({"structured_outputs": {}}), "structured_outputs"),
            (json!({"structured_outputs": {"yaml": 1}}), "structured_outputs.yaml"),
            (json!({"structured_outputs": {"json": 7}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"json": "{"}}), "structured_outputs.json"),
            (
                json!({"structured_outputs": {"regex": "a", "choice": ["b"]}}),
                "structured_outputs.choice",
            ),
            (
                json!({"guided_regex": "a", "response_format": {"type": "json_object"}}),
                "guided_regex",
            ),
        ] {
            assert_eq!(take(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}
