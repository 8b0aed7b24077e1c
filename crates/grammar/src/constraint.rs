//! Constraints on outputs, and their form for llguidance.

use candlepower_tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::cost::Class;
use crate::vocabulary::{self, SpecialToken};
use crate::{Error, Result, cost, gbnf, lark, schema, structural_tag};

/// A constraint on a whole output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid by a JSON schema.
    JsonSchema(Value),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// One of these strings.
    Choice(Vec<String>),
    /// Text of a context-free grammar in Lark syntax.
    Lark(String),
    /// Text of a grammar in Lark syntax that this server built. It is unambiguous, except for grammars of the request in it.
    Composed(String),
    /// Text of the rule `root` of a context-free grammar in GBNF, the EBNF of llama.cpp and SGLang.
    Gbnf(String),
    /// Text with constrained parts, a `structural_tag` of vLLM and SGLang.
    StructuralTag(Value),
}

/// White space between the tokens of JSON: at most a line break and an indentation. Without a limit, a model may write
/// white space until `max_tokens`.
pub(crate) const WHITE_SPACE: &str = r"(\r?\n)?[ \t]{0,40}";

impl Constraint {
    /// The constraint as a value in Lark syntax, for use within a larger grammar.
    ///
    /// # Errors
    /// [`Error::EmptyChoice`], or [`Error::Constraint`] with the cause.
    pub fn as_lark_value(&self, tokenizer: &Tokenizer) -> Result<String> {
        let special = vocabulary::special_tokens(tokenizer, tokenizer.vocab_size());
        Ok(match self.notation(&special)? {
            Notation::Json(schema) => format!("%json {schema}"),
            Notation::Lark(grammar) => format!("%lark {{\n{grammar}\n}}"),
        })
    }

    /// The constraint with closed objects: they accept no properties except declared ones, unless a schema allows others explicitly.
    ///
    /// # Errors
    /// [`Error::Constraint`] for a schema with too many compositions.
    pub fn closed(self) -> Result<Self> {
        Ok(match self {
            Self::JsonSchema(schema) => Self::JsonSchema(schema::closed(&schema)?),
            Self::StructuralTag(tag) => Self::StructuralTag(structural_tag::closed(&tag)?),
            other => other,
        })
    }

    /// A grammar, whose syntax (GBNF or Lark) is recognized.
    pub fn grammar(text: String) -> Self {
        if gbnf::is_gbnf(&text) { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// Whether it is so small that it compiles in about a millisecond, without a child process.
    ///
    /// # Errors
    /// [`Error::Constraint`] with the exceeded limit.
    pub fn is_small(&self) -> Result<bool> {
        Ok(self.class()? != Class::Large)
    }

    /// How it is compiled.
    ///
    /// # Errors
    /// [`Error::Constraint`] with the exceeded limit.
    pub(crate) fn class(&self) -> Result<Class> {
        cost::class(self)
    }

    /// The key of the cache, equal for equal constraints.
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

    /// The constraint in llguidance's form.
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
                // One terminal: as alternatives of a rule, all strings would be checked one by one for each token.
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

/// A constraint in the form of llguidance.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Notation {
    Json(Value),
    Lark(String),
}

/// The schema with our white space. llguidance's own options in the request are dropped, because they are not part of
/// JSON Schema.
///
/// # Errors
/// [`Error::Constraint`] with the keyword that cannot be enforced.
pub(crate) fn with_white_space(schema: &Value) -> Result<Value> {
    schema::check_patterns(schema)?;
    let prepared = schema::prepared(schema);
    schema::check(&prepared)?;
    // llguidance takes its options from the root, which therefore has to be an object.
    let mut schema = match prepared {
        Value::Object(schema) => schema,
        // `true` allows any JSON, `false` none.
        other => Map::from_iter([("allOf".to_owned(), Value::Array(vec![other]))]),
    };
    let options = json!({"whitespace_flexible": true, "whitespace_pattern": WHITE_SPACE});
    // A client's own `x-guidance` is overwritten: it could make white space unbounded.
    schema.insert("x-guidance".to_owned(), options);
    Ok(Value::Object(schema))
}

/// A string literal in Lark syntax, which differs from JSON's in one character.
pub(crate) fn quoted(text: &str) -> String {
    // JSON writes DEL as it is, and Lark's strings have to escape it.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A regular expression escaped for the slashes around it in Lark syntax.
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
