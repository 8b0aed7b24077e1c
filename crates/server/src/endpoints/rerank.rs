//! POST /v1/rerank and /v1/score: scores of text pairs, from a cross-encoder.

use axum::Json;
use axum::response::{IntoResponse, Response};
use candlepower_api::{
    ErrorResponse, RankedText, RerankRequest, RerankResponse, RerankResult, ResultDocument, Score,
    ScoreRequest, ScoreResponse,
};
use candlepower_engine::EncoderInput;
use uuid::Uuid;

use crate::endpoints::embeddings::{compute, text_ids, text_input, truncation, usage};
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{check_text_bytes, unix_seconds};
use crate::generation::request::Incoming;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::PoolingModel;

/// Sorts documents by relevance to a query.
#[utoipa::path(
    post,
    path = "/v1/rerank",
    tag = "Embeddings",
    request_body = RerankRequest,
    responses(
        (status = 200, description = "The documents, most relevant first; a list of indices and scores if the request has `texts`", body = RerankResponse),
        (status = 400, description = "A field is invalid, or the model is not a cross-encoder; `param` names the field", body = ErrorResponse),
        (status = 404, description = "The model does not exist", body = ErrorResponse),
        (status = 429, description = "The queue is full, or a limit of the API key is reached", body = ErrorResponse),
    )
)]
pub(crate) async fn rerank(incoming: Incoming<PoolingModel>) -> ApiResult<Response> {
    incoming.model.embedder.check_queue(incoming.caller.id)?;
    let prepare = |body: &[u8], model: &Preparation<'_, PoolingModel>| {
        let request = RerankRequest::parse(body)?;
        let model_name = model.asked_name(request.model.as_deref())?;
        check_top_n(request.top_n)?;
        let name = if request.texts.is_some() { "texts" } else { "documents" };
        let candidates = request.candidates().into_iter().enumerate();
        let pairs =
            candidates.map(|(i, text)| (format!("{name}[{i}]"), request.query.as_str(), text));
        let inputs = pair_inputs(model, pairs, request.truncate_prompt_tokens)?;
        Ok((model_name, request, inputs))
    };
    let (model_name, request, inputs) = incoming.prepare(prepare).await?;
    let usage = usage(&inputs);
    let scores = scores(&incoming, inputs).await?;
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // The sort is stable: documents with equal scores stay in the order of the request.
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    if let Some(top_n) = request.top_n {
        order.truncate(usize::try_from(top_n).unwrap_or(usize::MAX));
    }
    let candidates = request.candidates();
    if request.texts.is_some() {
        let with_text = request.return_text.unwrap_or(false);
        let ranked = |index: usize| RankedText {
            index,
            score: scores[index],
            text: with_text.then(|| candidates[index].to_owned()),
        };
        return Ok(Json(order.into_iter().map(ranked).collect::<Vec<_>>()).into_response());
    }
    let with_text = request.return_documents.unwrap_or(true);
    let result = |index: usize| RerankResult {
        index,
        document: with_text.then(|| ResultDocument { text: candidates[index].to_owned() }),
        relevance_score: scores[index],
    };
    Ok(Json(RerankResponse {
        id: format!("rerank-{}", Uuid::new_v4().simple()),
        results: order.into_iter().map(result).collect(),
        model: model_name,
        usage,
    })
    .into_response())
}

/// Scores pairs of texts.
#[utoipa::path(
    post,
    path = "/v1/score",
    tag = "Embeddings",
    request_body = ScoreRequest,
    responses(
        (status = 200, description = "The scores", body = ScoreResponse),
        (status = 400, description = "A field is invalid, or the model is not a cross-encoder; `param` names the field", body = ErrorResponse),
        (status = 404, description = "The model does not exist", body = ErrorResponse),
        (status = 429, description = "The queue is full, or a limit of the API key is reached", body = ErrorResponse),
    )
)]
pub(crate) async fn score(incoming: Incoming<PoolingModel>) -> ApiResult<Json<ScoreResponse>> {
    incoming.model.embedder.check_queue(incoming.caller.id)?;
    let prepare = |body: &[u8], model: &Preparation<'_, PoolingModel>| {
        let request = ScoreRequest::parse(body)?;
        let model_name = model.asked_name(request.model.as_deref())?;
        let (ones, twos) = (&request.text_1.0, &request.text_2.0);
        let pairs = twos.iter().enumerate().map(|(i, two)| {
            let one = ones.get(i).unwrap_or(&ones[0]);
            (format!("{}[{i}]", request.second_name), one.as_str(), two.as_str())
        });
        let inputs = pair_inputs(model, pairs, request.truncate_prompt_tokens)?;
        Ok((model_name, inputs))
    };
    let (model_name, inputs) = incoming.prepare(prepare).await?;
    let usage = usage(&inputs);
    let scores = scores(&incoming, inputs).await?;
    let score = |(index, score)| Score { index, object: "score", score };
    Ok(Json(ScoreResponse {
        id: format!("score-{}", Uuid::new_v4().simple()),
        object: "list",
        created: unix_seconds(),
        model: model_name,
        data: scores.into_iter().enumerate().map(score).collect(),
        usage,
    }))
}

fn check_top_n(top_n: Option<i64>) -> ApiResult<()> {
    match top_n {
        Some(asked) if asked < 1 => {
            let message = format!("`top_n` is {asked}; it must be at least 1, or left out.");
            Err(ApiError::invalid("top_n", message))
        }
        _ => Ok(()),
    }
}

/// The inputs of text pairs, each with its name in errors.
fn pair_inputs<'a>(
    model: &PoolingModel,
    pairs: impl Iterator<Item = (String, &'a str, &'a str)>,
    truncate_prompt_tokens: Option<i64>,
) -> ApiResult<Vec<EncoderInput>> {
    if model.embedder.info().dimensions.is_some() {
        let message = "This is an embedding model and gives no scores: use POST /v1/embeddings, or serve a cross-encoder.";
        return Err(ApiError::invalid("model", message));
    }
    let limit = truncation(model, truncate_prompt_tokens)?;
    // The query is the same in each pair, so that it is tokenized only once.
    let mut last: Option<(&str, Vec<u32>)> = None;
    let input = |(param, one, two): (String, &'a str, &'a str)| {
        check_text_bytes(model, param.as_str(), one.len() + two.len())?;
        if last.as_ref().is_none_or(|(text, _)| *text != one) {
            last = Some((one, text_ids(model, &param, one, limit)?));
        }
        let ids = last.as_ref().map_or(&[][..], |(_, ids)| ids);
        let pair = text_ids(model, &param, two, limit)?;
        text_input(model, param, (ids, Some(&pair)), limit)
    };
    pairs.map(input).collect()
}

async fn scores(
    request: &Incoming<PoolingModel>,
    inputs: Vec<EncoderInput>,
) -> ApiResult<Vec<f32>> {
    // A cross-encoder gives one score for each pair.
    Ok(compute(request, inputs).await?.into_iter().flatten().collect())
}
