//! Scores texts as continuations of a prompt, and selects the most likely one.

use axum::response::{IntoResponse, Response};
use candlepower_api::{GenerateChoice, GenerateResponse, Usage};
use candlepower_engine::TokenLogprobs;

use super::{Header, Prepared};
use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::logprobs::chat_logprobs;
use crate::generation::params::Generation;
use crate::generation::prompt::{check_prompt, encode};
use crate::generation::request::Incoming;
use crate::generation::stream::{FinishedChoice, finish_all};
use crate::generation::submit::submit;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;
use crate::model::sessions::Turn;

/// A prompt and the candidate texts.
pub(super) struct Selection {
    header: Header,
    generation: Generation,
    turn: Option<Turn>,
    /// Number of tokens of the prompt, the common prefix of `prompts`.
    prompt_len: usize,
    /// The prompt followed by the text, for each text.
    prompts: Vec<EncodedPrompt>,
    texts: Vec<String>,
    /// Whether log-probabilities are reported.
    logprobs: bool,
}

impl Selection {
    pub(super) fn new(
        prepared: Prepared,
        texts: Vec<String>,
        model: &LoadedModel,
    ) -> ApiResult<Self> {
        let Prepared { header, mut generation, prompt, turn } = prepared;
        let prompts = texts.iter().enumerate().map(|(index, text)| {
            let whole = [&prompt[..], &encode(model, "choices", text, false)?].concat();
            check_prompt(model, "choices", &whole, true)?;
            if whole.len() == prompt.len() {
                let message =
                    format!("`choices[{index}]` has no tokens: give a text that is not empty.");
                return Err(ApiError::invalid("choices", message));
            }
            Ok(EncodedPrompt::from(whole))
        });
        let prompts = prompts.collect::<ApiResult<Vec<_>>>()?;
        let logprobs = generation.logprobs().is_some();
        generation.only_score(prompt.len());
        let prompt_len = prompt.len();
        Ok(Self { header, generation, turn, prompt_len, prompts, texts, logprobs })
    }
}

/// Scores the texts; the session continues after the selected one.
pub(super) async fn respond(selection: Selection, request: &Incoming) -> ApiResult<Response> {
    let Selection { header, generation, turn, prompt_len, mut prompts, texts, logprobs } =
        selection;
    let finished = finish_all(submit(request, &prompts, &generation)?).await?;
    let names = generation.token_names(&request.model.tokenizer);
    let num_cached_tokens = finished.first().map_or(0, |choice| choice.num_cached_tokens);
    let mut choices = Vec::with_capacity(texts.len());
    for (FinishedChoice { index, prompt_logprobs, .. }, text) in finished.into_iter().zip(texts) {
        let scores = prompt_logprobs.unwrap_or_default();
        let scores: Vec<TokenLogprobs> = scores.into_iter().skip(prompt_len).flatten().collect();
        if scores.len() != prompts[index].len() - prompt_len {
            return Err(ApiError::unavailable(
                "The server was stopped before all choices were scored.",
            ));
        }
        choices.push(GenerateChoice {
            index,
            text,
            token_ids: prompts[index].token_ids[prompt_len..].to_vec(),
            score: Some(mean(&scores)),
            logprobs: logprobs.then(|| chat_logprobs(&names, &scores).content),
            ..GenerateChoice::default()
        });
    }
    let num_scored = choices.iter().map(|choice| choice.token_ids.len()).sum();
    let selected = best(&choices);
    let session = turn.map(|turn| turn.commit(prompts.swap_remove(selected).token_ids));
    let usage = Usage::new(prompt_len, num_cached_tokens.min(prompt_len), num_scored);
    let response = header.response("generation", choices, Some(usage));
    let response = GenerateResponse { selected: Some(selected), session, ..response };
    Ok(axum::Json(response).into_response())
}

/// The mean log-probability of the tokens. A sum would favour short texts.
fn mean(scores: &[TokenLogprobs]) -> f32 {
    let sum: f64 = scores.iter().map(|score| f64::from(score.logprob)).sum();
    (sum / scores.len() as f64).max(f64::from(f32::MIN)) as f32
}

/// The index of the highest score, the first one among equals.
fn best(choices: &[GenerateChoice]) -> usize {
    let mut best = 0;
    for (index, choice) in choices.iter().enumerate() {
        if choice.score > choices[best].score {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_mean_wins_and_nothing_is_infinite() {
        let scores = |values: &[f32]| {
            let score = |&logprob| TokenLogprobs { token_id: 0, logprob, rank: 1, top: Vec::new() };
            mean(&values.iter().map(score).collect::<Vec<_>>())
        };
        assert_eq!(scores(&[-1.0, -3.0]), -2.0);
        assert_eq!(scores(&[f32::NEG_INFINITY, 0.0]), f32::MIN);
        let choice = |score| GenerateChoice { score: Some(score), ..GenerateChoice::default() };
        assert_eq!(best(&[choice(-2.0), choice(-1.0), choice(-1.0)]), 1);
    }
}
