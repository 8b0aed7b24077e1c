//! POST /v1/embeddings.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::completion::Prompt;
use crate::error::FieldError;
use crate::fields::Fields;

/// Texts of which vectors are wanted.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EmbeddingsRequest {
    /// Name of the model, as GET /v1/models lists it; the server's own when absent.
    pub model: Option<String>,
    /// A string, strings, token ids, or lists of token ids.
    pub input: Prompt,
    /// How vectors are written.
    #[schema(required = false, default = "float")]
    pub encoding_format: EncodingFormat,
    /// So many first elements of each vector, brought to length one again where the model's vectors have that.
    pub dimensions: Option<i64>,
    /// Cut inputs to so many tokens; -1 to as many as the model takes. Without it an input that is too long is refused.
    pub truncate_prompt_tokens: Option<i64>,
    /// The name of one of the model's prompts, which is put before each text; an empty name is none.
    pub prompt_name: Option<String>,
}

impl EmbeddingsRequest {
    /// Reads a request body.
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
        fields.finish()?;
        Ok(request)
    }
}

/// The length that inputs are cut to, at their end.
pub(crate) fn take_truncation(fields: &mut Fields<'_>) -> Result<Option<i64>, FieldError> {
    let length = fields.take_integer("truncate_prompt_tokens")?;
    let side: Option<String> = fields.take("truncation_side")?;
    match side.as_deref() {
        Some(side) if length.is_some() && side != "right" => {
            let message = "Inputs are cut at their end: `truncation_side` must be right.";
            Err(FieldError::new("truncation_side", message))
        }
        _ => Ok(length),
    }
}

/// How a vector is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// The bytes of the numbers, each a little-endian IEEE single, in base64.
    Base64,
}

/// Vectors.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EmbeddingsResponse {
    /// Names this answer.
    pub id: String,
    /// Always `list`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name in the request.
    pub model: String,
    /// One for each input, in its order.
    pub data: Vec<Embedding>,
    /// Tokens that were computed.
    pub usage: PoolingUsage,
}

/// The vector of one input.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    pub object: &'static str,
    /// Which input.
    pub index: usize,
    /// The vector.
    pub embedding: Vector,
}

/// A vector in one of the two formats.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    /// As numbers.
    Float(Vec<f32>),
    /// As bytes in base64.
    Base64(String),
}

/// Tokens that a request cost which generates nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PoolingUsage {
    /// Tokens of all inputs.
    pub prompt_tokens: usize,
    /// The same.
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
