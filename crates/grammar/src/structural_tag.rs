//! Structural tags, free text with constrained parts between given strings, as a grammar in Lark syntax.
//!
//! Source: the structural tags of XGrammar in the API of vLLM and SGLang: `format` with its types, and the older form with
//! `structures` and `triggers`.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::constraint::{quoted, with_white_space};
use crate::gbnf::{self, literal_regex};
use crate::vocabulary::SpecialToken;
use crate::{Error, Result, schema};

/// Any text.
const TEXT: &str = "(?s:.*)";
/// Maximum nesting of formats.
const MAX_DEPTH: usize = 32;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Current {
    #[serde(rename = "type")]
    _kind: Option<Kind>,
    format: Format,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Older {
    #[serde(rename = "type")]
    _kind: Option<Kind>,
    structures: Vec<Structure>,
    triggers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    StructuralTag,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Structure {
    begin: String,
    schema: Value,
    end: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    ConstString { value: String },
    JsonSchema { json_schema: Value },
    Regex { pattern: String },
    Grammar { grammar: String },
    AnyText {},
    Sequence { elements: Vec<Format> },
    Or { elements: Vec<Format> },
    Tag { begin: String, content: Box<Format>, end: String },
    TriggeredTags(Triggered),
    TagsWithSeparator(Separated),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Triggered {
    triggers: Vec<String>,
    tags: Vec<Tag>,
    #[serde(default)]
    at_least_one: bool,
    #[serde(default)]
    stop_after_first: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Separated {
    tags: Vec<Tag>,
    separator: String,
    #[serde(default)]
    at_least_one: bool,
    #[serde(default)]
    stop_after_first: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tag {
    #[serde(rename = "type")]
    _kind: Option<TagKind>,
    begin: String,
    content: Format,
    end: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum TagKind {
    Tag,
}

/// The tag with closed objects in its schemas.
///
/// # Errors
/// [`Error::Constraint`] for a schema with too many compositions.
pub(crate) fn closed(tag: &Value) -> Result<Value> {
    match tag {
        Value::Array(tags) => tags.iter().map(closed).collect(),
        Value::Object(object) => {
            let of_key = |(key, value): (&String, &Value)| {
                let is_schema =
                    key == "json_schema" || (key == "schema" && object.contains_key("begin"));
                let value = if is_schema { schema::closed(value) } else { closed(value) };
                value.map(|value| (key.clone(), value))
            };
            object.iter().map(of_key).collect::<Result<Map<_, _>>>().map(Value::Object)
        }
        other => Ok(other.clone()),
    }
}

/// The grammar of a structural tag. `special` lists the special tokens.
///
/// # Errors
/// [`Error::Constraint`] with the part that is invalid or not supported.
pub(crate) fn to_lark(tag: &Value, special: &[SpecialToken]) -> Result<String> {
    let wrong = |error: serde_json::Error| Error::Constraint(error.to_string());
    // The two forms have no key in common but `type`.
    let format = if tag.get("structures").is_some() || tag.get("triggers").is_some() {
        Older::deserialize(tag).map_err(wrong)?.into()
    } else {
        Current::deserialize(tag).map_err(wrong)?.format
    };
    let mut writer = Writer { special, lines: String::new(), count: 0 };
    let start = writer.format(&format, End::OfOutput, 0)?;
    Ok(format!("start: {start}\n{}", writer.lines))
}

impl From<Older> for Format {
    fn from(older: Older) -> Self {
        let tag = |structure: Structure| Tag {
            _kind: None,
            begin: structure.begin,
            content: Self::JsonSchema { json_schema: structure.schema },
            end: structure.end,
        };
        Self::TriggeredTags(Triggered {
            triggers: older.triggers,
            tags: older.structures.into_iter().map(tag).collect(),
            at_least_one: false,
            stop_after_first: false,
        })
    }
}

/// The end of a format.
#[derive(Clone, Copy)]
enum End<'a> {
    /// The end of the output.
    OfOutput,
    /// This string, which the format's expression includes.
    String(&'a str),
    /// Another format, which follows.
    Open,
}

struct Writer<'a> {
    special: &'a [SpecialToken],
    /// Rules and terminals.
    lines: String,
    count: usize,
}

impl Writer<'_> {
    /// The expression for a format and its end.
    fn format(&mut self, format: &Format, end: End<'_>, depth: usize) -> Result<String> {
        if depth > MAX_DEPTH {
            return Err(Error::Constraint(format!(
                "formats are nested more than {MAX_DEPTH} levels deep"
            )));
        }
        let own = match format {
            Format::AnyText {} => return self.any_text(end),
            Format::Sequence { elements } => return self.sequence(elements, end, depth),
            Format::Or { elements } => {
                let each = elements.iter().map(|format| self.format(format, end, depth + 1));
                return Ok(format!(
                    "({})",
                    one_of(each.collect::<Result<_>>()?, "or", "elements")?
                ));
            }
            Format::TriggeredTags(tags) => return self.triggered(tags, end, depth),
            Format::ConstString { value } => self.literal(value),
            Format::JsonSchema { json_schema } => json(json_schema)?,
            Format::Regex { pattern } => {
                let regex = crate::constraint::escape_slashes(pattern);
                self.terminal(&format!("/{regex}/"))
            }
            Format::Grammar { grammar } if gbnf::is_gbnf(grammar) => {
                format!("%lark {{\n{}\n}}", gbnf::to_lark(grammar)?)
            }
            Format::Grammar { grammar } => format!("%lark {{\n{grammar}\n}}"),
            Format::Tag { begin, content, end } => {
                let content = self.format(content, End::String(end), depth + 1)?;
                format!("{} {content}", self.literal(begin))
            }
            Format::TagsWithSeparator(tags) => self.separated(tags, depth)?,
        };
        Ok(format!("{own} {}", self.end(end)))
    }

    fn sequence(&mut self, elements: &[Format], end: End<'_>, depth: usize) -> Result<String> {
        let Some((last, before)) = elements.split_last() else { return Ok(self.end(end)) };
        let mut parts = Vec::new();
        for format in before {
            parts.push(self.format(format, End::Open, depth + 1)?);
        }
        parts.push(self.format(last, end, depth + 1)?);
        Ok(format!("({})", parts.join(" ")))
    }

    fn any_text(&mut self, end: End<'_>) -> Result<String> {
        match end {
            End::OfOutput => Ok(self.optional_text(&[])),
            End::String(end) if !end.is_empty() => self.until(end),
            _ => Err(Error::Constraint(
                "free text (any_text, triggered_tags) must be the last element of a tag with an `end`, or of the output".into(),
            )),
        }
    }

    /// Free text, and tags after their triggers.
    fn triggered(&mut self, tags: &Triggered, end: End<'_>, depth: usize) -> Result<String> {
        if tags.triggers.iter().any(String::is_empty) {
            return Err(Error::Constraint("a trigger is empty".into()));
        }
        let mut dispatched = Vec::new();
        for trigger in &tags.triggers {
            let mut rests = Vec::new();
            for tag in &tags.tags {
                let Some(rest) = tag.begin.strip_prefix(trigger.as_str()) else { continue };
                let content = self.format(&tag.content, End::String(&tag.end), depth + 1)?;
                // Free text has consumed the trigger, so the tag goes on behind it.
                rests.push(format!("{} {content}", self.literal(rest)));
            }
            let rests =
                one_of(rests, &format!("the trigger {trigger:?}"), "tags that begin with it")?;
            let until = self.until_any(trigger, &tags.triggers)?;
            dispatched.push(format!("{until} ({rests})"));
        }
        let untriggered = |tag: &&Tag| {
            !tags.triggers.iter().any(|trigger| tag.begin.starts_with(trigger.as_str()))
        };
        if let Some(tag) = tags.tags.iter().find(untriggered) {
            return Err(Error::Constraint(format!(
                "the tag {:?} does not begin with any of the triggers",
                tag.begin
            )));
        }
        let dispatched = one_of(dispatched, "triggered_tags", "triggers")?;
        // A required first tag comes at once, without free text before it.
        let first = match tags.at_least_one {
            true => {
                let each = tags.tags.iter().map(|tag| self.tag(tag, depth));
                format!("({})", each.collect::<Result<Vec<_>>>()?.join(" | "))
            }
            false => String::new(),
        };
        let rest = match end {
            End::OfOutput => self.optional_text(&tags.triggers),
            _ => self.any_text(end)?,
        };
        Ok(match (tags.stop_after_first, tags.at_least_one) {
            (true, true) => format!("{first} {}", self.end(end)),
            (true, false) => format!("(({dispatched}) {} | {rest})", self.end(end)),
            (false, _) => format!("{first} ({dispatched})* {rest}"),
        })
    }

    fn separated(&mut self, tags: &Separated, depth: usize) -> Result<String> {
        let each = tags.tags.iter().map(|tag| self.tag(tag, depth)).collect::<Result<_>>()?;
        let tag = format!("({})", one_of(each, "tags_with_separator", "tags")?);
        let some = match tags.stop_after_first {
            true => tag,
            false => format!("({tag} ({} {tag})*)", self.literal(&tags.separator)),
        };
        Ok(if tags.at_least_one { some } else { format!("{some}?") })
    }

    fn tag(&mut self, tag: &Tag, depth: usize) -> Result<String> {
        let content = self.format(&tag.content, End::String(&tag.end), depth + 1)?;
        Ok(format!("{} {content}", self.literal(&tag.begin)))
    }

    fn end(&self, end: End<'_>) -> String {
        if let End::String(end) = end { self.literal(end) } else { String::new() }
    }

    /// A string, in which special tokens are matched as tokens.
    fn literal(&self, text: &str) -> String {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((at, token)) = self.next_special(rest) {
            parts.extend((at > 0).then(|| quoted(&rest[..at])));
            parts.push(format!("<[{}]>", token.id));
            rest = &rest[at + token.text.len()..];
        }
        parts.extend((!rest.is_empty()).then(|| quoted(rest)));
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    }

    /// The first special token of a text, the longest if several begin at the same position.
    fn next_special(&self, text: &str) -> Option<(usize, &SpecialToken)> {
        let found = self.special.iter().filter_map(|token| Some((text.find(&token.text)?, token)));
        found.min_by_key(|(at, token)| (*at, std::cmp::Reverse(token.text.len())))
    }

    /// Text up to and including the first `end`.
    fn until(&mut self, end: &str) -> Result<String> {
        self.until_any(end, &[])
    }

    /// Text up to and including `end`, as in [`until`](Self::until), without any of the triggers in between.
    fn until_any(&mut self, end: &str, triggers: &[String]) -> Result<String> {
        match self.next_special(end) {
            None => {
                let name = self.name();
                self.line(&format!("u{name}[lazy]: /{TEXT}{}/", literal_regex(end)));
                Ok(format!("u{name}"))
            }
            // A special token is not text, and therefore ends it.
            Some((0, _)) => {
                let text = self.optional_text(triggers);
                Ok(format!("{text} {}", self.literal(end)))
            }
            Some(_) => Err(Error::Constraint(format!(
                "{end:?} ends free text, so that a special token is allowed only at its start"
            ))),
        }
    }

    /// Text without triggers, possibly empty.
    fn optional_text(&mut self, triggers: &[String]) -> String {
        // Special tokens are never text, so only plain triggers have to be excluded.
        let plain: Vec<String> = triggers
            .iter()
            .filter(|trigger| self.next_special(trigger).is_none())
            .map(|trigger| literal_regex(trigger))
            .collect();
        let without = match plain.is_empty() {
            true => String::new(),
            false => format!(" & ~/{TEXT}({}){TEXT}/", plain.join("|")),
        };
        let terminal = self.terminal(&format!("/(?s:.+)/{without}"));
        format!("{terminal}?")
    }

    fn terminal(&mut self, expression: &str) -> String {
        let name = format!("X{}", self.name());
        self.line(&format!("{name}: {expression}"));
        name
    }

    fn name(&mut self) -> usize {
        self.count += 1;
        self.count
    }

    fn line(&mut self, line: &str) {
        writeln!(self.lines, "{line}").expect("a string takes it");
    }
}

fn one_of(expressions: Vec<String>, whose: &str, what: &str) -> Result<String> {
    match expressions.is_empty() {
        true => Err(Error::Constraint(format!("{whose} has no {what}"))),
        false => Ok(expressions.join(" | ")),
    }
}

fn json(schema: &Value) -> Result<String> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(format!("%json {}", with_white_space(schema)?)),
        _ => Err(Error::Constraint("a schema must be an object".into())),
    }
}
