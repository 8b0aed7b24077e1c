//! POST /v1/embeddings, and functions that the scoring endpoints share with it.

use std::sync::Arc;

use axum::Json;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use candlepower_api::{
    Embedding, EmbeddingsRequest, EmbeddingsResponse, EncodingFormat, ErrorResponse, PoolingUsage,
    Prompt, Vector, excerpt,
};
use candlepower_engine::{EncoderInput, EngineHealth};
use uuid::Uuid;

use crate::generation::cancellation;
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{check_text_bytes, check_text_length, unix_seconds};
use crate::generation::request::Incoming;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::keys::ApiKey;
use crate::model::served_model::PoolingModel;

/// Computes embeddings of texts.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    tag = "Embeddings",
    request_body = EmbeddingsRequest,
    responses(
        (status = 200, description = "The embeddings", body = EmbeddingsResponse),
        (status = 400, description = "A field is invalid, or the model is not an embedding model; `param` names the field", body = ErrorResponse),
        (status = 404, description = "The model does not exist", body = ErrorResponse),
        (status = 429, description = "The queue is full, or a limit of the API key is reached", body = ErrorResponse),
    )
)]
pub(crate) async fn embeddings(
    request: Incoming<PoolingModel>,
) -> ApiResult<Json<EmbeddingsResponse>> {
    request.model.embedder.check_queue(request.caller.id)?;
    let prepared = request.prepare(Prepared::new).await?;
    let usage = usage(&prepared.inputs);
    let vectors = compute(&request, prepared.inputs).await?;
    let model = &request.model;
    let vector = |mut vector: Vec<f32>| {
        if prepared.dimensions < vector.len() {
            vector.truncate(prepared.dimensions);
            if model.embedder.info().normalizes {
                normalize(&mut vector);
            }
        }
        match prepared.format {
            EncodingFormat::Float => Vector::Float(vector),
            EncodingFormat::Base64 => Vector::Base64(base64(&vector)),
        }
    };
    let data = vectors.into_iter().map(vector).enumerate();
    let data = data
        .map(|(index, embedding)| Embedding { object: "embedding", index, embedding })
        .collect();
    Ok(Json(EmbeddingsResponse {
        id: format!("embd-{}", Uuid::new_v4().simple()),
        object: "list",
        created: unix_seconds(),
        model: prepared.model_name,
        data,
        usage,
    }))
}

/// A validated and tokenized request.
struct Prepared {
    model_name: String,
    inputs: Vec<EncoderInput>,
    format: EncodingFormat,
    dimensions: usize,
}

impl Prepared {
    fn new(body: &[u8], model: &Preparation<'_, PoolingModel>) -> ApiResult<Self> {
        let request = EmbeddingsRequest::parse(body)?;
        let model_name = model.asked_name(request.model.as_deref())?;
        let Some(own) = model.embedder.info().dimensions else {
            let message = "This is a reranking model and has no embeddings: use POST /v1/rerank or /v1/score.";
            return Err(ApiError::invalid("model", message));
        };
        let dimensions = match request.dimensions {
            None => own,
            Some(asked) => usize::try_from(asked)
                .ok()
                .filter(|asked| (1..=own).contains(asked))
                .ok_or_else(|| {
                    let message = format!(
                        "`dimensions` is {asked}; it must be 1 to {own}, the dimensions of the model."
                    );
                    ApiError::invalid("dimensions", message)
                })?,
        };
        let limit = truncation(model, request.truncate_prompt_tokens)?;
        let prefix = prompt(model, request.prompt_name.as_deref(), &request.input)?;
        Ok(Self {
            model_name,
            inputs: inputs(model, &request.input, prefix, limit)?,
            format: request.encoding_format,
            dimensions,
        })
    }
}

/// The text to put before each input.
fn prompt<'a>(
    model: &'a PoolingModel,
    asked: Option<&str>,
    input: &Prompt,
) -> ApiResult<Option<&'a str>> {
    let prompts = &model.sentence.prompts;
    let is_text = matches!(input, Prompt::Text(_) | Prompt::Texts(_));
    match asked {
        None => {
            let default = model.sentence.default_prompt.as_ref().filter(|_| is_text);
            Ok(default.map(|name| prompts[name].as_str()))
        }
        // An empty name disables the default prompt, as in sentence-transformers.
        Some("") => Ok(None),
        Some(_) if !is_text => {
            let message =
                "`prompt_name` applies to texts only, and `input` has token ids: leave it out.";
            Err(ApiError::invalid("prompt_name", message))
        }
        Some(name) => prompts.get(name).map(|prompt| Some(prompt.as_str())).ok_or_else(|| {
            let known: Vec<&str> = prompts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message =
                format!("The model has no prompt `{}`; its prompts are: {known}.", excerpt(name));
            ApiError::invalid("prompt_name", message)
        }),
    }
}

fn inputs(
    model: &PoolingModel,
    input: &Prompt,
    prefix: Option<&str>,
    limit: Option<usize>,
) -> ApiResult<Vec<EncoderInput>> {
    let text = |param: String, text: &str| {
        let ids = match prefix {
            None => text_ids(model, &param, text, limit)?,
            Some(prefix) => text_ids(model, &param, &format!("{prefix}{text}"), limit)?,
        };
        text_input(model, param, (&ids, None), limit)
    };
    let ids = |param: String, ids: &[u32]| {
        let kept = limit.map_or(ids.len(), |limit| limit.min(ids.len()));
        let input = EncoderInput { token_ids: ids[..kept].to_vec(), type_ids: Vec::new() };
        check(model, param, input)
    };
    let each = |i: usize| format!("input[{i}]");
    match input {
        Prompt::Text(one) => Ok(vec![text("input".to_owned(), one)?]),
        Prompt::TokenIds(one) => Ok(vec![ids("input".to_owned(), one)?]),
        Prompt::Texts(texts) => {
            texts.iter().enumerate().map(|(i, one)| text(each(i), one)).collect()
        }
        Prompt::TokenIdLists(lists) => {
            lists.iter().enumerate().map(|(i, one)| ids(each(i), one)).collect()
        }
    }
}

