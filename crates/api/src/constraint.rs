//! What the output is to be: `response_format`, `structured_outputs` and the names that came before it.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::{FieldError, excerpt};
use crate::fields::Fields;

/// What the output is to be, and the field that says so.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputConstraint {
    /// Path of the field.
    pub param: &'static str,
    /// What it asks for.
    pub kind: ConstraintKind,
}

/// What an output can be asked to be.
#[derive(Clone, Debug, PartialEq)]
pub enum ConstraintKind {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(Value),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of a grammar in Lark's notation or in GBNF.
    Grammar(String),
    /// Text with constrained parts.
    StructuralTag(Value),
}

/// The form of the answer: plain text, any JSON object, JSON that a schema describes, or text with constrained parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    /// `text`, `json_object`, `json_schema` or `structural_tag`.
    #[serde(rename = "type")]
    pub kind: String,
    /// With `json_schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<JsonSchemaFormat>,
    /// With `structural_tag`: what the text is, as an object with a `type` (`triggered_tags`, `tag`, `json_schema`, ..).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// With `structural_tag`, in its older form: `begin`, `schema` and `end` of each constrained part.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub structures: Option<Value>,
    /// With `structures`: the strings after which one of them must come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggers: Option<Vec<String>>,
    /// With `json_object` or `json_schema`: the schema, where other servers' clients have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// The same, under another name; with the type `regex` the regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub value: Option<Value>,
}

/// A schema and what it is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonSchemaFormat {
    /// What the schema is called; it changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for; it changes nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON schema.
    #[schema(value_type = Object)]
    pub schema: Option<Value>,
    /// The schema is held in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// One of several ways to say what the output is to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StructuredOutputs {
    /// A JSON schema, as an object or as its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub json: Option<Value>,
    /// A regular expression that matches the whole text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// The texts of which one is to be the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Vec<String>>,
    /// A grammar in Lark's notation or in GBNF, the EBNF of llama.cpp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<String>,
    /// Whether the output is to be any JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_object: Option<bool>,
    /// A structural tag, as an object or as its text; see `response_format`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub structural_tag: Option<Value>,
}

impl OutputConstraint {
    /// What a request says of its output, in one of its fields.
    ///
    /// # Errors
    /// One of them is wrong, or two of them say something.
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
                let message = "`structured_outputs` says nothing: give json, regex, choice, grammar, json_object or structural_tag.";
                return Err(FieldError::new("structured_outputs", message));
            }
            found.extend(said);
        }
        found.extend(of_older_names(fields)?);
        if let [first, second, ..] = &*found {
            let message = format!(
                "`{}` and `{}` both say what the output is to be: give one of them.",
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
                "`response_format` of type `{}` is not supported: text, json_object, json_schema and structural_tag are.",
                excerpt(other)
            ),
        )),
    }
}

/// A schema or a regular expression beside the type. Sources: the protocols of Together and llama.cpp (`schema`), and of TGI (`value`).
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
                "`{param}` needs the type json_object or json_schema without `json_schema`, or the type regex and a text."
            );
            return Err(FieldError::new(param, message));
        }
    };
    Ok(Some(OutputConstraint { param, kind }))
}

/// The tag in one of its two forms.
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
    let StructuredOutputs { json, regex, choice, grammar, json_object, structural_tag } = outputs;
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

/// A constraint that is one text; an empty text is none.
fn take_text(fields: &mut Fields<'_>, name: &str) -> Result<Option<String>, FieldError> {
    Ok(fields.take::<String>(name)?.filter(|text| !text.is_empty()))
}

/// `grammar`: a text, or what TGI's clients send, an object with a `type` and a `value`.
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
                let message = "`grammar` must be a text, or an object with the `type` json or regex and a `value`.";
                Err(FieldError::new(PARAM, message))
            }
        },
    }
}

/// `json_schema`: a schema or its text, perhaps as OpenAI's clients wrap it.
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

/// Sources: the `guided_*` fields of vLLM's protocol before `structured_outputs`; `regex`, `ebnf` and `json_schema` of SGLang's;
/// `grammar` and `json_schema` of llama.cpp's.
fn of_older_names(fields: &mut Fields<'_>) -> Result<Vec<OutputConstraint>, FieldError> {
    let json = fields.take::<Value>("guided_json")?;
    let json = json.map(|schema| schema_of("guided_json", schema)).transpose()?;
    let kinds = [
        ("regex", take_text(fields, "regex")?.map(ConstraintKind::Regex)),
        ("ebnf", take_text(fields, "ebnf")?.map(ConstraintKind::Grammar)),
        ("json_schema", take_json_schema(fields)?),
        ("grammar", take_grammar(fields)?),
        ("guided_json", json.map(ConstraintKind::JsonSchema)),
        ("guided_regex", fields.take("guided_regex")?.map(ConstraintKind::Regex)),
        ("guided_choice", fields.take("guided_choice")?.map(ConstraintKind::Choice)),
        ("guided_grammar", fields.take("guided_grammar")?.map(ConstraintKind::Grammar)),
    ];
    let said =
        kinds.into_iter().filter_map(|(param, kind)| Some(OutputConstraint { param, kind: kind? }));
    Ok(said.collect())
}

/// A schema, which may be given as its text.
fn schema_of(param: &'static str, schema: Value) -> Result<Value, FieldError> {
    checked_schema(param, json_of(param, schema)?)
}

/// A value, which may be given as its text.
fn json_of(param: &'static str, value: Value) -> Result<Value, FieldError> {
    match value {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|_| FieldError::new(param, format!("`{param}` is a text, and no JSON."))),
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
