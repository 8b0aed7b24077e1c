//! POST /v1/rerank and /v1/score: relevance scores of texts.

use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::completion::MAX_PROMPTS;
use crate::embeddings::{PoolingUsage, refuse_plain_tokens, take_truncation};
use crate::error::FieldError;
use crate::fields::Fields;

/// Documents to sort by relevance to a query.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct RerankRequest {
    /// Model name, from GET /v1/models; default: the served model.
    pub model: Option<String>,
    /// The query.
    pub query: String,
    /// The documents: strings, or objects with a `text`.
    pub documents: Vec<Document>,
    /// Same as `documents`, for clients of text-embeddings-inference. The response is then a list of objects with `index`, `score` and,
    /// with `return_text`, `text`.
    pub texts: Option<Vec<String>>,
    /// With `texts`: also return the texts.
    #[schema(default = false)]
    pub return_text: Option<bool>,
    /// With `texts`: cut each pair to the model's context length.
    #[schema(default = false)]
    pub truncate: Option<bool>,
    /// Return only this number of most relevant documents.
    pub top_n: Option<i64>,
    /// Also return the documents' texts.
    #[schema(default = true)]
    pub return_documents: Option<bool>,
    /// Cut query and document together to this number of tokens; -1 means the model's context length. By default, a pair that is too
    /// long is refused.
    pub truncate_prompt_tokens: Option<i64>,
}

impl RerankRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        let texts: Option<Vec<String>> = fields.take("texts")?;
        let mut request = Self {
            model: fields.take("model")?,
            query: fields.require("query")?,
            documents: match texts {
                Some(_) => fields.take("documents")?.unwrap_or_default(),
                None => fields.require("documents")?,
            },
            return_text: None,
            truncate: None,
            top_n: fields.take_integer("top_n")?,
            return_documents: fields.take("return_documents")?,
            truncate_prompt_tokens: take_truncation(&mut fields)?,
            texts,
        };
        if request.texts.is_some() {
            request.take_for_texts(&mut fields)?;
        }
        refuse_plain_tokens(&mut fields)?;
        fields.finish()?;
        let (name, count) = match &request.texts {
            Some(texts) => ("texts", texts.len()),
            None => ("documents", request.documents.len()),
        };
        check_count(name, count)?;
        Ok(request)
    }

    /// The texts to sort.
    pub fn candidates(&self) -> Vec<&str> {
        match &self.texts {
            Some(texts) => texts.iter().map(String::as_str).collect(),
            None => self.documents.iter().map(|document| document.text.as_str()).collect(),
        }
    }

    /// Takes fields that clients of text-embeddings-inference send with `texts`.
    ///
    /// Source: `RerankRequest` in its API.
    fn take_for_texts(&mut self, fields: &mut Fields<'_>) -> Result<(), FieldError> {
        if !self.documents.is_empty() {
            let message = "`texts` and `documents` mean the same: give one of them.";
            return Err(FieldError::new("texts", message));
        }
        if fields.take::<bool>("raw_scores")? == Some(true) {
            let message =
                "The model's configuration decides whether scores are raw: leave `raw_scores` out.";
            return Err(FieldError::new("raw_scores", message));
        }
        let direction: Option<String> = fields.take("truncation_direction")?;
        if direction.is_some_and(|direction| !direction.eq_ignore_ascii_case("right")) {
            let message = "Texts are cut at their end only: leave `truncation_direction` out.";
            return Err(FieldError::new("truncation_direction", message));
        }
        self.return_text = fields.take("return_text")?;
        self.truncate = fields.take("truncate")?;
        if self.truncate == Some(true) && self.truncate_prompt_tokens.is_none() {
            self.truncate_prompt_tokens = Some(-1);
        }
        Ok(())
    }
}

/// A document, which may also be a string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Document {
    /// Its text.
    pub text: String,
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DocumentVisitor;

        impl<'de> Visitor<'de> for DocumentVisitor {
            type Value = Document;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an object with a `text`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Document, E> {
                Ok(Document { text: text.to_owned() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Document, A::Error> {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Object {
                    text: String,
                }
                let object =
                    Object::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(Document { text: object.text })
            }
        }

        deserializer.deserialize_any(DocumentVisitor)
    }
}

/// Documents, most relevant first.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct RerankResponse {
    /// Id of this response.
    pub id: String,
    /// Model name of the request.
    pub model: String,
    /// Numbers of tokens.
    pub usage: PoolingUsage,
    /// Documents with their scores, most relevant first.
    pub results: Vec<RerankResult>,
}

