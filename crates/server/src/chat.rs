//! POST /v1/chat/completions.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use candlepower_api::{
    ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, ChatCompletionRequest,
    ChatDelta, ChatLogprobs, ErrorResponse, ResponseMessage, Usage,
};
use candlepower_engine::TokenLogprobs;
use candlepower_tokenizer::Tokenizer;
use uuid::Uuid;

use crate::api_error::{ApiError, ApiResult};
use crate::body::JsonBytes;
use crate::config::ServeConfig;
use crate::constraint;
use crate::generate::{UsageCounter, check_queue, limits, submit};
use crate::logprobs::{chat_logprobs, prompt_logprobs};
use crate::params::{Generation, Limits, num_logprobs};
use crate::prompt::{ChatPrompt, check_prompt, prepare, unix_seconds};
use crate::sse::{self, ChunkFormat};
use crate::state::{AppState, LoadedModel};
use crate::stream::{Delta, FinishedChoice, finish_all};

/// Continues a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "Generation",
    request_body = ChatCompletionRequest,
    responses(
        (status = 200, description = "The answer; with `stream`, server-sent events of chunks", body = ChatCompletion),
        (status = 400, description = "A field cannot be taken as it is; `param` names it", body = ErrorResponse),
        (status = 404, description = "No such model", body = ErrorResponse),
        (status = 429, description = "The queue is full", body = ErrorResponse),
    )
)]
pub(crate) async fn chat_completions(
    State(state): State<AppState>,
    Extension(model): Extension<Arc<LoadedModel>>,
    JsonBytes(body): JsonBytes,
) -> ApiResult<Response> {
    let arrived = Instant::now();
    let prepared = {
        let (state, model) = (state.clone(), Arc::clone(&model));
        let len = constraint::preparation_cost(&body);
        prepare(&state.clone(), len, move || Prepared::new(&body, &model, state.config())).await?
    };
    let Prepared { model_name, generation, prompt } = prepared;
    let prompts = [prompt];
    let choices = submit(&state, &model, &prompts, &generation, arrived)?;
    let usage = UsageCounter::new(&prompts, generation.n);
    let [prompt] = prompts;
    let format = ChatFormat {
        id: format!("chatcmpl-{}", Uuid::new_v4().simple()),
        created: unix_seconds(),
        model_name,
        tokenizer: model.tokenizer.clone(),
        logprobs: generation.logprobs().is_some(),
        token_ids: generation.return_token_ids,
        prompt_token_ids: generation.return_token_ids.then_some(prompt),
    };
    match generation.stream {
        Some(shape) => Ok(sse::respond(format, choices, usage, shape)),
        None => {
            let choices = finish_all(choices).await?;
            Ok(axum::Json(format.whole(choices, usage, generation.prompt_logprobs)).into_response())
        }
    }
}

/// A request that was checked and turned into tokens.
struct Prepared {
    model_name: String,
    generation: Generation,
    prompt: Vec<u32>,
}

impl Prepared {
    fn new(body: &[u8], model: &LoadedModel, config: &ServeConfig) -> ApiResult<Self> {
        let request = ChatCompletionRequest::parse(body)?;
        model.check_name(&request.model)?;
        let limits = limits(model, config, 1);
        let mut generation = Generation::new(&request.generation, &limits)?;
        generation.set_logprobs(logprobs(&request, &limits)?);
        check_queue(model, config, 1, generation.n)?;
        generation.grammar = constraint::compile(model, request.generation.constraint.as_ref())?;
        let prompt = ChatPrompt {
            messages: &request.messages,
            add_generation_prompt: request.add_generation_prompt,
            continue_final_message: request.continue_final_message,
            chat_template_kwargs: request.chat_template_kwargs.as_ref(),
            reasoning_effort: request.reasoning_effort.as_deref(),
            add_special_tokens: request.add_special_tokens.unwrap_or(false),
        }
        .encode(model)?;
        check_prompt(model, "messages", &prompt, false)?;
        Ok(Self { model_name: request.model, generation, prompt })
    }
}