/// The token ids of one text of an input. If the input is cut to `limit` tokens, at least `limit` ids of a longer text.
pub(crate) fn text_ids(
    model: &PoolingModel,
    param: &str,
    text: &str,
    limit: Option<usize>,
) -> ApiResult<Vec<u32>> {
    if limit.is_none() {
        check_text_length(model, param, text)?;
    }
    check_text_bytes(model, param, text.len())?;
    let lower = model.sentence.lower_case.then(|| text.to_lowercase());
    let text = lower.as_deref().unwrap_or(text);
    let ids = model.tokenizer.encode_text(text, limit, &cancellation::flag());
    ids.map_err(|error| ApiError::invalid(param, candlepower_api::clip(&error.to_string())))
}

/// The input for a text or a pair of texts, from their token ids, cut to `limit` tokens if there is a limit.
pub(crate) fn text_input(
    model: &PoolingModel,
    param: String,
    (text, pair): (&[u32], Option<&[u32]>),
    limit: Option<usize>,
) -> ApiResult<EncoderInput> {
    let input = model.tokenizer.input(text, pair, limit).map_err(|error| {
        ApiError::invalid(param.as_str(), candlepower_api::clip(&error.to_string()))
    })?;
    let input = EncoderInput { token_ids: input.token_ids, type_ids: input.type_ids };
    check(model, param, input)
}

/// Refuses an input that is empty, too long, or has unknown token ids.
fn check(model: &PoolingModel, param: String, input: EncoderInput) -> ApiResult<EncoderInput> {
    let (len, limit, vocab_size) = (input.token_ids.len(), model.max_model_len, model.vocab_size);
    if len == 0 {
        return Err(ApiError::invalid(param, "The input is empty: it needs at least one token."));
    }
    if len > limit {
        let message = format!(
            "This model's maximum context length is {limit} tokens, but the input has {len}: shorten it, or set \
             `truncate_prompt_tokens`."
        );
        return Err(ApiError::context_length(param, message));
    }
    match input.token_ids.iter().find(|id| **id as usize >= vocab_size) {
        Some(id) => {
            let message =
                format!("Token id {id} is outside the model's vocabulary of {vocab_size}.");
            Err(ApiError::invalid(param, message))
        }
        None => Ok(input),
    }
}

/// The number of tokens to which inputs are cut, if the request asks for it.
pub(crate) fn truncation(model: &PoolingModel, asked: Option<i64>) -> ApiResult<Option<usize>> {
    let limit = model.max_model_len;
    match asked {
        None => Ok(None),
        Some(-1) => Ok(Some(limit)),
        Some(asked) => match usize::try_from(asked) {
            Ok(asked) if (1..=limit).contains(&asked) => Ok(Some(asked)),
            _ => {
                let message = format!(
                    "`truncate_prompt_tokens` is {asked}; it must be 1 to {limit}, or -1 for {limit}."
                );
                Err(ApiError::invalid("truncate_prompt_tokens", message))
            }
        },
    }
}

/// The embeddings or scores of all inputs. Dropping the future cancels the request.
pub(crate) async fn compute(
    request: &Incoming<PoolingModel>,
    inputs: Vec<EncoderInput>,
) -> ApiResult<Vec<Vec<f32>>> {
    let Incoming { state, model, arrived, .. } = request;
    let metrics = state.metrics();
    for input in &inputs {
        metrics.prompt_tokens.record(input.token_ids.len() as f64);
    }
    let num_tokens = inputs.iter().map(|input| input.token_ids.len()).sum();
    request.tokens.add_prompt(num_tokens);
    let admit = |key: &Arc<ApiKey>| key.admit(1, num_tokens, metrics);
    let _key_permit = request.key.as_ref().map(admit).transpose()?;
    let vectors = model.embedder.submit(request.caller, inputs)?;
    let mut aborted = state.aborted();
    let vectors = tokio::select! {
        vectors = vectors.wait() => vectors,
        _ = aborted.wait_for(|aborted| *aborted) => {
            metrics.count_success("abort");
            return Err(ApiError::unavailable("The server is stopping: the request was aborted."));
        }
    };
    let vectors = vectors.map_err(|reason| match (reason, model.embedder.health()) {
        (Some(message), _) => ApiError::internal(message),
        (None, EngineHealth::Dead(reason)) => {
            ApiError::unavailable(format!("The engine is not running: {reason}"))
        }
        (None, _) => {
            ApiError::internal("Defect of the server: the engine has dropped the request.")
        }
    })?;
    metrics.e2e_latency.record(arrived.elapsed().as_secs_f64());
    metrics.count_success("stop");
    Ok(vectors)
}

/// The usage of inputs.
pub(crate) fn usage(inputs: &[EncoderInput]) -> PoolingUsage {
    PoolingUsage::new(inputs.iter().map(|input| input.token_ids.len()).sum())
}

/// Normalizes a vector to length 1; a zero vector stays.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
}

/// The values as little-endian f32, in base64.
fn base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_holds_little_endian_singles() {
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
    }

    #[test]
    fn a_cut_vector_has_length_one_again() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zeros = [0.0, 0.0];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0, 0.0]);
    }
}