/// One document with its score.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct RerankResult {
    /// Index of the document in the request.
    pub index: usize,
    /// The document, unless `return_documents` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<ResultDocument>,
    /// Relevance to the query: 0 to 1, unless the model's configuration has raw scores.
    pub relevance_score: f32,
}

/// A document in the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResultDocument {
    /// Its text.
    pub text: String,
}

/// One of the `texts` with its score.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct RankedText {
    /// Index of the text in the request.
    pub index: usize,
    /// Relevance to the query: 0 to 1, unless the model's configuration has raw scores.
    pub score: f32,
    /// The text, with `return_text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Pairs of texts to score.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ScoreRequest {
    /// Model name, from GET /v1/models; default: the served model.
    pub model: Option<String>,
    /// First texts: one text for all of `text_2`, or as many as there. Also named `queries` or `data_1`.
    pub text_1: Texts,
    /// Second texts. Also named `documents`, `items` or `data_2`.
    pub text_2: Texts,
    /// The name of the second texts in the request, for errors.
    #[serde(skip)]
    #[schema(ignore)]
    pub second_name: &'static str,
    /// Cut pairs to this number of tokens; -1 means the model's context length. By default, a pair that is too long is refused.
    pub truncate_prompt_tokens: Option<i64>,
}

impl ScoreRequest {
    /// Parses a request body.
    pub fn parse(body: &[u8]) -> Result<Self, FieldError> {
        let mut fields = Fields::parse(body)?;
        // Source: the forms of vLLM's `/score`.
        let (one, text_1) = one_of([
            ("text_1", fields.take("text_1")?),
            ("queries", fields.take("queries")?),
            ("data_1", fields.take("data_1")?),
        ])?;
        let (two, text_2) = one_of([
            ("text_2", fields.take("text_2")?),
            ("documents", fields.take("documents")?),
            ("items", fields.take("items")?),
            ("data_2", fields.take("data_2")?),
        ])?;
        let request = Self {
            model: fields.take("model")?,
            text_1,
            text_2,
            second_name: two,
            truncate_prompt_tokens: take_truncation(&mut fields)?,
        };
        refuse_plain_tokens(&mut fields)?;
        fields.finish()?;
        let (ones, twos) = (request.text_1.0.len(), request.text_2.0.len());
        check_count(one, ones)?;
        check_count(two, twos)?;
        if ones != 1 && ones != twos {
            let message = format!(
                "`{one}` has {ones} texts and `{two}` has {twos}: give one text in `{one}`, or as many as in `{two}`."
            );
            return Err(FieldError::new(one, message));
        }
        Ok(request)
    }
}

/// The only texts that are given, and their name. The first name is the usual one. Under others, empty texts say nothing.
fn one_of<const N: usize>(
    given: [(&'static str, Option<Texts>); N],
) -> Result<(&'static str, Texts), FieldError> {
    let usual = given[0].0;
    let mut found: Option<(&'static str, Texts)> = None;
    for (name, texts) in given {
        let says = |texts: &Texts| name == usual || !texts.0.iter().all(String::is_empty);
        let texts = texts.filter(says);
        let Some(texts) = texts else { continue };
        if let Some((other, _)) = found {
            let message = format!("`{other}` and `{name}` mean the same: give one of them.");
            return Err(FieldError::new(name, message));
        }
        found = Some((name, texts));
    }
    found.ok_or_else(|| FieldError::new(usual, format!("`{usual}` is missing.")))
}

/// A text or a list of texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Texts(pub Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextsVisitor;

        impl<'de> Visitor<'de> for TextsVisitor {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Texts, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = seq.next_element()? {
                    texts.push(text);
                }
                Ok(Texts(texts))
            }
        }

        deserializer.deserialize_any(TextsVisitor)
    }
}

/// Scores of pairs.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ScoreResponse {
    /// Id of this response.
    pub id: String,
    /// Always `list`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// Model name of the request.
    pub model: String,
    /// One score for each pair, in the order of the request.
    pub data: Vec<Score>,
    /// Numbers of tokens.
    pub usage: PoolingUsage,
}

/// The score of one pair.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Score {
    /// Index of the pair.
    pub index: usize,
    /// Always `score`.
    pub object: &'static str,
    /// Score of the pair: 0 to 1, unless the model's configuration has raw scores.
    pub score: f32,
}

