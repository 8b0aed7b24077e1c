//! Grammar rules for arguments in XML, one element for each, from a JSON schema. Strings are raw text, other values are JSON.

use candlepower_grammar::{Constraint, TEXT_KEYWORDS, escape_slashes, expressions};
use serde_json::{Map, Value, json};

use super::keywords::{Property, undeclared, with_definitions, without_declared};
use super::{Function, Lark, escaped};
use crate::error::{Error, Result};
use crate::format::xml::{Attribute, Marks};
use crate::format::{Layout, LineBreaks};
use crate::schema::{Types, resolve};

/// Keywords that do not constrain a value, and `type`.
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

/// Keywords that do not constrain strings.
const SAY_NOTHING_OF_TEXT: [&str; 16] = [
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
];

/// The keyword of undeclared arguments.
const ADDITIONAL: &str = "additionalProperties";

/// Maximum depth of references within references.
const MAX_DEPTH: usize = 16;

/// The form of an argument's value.
enum Form {
    /// JSON of this schema.
    Json(Value),
    Text,
    /// One of these texts.
    Choice(Vec<String>),
    /// A text that matches this expression of terminals.
    Matching(String),
}

/// The values of a schema that have the same attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Strings,
    /// All values except strings.
    Others,
}

/// The marks that are allowed after an argument.
#[derive(Clone, Copy)]
struct May {
    go_on: bool,
    end: bool,
}

impl May {
    /// Texts that no value may contain. If the model begins a mark that is not allowed, its second character is refused. Otherwise the
    /// refusal would come at the mark's last character, and the value would contain nearly all of the mark.
    fn refused(self, layout: &Layout, marks: &Marks) -> String {
        let line = match layout.line_breaks {
            LineBreaks::Absent => "",
            LineBreaks::Written => r"\n",
            LineBreaks::Optional => r"\n?",
        };
        let end = escaped(&value_end(marks));
        let refused = |mark: &str| {
            let begin: String = mark.chars().take(2).collect();
            format!("|{end}{line}{}", escaped(&begin))
        };
        let next = if self.go_on { String::new() } else { refused(marks.before_key) };
        let last = if self.end { String::new() } else { refused(marks.close) };
        next + &last
    }

    /// A text with which no value may end if the call may not end: the mark that closes a value, because the value would be closed twice.
    fn no_end(self, marks: &Marks) -> String {
        match self.end {
            true => String::new(),
            false => format!(r" & ~/(.|\n)*{}\n?/", escaped(&value_end(marks))),
        }
    }
}

/// The function whose rules are under construction.
struct Writing<'a> {
    layout: &'a Layout,
    marks: &'a Marks,
    index: usize,
    /// A regular expression of texts that the parser reads as the end of a value.
    ends: String,
}

