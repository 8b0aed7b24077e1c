//! The arguments of a call in XML, an element for each, from a JSON schema: strings are raw text, other values JSON.

use candlepower_grammar::Constraint;
use serde_json::{Map, Value};

use super::keywords::{Property, with_definitions};
use super::{Function, Lark};
use crate::error::{Error, Result};
use crate::format::Layout;
use crate::format::xml::Marks;
use crate::schema::{Types, resolve};

/// Keywords that say nothing of a value but its type.
pub(super) const ANNOTATIONS: [&str; 12] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$defs",
    "definitions",
    "type",
];

/// References within references are followed this deep.
const MAX_DEPTH: usize = 16;

/// How the value of an argument is written.
enum Form {
    Json,
    Text,
    /// As one of these texts.
    Choice(Vec<String>),
}

impl Lark<'_> {
    /// What the arguments of all functions are made of.
    pub(super) fn element_rules(&mut self, layout: &Layout, marks: &Marks) {
        // What the parser takes for the end of a value is none of it.
        let ends = [&[marks.after_value], marks.instead].concat().join("|");
        let ends = ends.replace('/', r"\/").replace('\n', r"\n");
        let first = if marks.on_lines { r"\n" } else { "" };
        self.rule("RAW", &format!(r"/{first}(.|\n)*/ & ~/(.|\n)*({ends})(.|\n)*/"));
        match self.special(marks.after_value) {
            Some(id) => self.rule("raw", &format!("RAW? <[{id}]>")),
            None => {
                let end = Value::from(value_end(marks));
                self.rule("raw[lazy]", &format!("RAW {end}"));
            }
        }
        self.rule("KEY", r#"/[^<>"\s][^<>"\r\n]{0,200}/"#);
        let key = format!("{} KEY", self.literal(marks.before_key));
        let other = self.element(layout, marks, &key, "raw");
        self.rule("other", &other);
    }

    /// The arguments of function `index`: required ones always, all of them in the schema's order. Where they are not held to
    /// the schema, any.
    pub(super) fn elements(
        &mut self,
        (index, function): (usize, &Function<'_>),
        layout: &Layout,
        marks: &Marks,
        held: bool,
    ) -> Result<String> {
        let line = layout.line_breaks.lark();
        if !held {
            return Ok(format!("{line} other*"));
        }
        let refuse = |reason: String| Error::Parameters { function: index, reason };
        let empty = Map::new();
        let root = function.parameters.unwrap_or(&empty);
        let mut all = line.to_owned();
        for (place, property) in Property::all(root, "XML").map_err(refuse)?.iter().enumerate() {
            let Property { name, schema, is_required } = property;
            if !is_key(name) {
                return Err(refuse(format!("the property `{name}` is no name in XML")));
            }
            let rule = format!("v{index}_{place}");
            let form = form(schema, root).map_err(|reason| {
                refuse(format!(
                    "the property `{name}` is written as raw text, for which {reason} cannot be held"
                ))
            })?;
            let value = match form {
                Form::Text => "raw".to_owned(),
                Form::Choice(texts) => {
                    if texts.iter().any(|text| ends_early(marks, text)) {
                        let reason =
                            format!("a value of the property `{name}` has marks of a call");
                        return Err(refuse(reason));
                    }
                    let texts = texts.iter().map(|text| Value::from(text.as_str()).to_string());
                    self.rule(&rule, &texts.collect::<Vec<_>>().join(" | "));
                    self.on_lines(marks, &rule)
                }
                Form::Json => {
                    let value = with_definitions(schema.clone(), root);
                    let value = Constraint::JsonSchema(value).as_lark_value(self.tokenizer)?;
                    self.rule(&rule, &value);
                    self.on_lines(marks, &rule)
                }
            };
            let key = self.literal(&[marks.before_key, name].concat());
            let element = self.element(layout, marks, &key, &value);
            self.rule(&format!("p{index}_{place}"), &element);
            let optional = if *is_required { "" } else { "?" };
            all.push_str(&format!(" p{index}_{place}{optional}"));
        }
        Ok(all)
    }

    /// An element, and the line break behind it. `key` begins with the mark before it, `value` ends with the one behind it.
    fn element(&self, layout: &Layout, marks: &Marks, key: &str, value: &str) -> String {
        let line = layout.line_breaks.lark();
        let mut between = self.literal(marks.after_key);
        if !marks.before_value.is_empty() {
            between = format!("{between} {line} {}", self.literal(marks.before_value));
        }
        format!("{key} {between} {value} {line}")
    }

    /// The value of rule `rule` with what stands around it.
    fn on_lines(&self, marks: &Marks, rule: &str) -> String {
        let begin = if marks.on_lines { "\"\\n\"" } else { "" };
        format!("{begin} {rule} {}", self.literal(&value_end(marks)))
    }
}

/// The end of a value, as the template writes it.
fn value_end(marks: &Marks) -> String {
    [if marks.on_lines { "\n" } else { "" }, marks.after_value].concat()
}

/// Whether the parser would find the end of the value within this text.
fn ends_early(marks: &Marks, text: &str) -> bool {
    let written = if marks.on_lines { format!("\n{text}\n") } else { text.to_owned() };
    written.contains(marks.after_value) || marks.instead.iter().any(|mark| written.contains(mark))
}

fn is_key(name: &str) -> bool {
    !name.is_empty() && name.trim() == name && !name.contains(['<', '>', '"', '\r', '\n'])
}

/// How a value of this schema is written, or what of it cannot be held.
fn form(schema: &Value, root: &Map<String, Value>) -> Result<Form, String> {
    let is_any = match schema {
        Value::Object(schema) => {
            schema.keys().all(|key| key != "type" && ANNOTATIONS.contains(&key.as_str()))
        }
        other => *other == Value::Bool(true),
    };
    let types = Types::of(schema, root);
    if is_any {
        return Ok(Form::Text);
    }
    if !types.are_text() {
        return Ok(Form::Json);
    }
    match choice(schema, root, types, 0)? {
        None => Ok(Form::Text),
        Some(texts) if texts.is_empty() => Err("a schema that allows no value".to_owned()),
        Some(texts) => Ok(Form::Choice(texts)),
    }
}

/// The texts that a schema of strings allows; `None` if all of them.
fn choice(
    schema: &Value,
    root: &Map<String, Value>,
    types: Types,
    depth: usize,
) -> Result<Option<Vec<String>>, String> {
    let types = types.and(Types::of(schema, root));
    let text = |value: &Value| match value {
        _ if !types.allow(value) => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let object = schema.as_object().filter(|_| depth < MAX_DEPTH);
    let said = object.into_iter().flatten();
    let said = said.filter(|(keyword, _)| !ANNOTATIONS.contains(&keyword.as_str()));
    let said = said.map(|(keyword, value)| (keyword.as_str(), value)).collect::<Vec<_>>();
    let inner = |schema: &Value| choice(schema, root, types, depth + 1);
    match said.as_slice() {
        [] if types.have_string() => Ok(None),
        [] => Ok(Some(Vec::from_iter(text(&Value::Null)))),
        [("const", value)] => Ok(Some(Vec::from_iter(text(value)))),
        [("enum", Value::Array(values))] => Ok(Some(values.iter().filter_map(text).collect())),
        [("anyOf", Value::Array(schemas))] => {
            let choices = schemas.iter().map(inner).collect::<Result<Option<Vec<_>>, _>>()?;
            Ok(choices.map(|choices| choices.concat()))
        }
        [("allOf", Value::Array(schemas))] if schemas.len() == 1 => inner(&schemas[0]),
        [("$ref", Value::String(reference))] => match resolve(reference, root) {
            Some(schema) => inner(schema),
            None => Err(format!("the reference `{reference}`")),
        },
        [(keyword, _)] => Err(format!("`{keyword}`")),
        [(first, _), (second, _), ..] => Err(format!("`{first}` beside `{second}`")),
    }
}
