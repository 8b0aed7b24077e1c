//! POST /v1/embeddings.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::completion::Prompt;
use crate::error::FieldError;
use crate::fields::Fields;

/// Texts to embed.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EmbeddingsRequest {
    /// Model name, from GET /v1/models; default: the served model.
    pub model: Option<String>,
    /// A string, a list of strings, a list of token ids, or a list of such lists.
    pub input: Prompt,
    /// Format of the embeddings.
    #[schema(required = false, default = "float")]
    pub encoding_format: EncodingFormat,
    /// Return only this number of first dimensions, normalized again if the model normalizes.
    pub dimensions: Option<i64>,
    /// Cut inputs to this number of tokens; -1 means the model's context length. By default, an input that is too long is refused.
    pub truncate_prompt_tokens: Option<i64>,
    /// Name of one of the model's prompts, which is put before each text; an empty name means no prompt.
    pub prompt_name: Option<String>,
}

impl EmbeddingsRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let request = Self {
            model: fields.take("model")?,
            input: fields.require("input")?,
            encoding_format: fields.take("encoding_format")?.unwrap_or_default(),
            dimensions: fields.take_integer("dimensions")?,
            truncate_prompt_tokens: take_truncation(&mut fields)?,
            prompt_name: fields.take("prompt_name")?,
        };
        refuse_plain_tokens(&mut fields)?;
        fields.finish()?;
        Ok(request)
    }
}

/// The number of tokens to which inputs are cut, at their end.
pub(crate) fn take_truncation(fields: &mut Fields<'_>) -> Result<Option<i64>, FieldError> {
    let length = fields.take_integer("truncate_prompt_tokens")?;
    let side: Option<String> = fields.take("truncation_side")?;
    match side.as_deref() {
        Some(side) if length.is_some() && side != "right" => {
            let message =
                "Inputs are cut at their end only: `truncation_side` must be right, or left out.";
            Err(FieldError::new("truncation_side", message))
        }
        _ => Ok(length),
    }
}

/// Refuses inputs without special tokens, which encoders have not been trained on.
pub(crate) fn refuse_plain_tokens(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    const FIELD: &str = "add_special_tokens";
    match fields.take(FIELD)? {
        None | Some(true) => Ok(()),
        Some(false) => {
            let message =
                "Special tokens are always added to texts: leave `add_special_tokens` out.";
            Err(FieldError::new(FIELD, message))
        }
    }
}

/// Format of an embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// Little-endian f32 values in base64.
    Base64,
}

/// Embeddings.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EmbeddingsResponse {
    /// Id of this response.
    pub id: String,
    /// Always `list`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Model name of the request.
    pub model: String,
    /// One embedding for each input, in the order of the request.
    pub data: Vec<Embedding>,
    /// Numbers of tokens.
    pub usage: PoolingUsage,
}

/// Embedding of one input.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    pub object: &'static str,
    /// Index of the input.
    pub index: usize,
    /// The embedding.
    pub embedding: Vector,
}

/// An embedding in one of the two formats.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    /// List of numbers.
    Float(Vec<f32>),
    /// Base64 text.
    Base64(String),
}

/// Numbers of tokens of a request that generates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PoolingUsage {
    /// Tokens of all inputs.
    pub prompt_tokens: usize,
    /// Same as `prompt_tokens`.
    pub total_tokens: usize,
}

impl PoolingUsage {
    /// The usage of `prompt_tokens`.
    pub fn new(prompt_tokens: usize) -> Self {
        Self { prompt_tokens, total_tokens: prompt_tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<EmbeddingsRequest, FieldError> {
        EmbeddingsRequest::parse(format!(r#"{{"model": "m", {more}}}"#).as_bytes())
    }

    #[test]
    fn inputs_are_cut_at_their_end() {
        parse(r#""input": "a", "truncation_side": "left""#).unwrap();
        let cut = r#""input": "a", "truncate_prompt_tokens": 2, "truncation_side""#;
        parse(&format!("{cut}: \"right\"")).unwrap();
        let refused = parse(&format!("{cut}: \"left\"")).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("truncation_side"));
    }

    #[test]
    fn all_fields_are_read() {
        let request = parse(
            r#""input": ["a", "b"], "encoding_format": "base64", "dimensions": 8, "user": "u",
            "truncate_prompt_tokens": -1, "prompt_name": "query""#,
        )
        .unwrap();
        assert_eq!(request.input, Prompt::Texts(vec!["a".into(), "b".into()]));
        assert_eq!(request.encoding_format, EncodingFormat::Base64);
        assert_eq!((request.dimensions, request.truncate_prompt_tokens), (Some(8), Some(-1)));
        assert_eq!(request.prompt_name.as_deref(), Some("query"));
        assert_eq!(parse(r#""input": [1, 2]"#).unwrap().input, Prompt::TokenIds(vec![1, 2]));
    }

    #[test]
    fn wrong_fields_are_named() {
        for (more, param) in [
            (r#""input": []"#, "input"),
            (r#""input": [[1], ["x"]]"#, "input[1][0]"),
            (r#""input": "a", "encoding_format": "hex""#, "encoding_format"),
            (r#""input": "a", "dimensions": "8""#, "dimensions"),
            (r#""input": "a", "dimensions": 1.5"#, "dimensions"),
            (r#""input": "a", "temperature": 1"#, "temperature"),
            (r#""dimensions": 8"#, "input"),
        ] {
            assert_eq!(parse(more).unwrap_err().param.as_deref(), Some(param), "{more}");
        }
    }

    #[test]
    fn vectors_are_numbers_or_a_string() {
        let json = |vector: &Vector| serde_json::to_string(vector).unwrap();
        assert_eq!(json(&Vector::Float(vec![0.5, -1.0])), "[0.5,-1.0]");
        assert_eq!(json(&Vector::Base64("AAA=".into())), "\"AAA=\"");
    }
}