impl Lark<'_> {
    /// The arguments of function `index` up to the end of the call, in the schema's order; required ones are always present. Any
    /// arguments if they are not constrained to the schema.
    ///
    /// A raw text may contain marks of calls, such as `</parameter>` in a page of XML. So its terminal includes the next mark, which begins
    /// another argument or ends the call: a mark alone does not end a value.
    pub(super) fn elements(
        &mut self,
        (index, function): (usize, &Function<'_>),
        layout: &Layout,
        marks: &Marks,
        enforced: bool,
    ) -> Result<String> {
        let refuse = |reason: String| Error::Parameters { function: index, reason };
        let empty = Map::new();
        let root = function.parameters.unwrap_or(&empty);
        let properties = match enforced {
            true => Property::all(root, "XML").map_err(refuse)?,
            false => Property::named_by(root),
        };
        let keys = properties.iter().map(|property| property.name);
        let writing = Writing { layout, marks, index, ends: ends_of_values(marks, keys) };
        let (line, open) = (layout.line_breaks.lark(), self.literal(marks.before_key));
        let close = self.literal(marks.close);
        let others = if enforced { undeclared(root) } else { Some(&Value::Bool(true)) };
        if let Some(others) = others {
            let declared = properties.iter().filter(|_| enforced).map(|property| property.name);
            let declared = declared.collect::<Vec<_>>();
            self.others(&writing, &declared, others, root).map_err(refuse)?;
        }
        if !enforced {
            return Ok(format!("{line} ({open} o{index} | {close})"));
        }
        let all_optional = properties.iter().all(|property| !property.is_required);
        // Rule `e{index}_{place}` stands for the arguments from `place` on, after a key's opening mark. It refers to
        // the next rule. The last one refers to that of undeclared arguments, if they are allowed.
        let rule_of = |place: usize| match place == properties.len() {
            true => format!("o{index}"),
            false => format!("e{index}_{place}"),
        };
        for (place, property) in properties.iter().enumerate().rev() {
            let rest = &properties[place + 1..];
            let may = May {
                go_on: !rest.is_empty() || others.is_some(),
                end: rest.iter().all(|property| !property.is_required),
            };
            if !is_key(property.name) {
                let name = property.name;
                return Err(refuse(format!("the property `{name}` is not a valid name in XML")));
            }
            let place_name = place.to_string();
            let values =
                self.values(&writing, (&place_name, may), property.name, &property.schema, root);
            let mut arms = Vec::new();
            for (attribute, [more, last]) in values.map_err(refuse)? {
                let key = self.literal(property.name);
                let key = self.behind_key(&writing, &key, &attribute);
                if may.go_on {
                    // `more` and `last` contain the mark after the value. So the mark before a key belongs to the
                    // value that precedes it.
                    arms.push(format!("{key} {more} {}", rule_of(place + 1)));
                }
                if may.end {
                    arms.push(format!("{key} {last}"));
                }
            }
            if !property.is_required && may.go_on {
                arms.push(rule_of(place + 1));
            }
            self.rule(&rule_of(place), &arms.join(" | "));
        }
        let first = rule_of(0);
        Ok(match (properties.is_empty() && others.is_none(), all_optional) {
            (true, _) => format!("{line} {close}"),
            (false, true) => format!("{line} ({open} {first} | {close})"),
            (false, false) => format!("{line} {open} {first}"),
        })
    }

    /// Adds the rule `o{index}` of any number of undeclared arguments, at least one, after a key's opening mark.
    fn others(
        &mut self,
        writing: &Writing<'_>,
        declared: &[&str],
        schema: &Value,
        root: &Map<String, Value>,
    ) -> Result<(), String> {
        let (key, other) = (format!("KEY{}", writing.index), format!("o{}", writing.index));
        // At most 201 characters: the parser takes a key of more than 4 KiB for damage.
        self.rule(&key, &without_declared(r#"/[^<>"\s][^<>"\r\n]{0,200}/"#, declared));
        // The grammar counts nothing here: any number of keys may come, and each is followed by another key or by the
        // end.
        let may = May { go_on: true, end: true };
        let values = self.values(writing, ("o", may), ADDITIONAL, schema, root)?;
        let arms = values.into_iter().map(|(attribute, [more, last])| {
            let key = self.behind_key(writing, &key, &attribute);
            format!("{key} {more} {other} | {key} {last}")
        });
        let arms = arms.collect::<Vec<_>>().join(" | ");
        self.rule(&other, &arms);
        Ok(())
    }

    /// The values of a property by their attributes, each with the next mark, which begins another argument or ends the call.
    fn values(
        &mut self,
        writing: &Writing<'_>,
        (place, may): (&str, May),
        name: &str,
        schema: &Value,
        root: &Map<String, Value>,
    ) -> Result<Vec<(String, [String; 2])>, String> {
        let raw = |reason: String| {
            format!(
                "the property `{name}` is written as raw text, for which {reason} cannot be enforced"
            )
        };
        let mut values = Vec::new();
        for (part, attribute) in attributes(writing.marks.attribute, schema, root) {
            if let Some(form) = form(schema, root, part).map_err(raw)? {
                let place =
                    if part == Part::Others { format!("{place}n") } else { place.to_owned() };
                values.push((attribute, self.value(writing, (&place, may), name, form, root)?));
            }
        }
        match values.is_empty() {
            true => Err(raw("a schema that allows no value".to_owned())),
            false => Ok(values),
        }
    }

    /// The value of a property, with the next mark.
    fn value(
        &mut self,
        writing: &Writing<'_>,
        (place, may): (&str, May),
        name: &str,
        form: Form,
        root: &Map<String, Value>,
    ) -> Result<[String; 2], String> {
        let marks = writing.marks;
        let rule = format!("v{}_{place}", writing.index);
        match form {
            Form::Text => return Ok(self.raw_text(writing, (place, may), None)),
            Form::Matching(terminals) => {
                return Ok(self.raw_text(writing, (place, may), Some(&terminals)));
            }
            // Texts of a choice are literals without a search for marks, so that a mark inside one would cut the
            // value for the parser.
            Form::Choice(texts) => {
                if texts.iter().any(|text| ends_early(marks, text)) {
                    return Err(format!(
                        "a value of the property `{name}` contains marks of a tool call"
                    ));
                }
                let texts = texts.iter().map(|text| Value::from(text.as_str()).to_string());
                self.rule(&rule, &texts.collect::<Vec<_>>().join(" | "));
            }
            Form::Json(schema) => {
                // A property is compiled as a schema of its own, so references need the root's definitions beside it.
                let value = with_definitions(&schema, root);
                let value = Constraint::JsonSchema(value).as_lark_value(self.tokenizer);
                self.rule(&rule, &value.map_err(|error| error.to_string())?);
            }
        }
        let begin = if marks.on_lines { "\"\\n\"" } else { "" };
        let line = writing.layout.line_breaks.lark();
        let value = format!("{begin} {rule} {} {line}", self.literal(&value_end(marks)));
        Ok([marks.before_key, marks.close].map(|mark| format!("{value} {}", self.literal(mark))))
    }

    /// A raw text that matches some terminals, with the next mark.
    fn raw_text(
        &mut self,
        writing: &Writing<'_>,
        (name, may): (&str, May),
        terminals: Option<&str>,
    ) -> [String; 2] {
        let Writing { layout, marks, index, ends } = writing;
        let begin = if marks.on_lines { r"\n" } else { "" };
        let raw = format!("RAW{index}_{name}").to_uppercase();
        // Terminals of text do not match special tokens.
        let marks_of_end = [marks.after_value, marks.before_key, marks.close];
        let special = marks_of_end.iter().any(|mark| self.has_special(mark));
        let ends = match special {
            true => escaped(marks.after_value),
            false => format!("{ends}{}", may.refused(layout, marks)),
        };
        let no_end = if special { String::new() } else { may.no_end(marks) };
        // Terminals take all the text that they can. So plain text before the mark's special token is part of them.
        let plain = self.before_special(marks.after_value);
        let not_ended =
            format!(r"/{begin}(.|\n)*{}/ & ~/(.|\n)*({ends})(.|\n)*/{no_end}", escaped(plain));
        match terminals {
            None => self.rule(&raw, &not_ended),
            Some(terminals) => {
                // Lark's `&` takes terminals. The pattern describes the value alone, so the line break before it
                // needs a terminal of its own.
                let (own, whole) = (format!("{raw}_OWN"), format!("{raw}_WHOLE"));
                self.rule(&own, terminals);
                let begin = if marks.on_lines { "\"\\n\" " } else { "" };
                let end = Value::from(plain);
                let end = if plain.is_empty() { String::new() } else { format!(" {end}") };
                self.rule(&whole, &format!("{begin}{own}{end}"));
                self.rule(&raw, &format!("{whole} & {not_ended}"));
            }
        }
        let line = layout.line_breaks.lark();
        if special {
            let value = match self.has_special(marks.after_value) {
                // Terminals cannot be empty, so an empty text is a separate alternative.
                true if terminals.is_none() && plain.is_empty() => {
                    format!("{raw}? {}", self.literal(marks.after_value))
                }
                true => format!("{raw} {}", self.literal(&marks.after_value[plain.len()..])),
                // The value's own mark is plain text, although a later mark is a special token.
                false => {
                    let rule = format!("raw{index}_{name}");
                    let end = Value::from(value_end(marks));
                    self.rule(&format!("{rule}[lazy]"), &format!("{raw} {end}"));
                    rule
                }
            };
            return [marks.before_key, marks.close]
                .map(|mark| format!("{value} {line} {}", self.literal(mark)));
        }
        // The lazy rules end at the first position where the value's mark and the next mark fit together. A value's
        // mark alone stays text.
        [("more", marks.before_key), ("last", marks.close)].map(|(kind, mark)| {
            let rule = format!("raw{index}_{name}_{kind}");
            let end = Value::from(value_end(marks));
            let mark = Value::from(mark);
            self.rule(&format!("{rule}[lazy]"), &format!("{raw} {end} {line} {mark}"));
            rule
        })
    }

    /// A key, with all text up to its value.
    fn behind_key(&self, writing: &Writing<'_>, key: &str, attribute: &str) -> String {
        let Writing { layout, marks, .. } = writing;
        let between = self.literal(marks.after_key);
        if marks.before_value.is_empty() {
            return format!("{key} {attribute} {between}");
        }
        let before = self.literal(marks.before_value);
        format!("{key} {between} {} {before}", layout.line_breaks.lark())
    }
}

/// The attributes of an argument, each with the values that have it. Without an attribute, the parser takes the value's type from the
/// schema. It is missing where a schema has strings and others, and says something of them.
fn attributes(
    attribute: Attribute,
    schema: &Value,
    root: &Map<String, Value>,
) -> Vec<(Part, String)> {
    let Some(before) = attribute.before_value() else { return vec![(Part::All, String::new())] };
    let written = |values: &[&str]| {
        // A schema without a value is refused later.
        if values.is_empty() {
            return String::new();
        }
        let values = values.iter().map(|value| Value::from(*value).to_string());
        format!("{} ({})", Value::from(before), values.collect::<Vec<_>>().join(" | "))
    };
    let types = if is_any(schema) { Types::ALL } else { Types::of(schema, root) };
    let strings = written(&[attribute.of_strings()]);
    let others = || written(&attribute.of_others(types));
    match types {
        Types::STRING => vec![(Part::All, strings)],
        _ if !types.have_string() => vec![(Part::All, others())],
        // The template writes null with the attribute of null, beside strings with theirs.
        _ if types.are_text() || is_any(schema) => {
            vec![(Part::Strings, strings), (Part::Others, others())]
        }
        _ => vec![(Part::All, String::new())],
    }
}

/// A regular expression of texts that the parser reads as the end of a value.
/// Such a text is the value's mark, or a line break if the mark is missing, and then a mark that may come after a value.
fn ends_of_values<'a>(marks: &Marks, keys: impl Iterator<Item = &'a str>) -> String {
    const SPACE: &str = r"[ \t\r\n]*";
    let [after_value, before_key, after_key, close, close_all, open, open_all] = [
        marks.after_value,
        marks.before_key,
        marks.after_key,
        marks.close,
        marks.close_all,
        marks.open,
        marks.open_all,
    ]
    .map(escaped);
    let (call_end, any_end) = match marks.close_all.is_empty() {
        // GLM has no mark around all calls, so that its call ends with its closing mark alone.
        true => (close.clone(), close),
        false => {
            // A closing mark alone may be text. The parser accepts it only before the end of all calls or before
            // another call.
            let call_end = format!("{close}{SPACE}({close_all}|{open_all}|{open})");
            (call_end.clone(), format!("{call_end}|{close_all}"))
        }
    };
    let closed = format!("{after_value}{SPACE}({before_key}|{any_end})");
    // Only formats with values on their own lines accept a missing mark: elsewhere a line break is part of the text.
    if marks.instead.is_empty() {
        return closed;
    }
    let keys = keys.map(escaped).collect::<Vec<_>>().join("|");
    let key = if keys.is_empty() {
        String::new()
    } else {
        format!(r"|{before_key}({keys}){after_key}\n")
    };
    format!(r"{closed}|\n({call_end}{key})")
}

/// The end of a value, in the template's form.
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

/// Whether a schema says nothing of values.
fn is_any(schema: &Value) -> bool {
    match schema {
        Value::Object(schema) => {
            schema.keys().all(|key| key != "type" && ANNOTATIONS.contains(&key.as_str()))
        }
        other => *other == Value::Bool(true),
    }
}

/// The form of this part of a schema's values, or the keyword that cannot be enforced. `None` if the schema allows no such value.
fn form(schema: &Value, root: &Map<String, Value>, part: Part) -> Result<Option<Form>, String> {
    if is_any(schema) {
        return Ok(Some(match part {
            Part::All | Part::Strings => Form::Text,
            Part::Others => {
                Form::Json(json!({ "type": ["null", "boolean", "number", "array", "object"] }))
            }
        }));
    }
    let types = match part {
        Part::All => Types::of(schema, root),
        Part::Strings => Types::STRING,
        Part::Others => Types::NULL,
    };
    if part == Part::All && !types.are_text() {
        return Ok(Some(Form::Json(schema.clone())));
    }
    Ok(match text(schema, root, types, 0)? {
        Text::Choice(texts) if texts.is_empty() => None,
        // No pattern applies to null.
        _ if part == Part::Others => Some(Form::Choice(vec![Value::Null.to_string()])),
        Text::Any => Some(Form::Text),
        Text::Choice(texts) => Some(Form::Choice(texts)),
        Text::Matching(terminals) => Some(Form::Matching(terminals)),
    })
}

/// The strings that a schema allows.
enum Text {
    Any,
    /// These texts, perhaps none.
    Choice(Vec<String>),
    /// Texts that match an expression of terminals, in Lark's notation.
    Matching(String),
}

impl Text {
    fn terminals(&self) -> Option<String> {
        match self {
            Self::Any => None,
            Self::Choice(texts) if texts.is_empty() => None,
            Self::Choice(texts) => {
                let texts = texts.iter().map(|text| Value::from(text.as_str()).to_string());
                Some(format!("({})", texts.collect::<Vec<_>>().join(" | ")))
            }
            Self::Matching(terminals) => Some(terminals.clone()),
        }
    }

    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => Self::Any,
            (Self::Choice(mut texts), Self::Choice(more)) => {
                texts.extend(more);
                Self::Choice(texts)
            }
            (one, other) => match (one.terminals(), other.terminals()) {
                (Some(one), Some(other)) => Self::Matching(format!("({one} | {other})")),
                (Some(only), None) | (None, Some(only)) => Self::Matching(only),
                (None, None) => Self::Choice(Vec::new()),
            },
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Any, other) | (other, Self::Any) => other,
            (Self::Choice(texts), Self::Choice(more)) => {
                Self::Choice(texts.into_iter().filter(|text| more.contains(text)).collect())
            }
            (one, other) => match (one.terminals(), other.terminals()) {
                (Some(one), Some(other)) => Self::Matching(format!("({one} & {other})")),
                _ => Self::Choice(Vec::new()),
            },
        }
    }
}