fn check_count(name: &str, count: usize) -> Result<(), FieldError> {
    match count {
        0 => Err(FieldError::new(name, format!("`{name}` is empty: give at least one text."))),
        1..=MAX_PROMPTS => Ok(()),
        _ => Err(FieldError::new(
            name,
            format!("`{name}` has more than {MAX_PROMPTS} texts: send several requests."),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rerank(more: &str) -> Result<RerankRequest, FieldError> {
        RerankRequest::parse(format!(r#"{{"model": "m", "query": "q", {more}}}"#).as_bytes())
    }

    fn score(more: &str) -> Result<ScoreRequest, FieldError> {
        ScoreRequest::parse(format!(r#"{{"model": "m", {more}}}"#).as_bytes())
    }

    #[test]
    fn documents_are_strings_or_objects() {
        let request = rerank(r#""documents": ["a", {"text": "b"}], "top_n": 1"#).unwrap();
        let texts: Vec<&str> = request.documents.iter().map(|d| d.text.as_str()).collect();
        assert_eq!((texts, request.top_n), (vec!["a", "b"], Some(1)));
        for (more, param) in [
            (r#""documents": []"#, "documents"),
            (r#""documents": "a""#, "documents"),
            (r#""documents": ["a", 1]"#, "documents[1]"),
            (r#""documents": [{"text": "a", "title": "b"}]"#, "documents[0].title"),
            (r#""documents": ["a"], "top_n": "1""#, "top_n"),
            (r#""documents": ["a"], "rank_fields": ["x"]"#, "rank_fields"),
        ] {
            let found = rerank(more).unwrap_err().param.unwrap();
            assert!(param.starts_with(&found), "{more}: {found}");
        }
    }

    #[test]
    fn pairs_are_one_to_many_or_many_to_many() {
        assert_eq!(score(r#""text_1": "a", "text_2": ["b", "c"]"#).unwrap().text_2.0.len(), 2);
        assert!(score(r#""text_1": ["a", "b"], "text_2": ["b", "c"]"#).is_ok());
        for pair in [
            r#""queries": "a", "documents": ["b"]"#,
            r#""queries": ["a"], "items": "b""#,
            r#""data_1": "a", "data_2": "b""#,
        ] {
            let request = score(pair).unwrap();
            assert_eq!((request.text_1.0, request.text_2.0), (vec!["a".into()], vec!["b".into()]));
        }
        for (more, param) in [
            (r#""text_1": ["a", "b"], "text_2": "c""#, "text_1"),
            (r#""text_1": "a", "text_2": []"#, "text_2"),
            (r#""text_1": 1, "text_2": "b""#, "text_1"),
            (r#""text_2": "b""#, "text_1"),
            (r#""queries": ["a", "b"], "items": "c""#, "queries"),
            (r#""text_1": "a", "text_2": "b", "documents": "c""#, "documents"),
        ] {
            assert_eq!(score(more).unwrap_err().param.as_deref(), Some(param), "{more}");
        }
    }

    #[test]
    fn documents_may_be_texts() {
        let request = rerank(
            r#""texts": ["a", "b"], "return_text": true, "truncate": true, "raw_scores": false"#,
        )
        .unwrap();
        assert_eq!(request.candidates(), ["a", "b"]);
        assert_eq!((request.return_text, request.truncate_prompt_tokens), (Some(true), Some(-1)));
        for (more, param) in [
            (r#""texts": []"#, "texts"),
            (r#""texts": ["a"], "documents": ["a"]"#, "texts"),
            (r#""texts": [{"text": "a"}]"#, "texts[0]"),
            (r#""texts": ["a"], "raw_scores": true"#, "raw_scores"),
            (r#""texts": ["a"], "truncation_direction": "Left""#, "truncation_direction"),
            (r#""documents": ["a"], "return_text": true"#, "return_text"),
            (r#""top_n": 1"#, "documents"),
        ] {
            assert_eq!(rerank(more).unwrap_err().param.as_deref(), Some(param), "{more}");
        }
    }

    #[test]
    fn the_number_of_texts_is_bounded() {
        let many = serde_json::to_string(&vec!["a"; MAX_PROMPTS + 1]).unwrap();
        let error = rerank(&format!(r#""documents": {many}"#)).unwrap_err();
        assert_eq!(error.message, "`documents` has more than 2048 texts: send several requests.");
    }
}
