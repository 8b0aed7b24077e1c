//! The request of POST /v1/completions.

use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::FieldError;
use crate::fields::Fields;
use crate::generation::GenerationFields;
use crate::not_held::NotHeld;
use crate::scalar::{TokenId, integral, token_id};

/// Maximum number of prompts of a request.
pub const MAX_PROMPTS: usize = 2048;

/// Prompts that the model continues.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CompletionRequest {
    /// Model name, from GET /v1/models; default: the served model.
    pub model: Option<String>,
    /// A string, a list of strings, a list of token ids, or a list of such lists.
    pub prompt: Prompt,
    /// Sampling parameters, stops, constraints and streaming.
    #[serde(flatten)]
    pub generation: GenerationFields,
    /// Text after the answer, for models with fill-in-the-middle tokens. The prompt must be a string or a list of strings.
    pub suffix: Option<String>,
    /// Return the prompt before the generated text. `max_tokens` may then be 0, to score the prompt only.
    #[schema(default = false)]
    pub echo: Option<bool>,
    /// Return log-probabilities of the tokens, and of this number of most likely tokens at each position.
    pub logprobs: Option<i64>,
    /// Add the tokenizer's special tokens to text prompts.
    #[schema(default = true)]
    pub add_special_tokens: Option<bool>,
    /// Ignored parts of the request.
    #[serde(skip)]
    #[schema(ignore)]
    pub not_held: NotHeld,
}

impl CompletionRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let mut request = Self {
            model: fields.take("model")?,
            prompt: fields.require("prompt")?,
            generation: GenerationFields::take(&mut fields)?,
            suffix: fields.take::<String>("suffix")?.filter(|suffix| !suffix.is_empty()),
            echo: fields.take("echo")?,
            logprobs: fields.take_integer("logprobs")?,
            add_special_tokens: fields.take("add_special_tokens")?,
            not_held: NotHeld::default(),
        };
        if request.suffix.is_some() && !matches!(request.prompt, Prompt::Text(_) | Prompt::Texts(_))
        {
            let message = "`suffix` needs a text `prompt`: leave `suffix` out and put the model's fill-in-the-middle tokens into the token ids.";
            return Err(FieldError::new("suffix", message));
        }
        request.not_held = fields.finish()?;
        Ok(request)
    }
}

/// One or several prompts; never an empty list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Prompt {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One prompt as token ids.
    TokenIds(Vec<u32>),
    /// Several prompts as token ids.
    TokenIdLists(Vec<Vec<u32>>),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, strings, token ids, or lists of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompt, A::Error> {
        let mut prompt = match seq.next_element()? {
            None => return Err(A::Error::custom("the list is empty")),
            Some(Item::Text(text)) => Prompt::Texts(vec![text]),
            Some(Item::TokenId(id)) => Prompt::TokenIds(vec![id]),
            Some(Item::TokenIds(ids)) => Prompt::TokenIdLists(vec![ids]),
        };
        // Items are converted immediately, so that a list of ids takes four bytes for each id and no intermediate JSON values.
        while let Some(item) = seq.next_element()? {
            let num_prompts = match (&mut prompt, item) {
                (Prompt::Texts(texts), Item::Text(text)) => {
                    texts.push(text);
                    texts.len()
                }
                (Prompt::TokenIds(ids), Item::TokenId(id)) => {
                    ids.push(id);
                    1
                }
                (Prompt::TokenIdLists(lists), Item::TokenIds(ids)) => {
                    lists.push(ids);
                    lists.len()
                }
                _ => return Err(A::Error::custom("strings, token ids and lists are mixed")),
            };
            if num_prompts > MAX_PROMPTS {
                return Err(A::Error::custom(format_args!("more than {MAX_PROMPTS} prompts")));
            }
        }
        Ok(prompt)
    }
}

/// An element of a list of prompts.
enum Item {
    Text(String),
    TokenId(u32),
    TokenIds(Vec<u32>),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a token id or a list of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_i64<E: Error>(self, id: i64) -> Result<Item, E> {
        token_id(id).map(Item::TokenId)
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Item, E> {
        token_id(i64::try_from(id).unwrap_or(i64::MAX)).map(Item::TokenId)
    }

    fn visit_f64<E: Error>(self, id: f64) -> Result<Item, E> {
        token_id(integral(id)?).map(Item::TokenId)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = seq.next_element::<TokenId>()? {
            ids.push(id.0);
        }
        Ok(Item::TokenIds(ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(text: &str) -> Result<Prompt, FieldError> {
        CompletionRequest::parse(format!(r#"{{"model": "m", "prompt": {text}}}"#).as_bytes())
            .map(|r| r.prompt)
    }

    #[test]
    fn all_forms_of_prompts_are_read() {
        assert_eq!(prompt(r#""a""#).unwrap(), Prompt::Text("a".into()));
        assert_eq!(prompt(r#"["a", "b"]"#).unwrap(), Prompt::Texts(vec!["a".into(), "b".into()]));
        assert_eq!(prompt("[1, 2.0]").unwrap(), Prompt::TokenIds(vec![1, 2]));
        assert_eq!(
            prompt("[[1], [2, 3]]").unwrap(),
            Prompt::TokenIdLists(vec![vec![1], vec![2, 3]])
        );
    }

    #[test]
    fn other_forms_are_refused_with_their_path() {
        for (text, param) in [
            ("null", "prompt"),
            ("[]", "prompt"),
            ("7", "prompt"),
            (r#"["a", 1]"#, "prompt"),
            ("[1, -1]", "prompt[1]"),
            ("[[1], [2, \"x\"]]", "prompt[1][1]"),
            ("[1, 99999999999]", "prompt[1]"),
            ("[1.5]", "prompt[0]"),
            ("[{}]", "prompt[0]"),
        ] {
            assert_eq!(prompt(text).unwrap_err().param.as_deref(), Some(param), "{text}");
        }
    }

    #[test]
    fn the_number_of_prompts_is_bounded() {
        let many = serde_json::to_string(&vec!["a"; MAX_PROMPTS + 1]).unwrap();
        assert!(prompt(&many).unwrap_err().message.contains("more than 2048 prompts"));
        assert!(prompt(&serde_json::to_string(&vec!["a"; MAX_PROMPTS]).unwrap()).is_ok());
        assert!(prompt(&serde_json::to_string(&vec![1; 100_000]).unwrap()).is_ok());
    }

    #[test]
    fn logprobs_is_a_number_and_a_suffix_follows_a_text() {
        let parse = |more: &str| {
            CompletionRequest::parse(format!(r#"{{"model":"m","prompt":"p",{more}}}"#).as_bytes())
        };
        assert_eq!(parse(r#""logprobs": 0"#).unwrap().logprobs, Some(0));
        assert_eq!(parse(r#""logprobs": true"#).unwrap_err().param.as_deref(), Some("logprobs"));
        assert_eq!(parse(r#""suffix": "x""#).unwrap().suffix.as_deref(), Some("x"));
        let ids = CompletionRequest::parse(br#"{"prompt": [1], "suffix": "x"}"#).unwrap_err();
        assert_eq!(ids.param.as_deref(), Some("suffix"));
        assert_eq!(parse(r#""messages": []"#).unwrap_err().param.as_deref(), Some("messages"));
        parse(r#""suffix": null, "user": "u""#).unwrap();
    }
}
