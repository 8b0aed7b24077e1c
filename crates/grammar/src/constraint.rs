//! What an output may be asked to be.

use candlepower_tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::vocabulary::{self, SpecialToken};
use crate::{Error, Result, cost, gbnf, lark, schema, structural_tag};

/// What an output must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes.
    JsonSchema(Value),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of a context-free grammar in Lark's notation.
    Lark(String),
    /// A text of a grammar in Lark's notation that was put together here: each of its texts can be read in one way, but for
    /// what a grammar within it says.
    Composed(String),
    /// A text of a context-free grammar in GBNF, the EBNF of llama.cpp and SGLang, of its rule `root`.
    Gbnf(String),
    /// Text with constrained parts, as a `structural_tag` of vLLM and SGLang describes it.
    StructuralTag(Value),
}

/// White space between the tokens of JSON: at most a line break and an indentation. Unbounded, a model may write nothing
/// else until its tokens run out.
pub(crate) const WHITE_SPACE: &str = r"(\r?\n)?[ \t]{0,40}";

impl Constraint {
    /// The constraint as a value in Lark's notation, which may stand within a larger grammar.
    ///
    /// # Errors
    /// [`Error::EmptyChoice`], or [`Error::Constraint`] with what is wrong.
    pub fn as_lark_value(&self, tokenizer: &Tokenizer) -> Result<String> {
        let special = vocabulary::special_tokens(tokenizer, tokenizer.vocab_size());
        Ok(match self.notation(&special)? {
            Notation::Json(schema) => format!("%json {schema}"),
            Notation::Lark(grammar) => format!("%lark {{\n{grammar}\n}}"),
        })
    }

    /// The constraint, in whose schemas objects take their declared keys only, unless they say which others.
    ///
    /// # Errors
    /// [`Error::Constraint`] for a schema whose compositions are too large to be looked through.
    pub fn closed(self) -> Result<Self> {
        Ok(match self {
            Self::JsonSchema(schema) => Self::JsonSchema(schema::closed(&schema)?),
            Self::StructuralTag(tag) => Self::StructuralTag(structural_tag::closed(&tag)?),
            other => other,
        })
    }

    /// A grammar in the notation that it is written in: GBNF, or else Lark's.
    pub fn grammar(text: String) -> Self {
        if gbnf::is_gbnf(&text) { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// Whether it is so small that it is compiled at once, in about a millisecond.
    ///
    /// # Errors
    /// [`Error::Constraint`] with the limit that it exceeds.
    pub fn is_small(&self) -> Result<bool> {
        cost::is_small(self)
    }

    /// The same for the same constraint.
    pub(crate) fn key(&self) -> String {
        let (kind, text) = match self {
            Self::JsonObject => ("object", String::new()),
            Self::JsonSchema(schema) => ("json", schema.to_string()),
            Self::Regex(regex) => ("regex", regex.clone()),
            Self::Choice(texts) => ("choice", json!(texts).to_string()),
            Self::Lark(grammar) => ("lark", grammar.clone()),
            Self::Composed(grammar) => ("composed", grammar.clone()),
            Self::Gbnf(grammar) => ("gbnf", grammar.clone()),
            Self::StructuralTag(tag) => ("tag", tag.to_string()),
        };
        format!("{kind} {text}")
    }

    /// The constraint in llguidance's notation.
    pub(crate) fn notation(&self, special: &[SpecialToken]) -> Result<Notation> {
        Ok(match self {
            Self::JsonObject => Notation::Json(with_white_space(&json!({"type": "object"}))?),
            Self::JsonSchema(schema) => Notation::Json(with_white_space(schema)?),
            Self::Regex(regex) => Notation::Lark(format!("start: /{}/\n", escape_slashes(regex))),
            Self::Choice(texts) if texts.is_empty() || texts.iter().any(String::is_empty) => {
                return Err(Error::EmptyChoice);
            }
            Self::Choice(texts) => {
                let literals: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                // One terminal: as rules, so many texts would be looked at one by one for each token.
                Notation::Lark(format!("start: CHOICE\nCHOICE: {}\n", literals.join(" | ")))
            }
            Self::Lark(grammar) | Self::Composed(grammar) => {
                lark::check_attributes(grammar)?;
                lark::check_depth(grammar)?;
                Notation::Lark(grammar.clone())
            }
            Self::StructuralTag(tag) => {
                let grammar = structural_tag::to_lark(tag, special)?;
                lark::check_attributes(&grammar)?;
                Notation::Lark(grammar)
            }
            Self::Gbnf(grammar) => Notation::Lark(gbnf::to_lark(grammar)?),
        })
    }
}

/// A constraint as llguidance takes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Notation {
    Json(Value),
    Lark(String),
}

/// The schema with our white space; what the request says of llguidance's own options is dropped, because they are no
/// part of JSON Schema.
///
/// # Errors
/// [`Error::Constraint`] with the keyword that cannot be held.
pub(crate) fn with_white_space(schema: &Value) -> Result<Value> {
    schema::check_patterns(schema)?;
    let prepared = schema::prepared(schema);
    schema::check(&prepared)?;
    let mut schema = match prepared {
        Value::Object(schema) => schema,
        // `true` allows all JSON, `false` none.
        other => Map::from_iter([("allOf".to_owned(), Value::Array(vec![other]))]),
    };
    let options = json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE});
    schema.insert("x-guidance".to_owned(), options);
    Ok(Value::Object(schema))
}

/// A text as a string of Lark's notation, which is JSON's but for one character.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A regular expression as it stands between slashes in Lark's notation.
pub fn escape_slashes(regex: &str) -> String {
    let mut escaped = String::with_capacity(regex.len());
    let mut after_backslash = false;
    for character in regex.chars() {
        match character {
            '/' if !after_backslash => escaped.push_str("\\/"),
            '\n' => escaped.push_str(if after_backslash { "n" } else { "\\n" }),
            other => escaped.push(other),
        }
        after_backslash = character == '\\' && !after_backslash;
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_and_line_breaks_stay_within_the_expression() {
        assert_eq!(escape_slashes(r"a/b\/c\\/d"), r"a\/b\/c\\\/d");
        assert_eq!(escape_slashes("a\nb"), r"a\nb");
    }

    #[test]
    fn a_choice_is_never_empty() {
        assert_eq!(Constraint::Choice(vec![]).notation(&[]), Err(Error::EmptyChoice));
        assert_eq!(
            Constraint::Choice(vec!["a".into(), String::new()]).notation(&[]),
            Err(Error::EmptyChoice)
        );
    }
}
