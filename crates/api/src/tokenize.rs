//! POST /tokenize and /detokenize: token ids and back.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::chat::tools::WireToolOptions;
use crate::chat::{ChatMessage, ToolOptions, take_messages};
use crate::error::FieldError;
use crate::fields::Fields;
use crate::not_held::NotHeld;
use crate::scalar::TokenId;

/// A text or a conversation to be split into tokens.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TokenizeRequest {
    /// Name of the model; the server's own when absent.
    pub model: Option<String>,
    /// What is to be split.
    #[serde(flatten)]
    pub input: TokenizeInput,
    /// Whether the tokenizer adds its own special tokens: by default with `prompt`, not with `messages`.
    pub add_special_tokens: Option<bool>,
    /// Whether the answer holds the tokens' texts too.
    #[schema(default = false)]
    pub return_token_strs: Option<bool>,
    /// The parts of it that are left out.
    #[serde(skip)]
    #[schema(ignore)]
    pub not_held: NotHeld,
}

/// What is to be split.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenizeInput {
    /// A text.
    Prompt {
        /// The text.
        prompt: String,
    },
    /// A conversation, as POST /v1/chat/completions takes it.
    Messages {
        /// The conversation; never empty.
        messages: Vec<ChatMessage>,
        /// Whether the prompt ends with the opening of the assistant's turn; true by default.
        add_generation_prompt: Option<bool>,
        /// Whether the last message is left open for the model to go on with.
        continue_final_message: Option<bool>,
        /// Handed to the chat template as they are.
        chat_template_kwargs: Option<Map<String, Value>>,
        /// What the model may call, and whether it must.
        #[serde(flatten)]
        #[schema(value_type = WireToolOptions)]
        tool_options: Option<ToolOptions>,
    },
}

impl TokenizeRequest {
    /// Reads a request body.
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
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_len: usize,
    /// The token ids.
    pub tokens: Vec<u32>,
    /// The tokens' texts, if asked for.
    pub token_strs: Option<Vec<String>>,
}

/// Token ids to be joined into a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Name of the model; the server's own when absent.
    pub model: Option<String>,
    /// The token ids.
    pub tokens: Vec<u32>,
}

impl DetokenizeRequest {
    /// Reads a request body.
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
    /// The text, special tokens included.
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