/// # Errors
/// The keyword that cannot be enforced in raw text.
fn text(
    schema: &Value,
    root: &Map<String, Value>,
    types: Types,
    depth: usize,
) -> Result<Text, String> {
    let types = types.and(Types::of(schema, root));
    let written = |value: &Value| match value {
        _ if !types.allow(value) => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    let null = || Text::Choice(Vec::from_iter(written(&Value::Null)));
    // A schema is an object or a boolean. `true` and invalid schemas constrain nothing here.
    let Some(object) = schema.as_object() else {
        return Ok(if *schema == Value::Bool(false) {
            Text::Choice(Vec::new())
        } else {
            Text::Any
        });
    };
    if depth == MAX_DEPTH {
        return Err(format!("a chain of more than {MAX_DEPTH} references"));
    }
    let inner = |schema: &Value| text(schema, root, types, depth + 1);
    // Callers come here with strings, null or both. Null is written as the text `null`, which a choice can contain.
    let mut all = if types.have_string() { Text::Any } else { null() };
    if object.keys().any(|keyword| TEXT_KEYWORDS.contains(&keyword.as_str())) {
        // These keywords do not constrain null.
        let matching = expressions(object)?
            .into_iter()
            .map(|expression| format!("/{}/", escape_slashes(&expression)));
        let matching = matching.collect::<Vec<_>>();
        if !matching.is_empty() {
            all = all.and(Text::Matching(format!("({})", matching.join(" & "))).or(null()));
        }
    }
    for (keyword, value) in object {
        let said = match (keyword.as_str(), value) {
            (keyword, _) if ANNOTATIONS.contains(&keyword) || TEXT_KEYWORDS.contains(&keyword) => {
                continue;
            }
            ("const", value) => Text::Choice(Vec::from_iter(written(value))),
            ("enum", Value::Array(values)) => {
                Text::Choice(values.iter().filter_map(written).collect())
            }
            ("anyOf", Value::Array(schemas)) => {
                let mut any = Text::Choice(Vec::new());
                for schema in schemas {
                    any = any.or(inner(schema)?);
                }
                any
            }
            ("allOf", Value::Array(schemas)) => {
                let mut both = Text::Any;
                for schema in schemas {
                    both = both.and(inner(schema)?);
                }
                both
            }
            ("$ref", Value::String(reference)) => match resolve(reference, root) {
                Some(schema) => inner(schema)?,
                None => return Err(format!("the reference `{reference}`")),
            },
            (keyword, _) if SAY_NOTHING_OF_TEXT.contains(&keyword) => continue,
            (keyword, _) => return Err(format!("`{keyword}`")),
        };
        all = all.and(said);
    }
    Ok(all)
}
