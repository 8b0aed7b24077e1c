//! POST /tokenize and /detokenize.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::chat::tools::WireToolOptions;
use crate::chat::{ChatMessage, ToolOptions, take_messages};
use crate::error::FieldError;
use crate::fields::Fields;
use crate::not_held::NotHeld;
use crate::scalar::TokenId;

/// A text or a conversation to tokenize.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TokenizeRequest {
    /// Model name; default: the served model.
    pub model: Option<String>,
    /// The text or the conversation.
    #[serde(flatten)]
    pub input: TokenizeInput,
    /// Add the tokenizer's special tokens. Default: true with `prompt`, false with `messages`.
    pub add_special_tokens: Option<bool>,
    /// Also return the tokens' texts.
    #[schema(default = false)]
    pub return_token_strs: Option<bool>,
    /// Ignored parts of the request.
    #[serde(skip)]
    #[schema(ignore)]
    pub not_held: NotHeld,
}

/// The text or the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenizeInput {
    /// A text.
    Prompt {
        /// The text.
        prompt: String,
    },
    /// A conversation in the format of POST /v1/chat/completions.
    Messages {
        /// The messages; at least one.
        messages: Vec<ChatMessage>,
        /// End the prompt with the start of the assistant's turn. Default: true.
        add_generation_prompt: Option<bool>,
        /// Leave the last message open, so that the model continues it.
        continue_final_message: Option<bool>,
        /// Variables for the chat template.
        chat_template_kwargs: Option<Map<String, Value>>,
        /// Tools and tool choice.
        #[serde(flatten)]
        #[schema(value_type = WireToolOptions)]
        tool_options: Option<ToolOptions>,
    },
}

impl TokenizeRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let input = match fields.take("prompt")? {
            Some(prompt) => TokenizeInput::Prompt { prompt },
            None => TokenizeInput::Messages {
                messages: take_messages(&mut fields).map_err(|error| match error.message {
                    message if message.contains("missing") => {
                        FieldError::new("prompt", "Give `prompt` or `messages`.")
                    }
                    _ => error,
                })?,
                add_generation_prompt: fields.take("add_generation_prompt")?,
                continue_final_message: fields.take("continue_final_message")?,
                chat_template_kwargs: fields.take("chat_template_kwargs")?,
                tool_options: ToolOptions::take(&mut fields)?,
            },
        };
        let mut request = Self {
            model: fields.take("model")?,
            input,
            add_special_tokens: fields.take("add_special_tokens")?,
            return_token_strs: fields.take("return_token_strs")?,
            not_held: NotHeld::default(),
        };
        request.not_held = fields.finish()?;
        Ok(request)
    }
}

/// The tokens of a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TokenizeResponse {
    /// Number of tokens.
    pub count: usize,
    /// Context length: tokens of prompt and output together.
    pub max_model_len: usize,
    /// The token ids.
    pub tokens: Vec<u32>,
    /// The tokens' texts, with `return_token_strs`.
    pub token_strs: Option<Vec<String>>,
}

/// Token ids to convert to text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Model name; default: the served model.
    pub model: Option<String>,
    /// The token ids.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let tokens: Vec<TokenId> = fields.require("tokens")?;
        let request = Self {
            model: fields.take("model")?,
            tokens: tokens.into_iter().map(|token| token.0).collect(),
        };
        fields.finish()?;
        Ok(request)
    }
}

/// The text of token ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DetokenizeResponse {
    /// The text, with special tokens.
    pub prompt: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_a_text_or_a_conversation() {
        let request = TokenizeRequest::parse(br#"{"model": "m", "prompt": "a"}"#).unwrap();
        assert_eq!(request.input, TokenizeInput::Prompt { prompt: "a".into() });
        let request =
            TokenizeRequest::parse(br#"{"messages": [{"role": "user", "content": "a"}]}"#).unwrap();
        assert!(matches!(request.input, TokenizeInput::Messages { .. }));
        let refused = |body: &[u8]| TokenizeRequest::parse(body).unwrap_err().param.unwrap();
        assert_eq!(refused(b"{}"), "prompt");
        assert_eq!(refused(br#"{"prompt": "a", "messages": []}"#), "messages");
        assert_eq!(refused(br#"{"prompt": ["a"]}"#), "prompt");
        assert_eq!(refused(br#"{"prompt": "a", "tools": []}"#), "tools");
    }

    #[test]
    fn tokens_are_ids() {
        assert_eq!(DetokenizeRequest::parse(br#"{"tokens": [1, 2.0]}"#).unwrap().tokens, [1, 2]);
        assert_eq!(
            DetokenizeRequest::parse(br#"{"tokens": [-1]}"#).unwrap_err().param.as_deref(),
            Some("tokens[0]")
        );
    }
}