fn logprobs(request: &ChatCompletionRequest, limits: &Limits<'_>) -> ApiResult<Option<usize>> {
    match (request.logprobs.unwrap_or(false), request.top_logprobs) {
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs`: true."))
        }
        (true, top) => num_logprobs("top_logprobs", top.unwrap_or(0), limits).map(Some),
    }
}

/// What the parts of an answer have in common.
struct ChatFormat {
    id: String,
    created: u64,
    model_name: String,
    tokenizer: Tokenizer,
    /// Whether log-probabilities are reported.
    logprobs: bool,
    /// Whether token ids are reported.
    token_ids: bool,
    /// To be reported once.
    prompt_token_ids: Option<Vec<u32>>,
}

impl ChatFormat {
    fn whole(
        mut self,
        choices: Vec<FinishedChoice>,
        mut usage: UsageCounter,
        num_prompt_logprobs: Option<usize>,
    ) -> ChatCompletion {
        let prompt_logprobs = num_prompt_logprobs.and_then(|num_top| {
            let tokens = choices.first()?.prompt_logprobs.as_ref()?;
            Some(prompt_logprobs(&self.tokenizer, tokens, num_top))
        });
        let choices = choices
            .into_iter()
            .map(|choice| {
                usage.prompt(choice.index, choice.num_cached_tokens);
                usage.generated(choice.delta.token_ids.len());
                self.choice(choice)
            })
            .collect();
        ChatCompletion {
            id: self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model_name,
            choices,
            usage: usage.usage(),
            system_fingerprint: None,
            prompt_logprobs,
            prompt_token_ids: self.prompt_token_ids.take(),
        }
    }

    fn choice(&self, FinishedChoice { index, delta, .. }: FinishedChoice) -> ChatChoice {
        let logprobs = self.logprobs_of(&delta);
        let finish = delta.finish.expect("a finished choice says how it ended");
        ChatChoice {
            index,
            message: ResponseMessage {
                role: "assistant",
                content: Some(delta.text),
                refusal: None,
            },
            logprobs,
            finish_reason: finish.reason,
            stop_reason: finish.stop_reason,
            token_ids: self.token_ids.then_some(delta.token_ids),
        }
    }

    fn logprobs_of(&self, delta: &Delta) -> Option<ChatLogprobs> {
        self.logprobs.then(|| chat_logprobs(&self.tokenizer, &delta.logprobs))
    }

    fn chunk(&mut self, choices: Vec<ChatChunkChoice>, usage: Option<Usage>) -> Bytes {
        let prompt_token_ids = self.prompt_token_ids.take();
        sse::event(&ChatCompletionChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model_name,
            choices,
            usage,
            system_fingerprint: None,
            prompt_token_ids,
        })
    }
}

impl ChunkFormat for ChatFormat {
    fn opening(&mut self, index: usize, usage: Option<Usage>) -> Option<Bytes> {
        let delta = ChatDelta { role: Some("assistant"), content: Some(String::new()) };
        let choice = ChatChunkChoice {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
        };
        Some(self.chunk(vec![choice], usage))
    }

    fn prompt(
        &mut self,
        _: usize,
        _: Option<Vec<Option<TokenLogprobs>>>,
        _: Option<Usage>,
    ) -> Option<Bytes> {
        None
    }

    fn delta(&mut self, index: usize, delta: Delta, usage: Option<Usage>) -> Bytes {
        let logprobs = if delta.logprobs.is_empty() { None } else { self.logprobs_of(&delta) };
        let (finish_reason, stop_reason) = match delta.finish {
            Some(finish) => (Some(finish.reason), finish.stop_reason),
            None => (None, None),
        };
        // The last chunk may have nothing to add.
        let content = (!delta.text.is_empty() || finish_reason.is_none()).then_some(delta.text);
        let choice = ChatChunkChoice {
            index,
            delta: ChatDelta { role: None, content },
            logprobs,
            finish_reason,
            stop_reason,
            token_ids: self.token_ids.then_some(delta.token_ids),
        };
        self.chunk(vec![choice], usage)
    }

    fn usage(&mut self, usage: Usage) -> Bytes {
        self.chunk(Vec::new(), Some(usage))
    }
}
