//! POST /v1/chat/completions.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use candlepower_api::{
    ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, ChatCompletionRequest,
    ChatDelta, ChatLogprobs, CompletionTokensDetails, Content, ErrorResponse, Role, Usage,
};
use candlepower_tokenizer::AddSpecialTokens;
use uuid::Uuid;

use crate::generation::chat_output::{Answer, AnswerFormat, AnswerPart};
use crate::generation::conversation::Conversation;
use crate::generation::detokenize::Finish;
use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::logprobs::{TokenNames, chat_logprobs, prompt_logprobs};
use crate::generation::params::{Generation, Limits, num_logprobs};
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{ChatPrompt, check_prompt, unix_seconds};
use crate::generation::request::Incoming;
use crate::generation::sse::{self, ChunkFormat};
use crate::generation::stream::{Delta, FinishedChoice, finish_all};
use crate::generation::submit::{UsageCounter, check_queue, limits, submit};
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;

/// Generates the next message of a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "Generation",
    request_body = ChatCompletionRequest,
    responses(
        (status = 200, description = "The completion; server-sent events of chunks with `stream`", body = ChatCompletion),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
        (status = 404, description = "The model does not exist", body = ErrorResponse),
        (status = 429, description = "The queue is full, or a limit of the API key is reached", body = ErrorResponse),
    )
)]
pub(crate) async fn chat_completions(request: Incoming) -> ApiResult<Response> {
    let Prepared { model_name, generation, prompt, answers, echo } =
        request.prepare(Prepared::new).await?;
    let prompts = [prompt];
    let choices = submit(&request, &prompts, &generation)?;
    let usage = UsageCounter::new(&prompts, generation.n);
    let [EncodedPrompt { token_ids, .. }] = prompts;
    let format = ChatFormat {
        id: format!("chatcmpl-{}", Uuid::new_v4().simple()),
        created: unix_seconds(),
        model_name,
        names: generation.token_names(&request.model.tokenizer),
        echo,
        logprobs: generation.logprobs().is_some(),
        token_ids: generation.return_token_ids,
        reasons: answers.dialect.reasoning.is_some(),
        answers: (0..generation.n).map(|_| ChoiceAnswer::new(answers.answer())).collect(),
        prompt_token_ids: generation.return_token_ids.then_some(token_ids),
    };
    match generation.stream {
        Some(shape) => Ok(sse::respond(format, choices, usage, shape)),
        None => {
            let choices = finish_all(choices).await?;
            Ok(axum::Json(format.whole(choices, usage, generation.prompt_logprobs)).into_response())
        }
    }
}

/// A validated and tokenized request.
struct Prepared {
    model_name: String,
    generation: Generation,
    prompt: EncodedPrompt,
    answers: AnswerFormat,
    /// Text to put before the content.
    echo: String,
}

impl Prepared {
    fn new(body: &[u8], model: &Preparation<'_, LoadedModel>) -> ApiResult<Self> {
        let request = ChatCompletionRequest::parse(body)?;
        let model_name = model.asked_name(request.model.as_deref())?;
        model.leave_out_all(&request.not_held);
        let limits = limits(model, model.config, 1);
        let mut generation = Generation::new(&request.generation, &limits)?;
        generation.set_logprobs(logprobs(&request, &limits)?);
        check_queue(model, "messages", 1, generation.n)?;
        let conversation = Conversation {
            prompt: ChatPrompt {
                add_generation_prompt: request.add_generation_prompt,
                continue_final_message: request.continue_final_message,
                chat_template_kwargs: request.chat_template_kwargs.as_ref(),
                documents: request.documents.as_ref(),
                thinking: Some(&request.thinking),
                add_special_tokens: request.add_special_tokens.unwrap_or(false),
                ..ChatPrompt::new(&request.messages)
            },
            tools: request.tool_options.as_ref(),
            output: request.generation.constraint.as_ref(),
        };
        let (prompt, answers) = conversation.prepare(model, &mut generation)?;
        check_prompt(model, "messages", &prompt.token_ids, false)?;
        let echo = if request.echo == Some(true) { echo(&request) } else { String::new() };
        Ok(Self { model_name, generation, prompt, answers, echo })
    }
}

/// The last message, if the answer has the same role.
///
/// Source: `echo` in vLLM's chat completions.
fn echo(request: &ChatCompletionRequest) -> String {
    let by_kwargs =
        || request.chat_template_kwargs.as_ref()?.get("add_generation_prompt")?.as_bool();
    let opens_a_turn = request.add_generation_prompt.or_else(by_kwargs).unwrap_or(true);
    let last = request.messages.last();
    let last = last.filter(|message| message.role == Role::Assistant || !opens_a_turn);
    last.and_then(|message| message.content.as_ref()).map(Content::to_text).unwrap_or_default()
}

fn logprobs(request: &ChatCompletionRequest, limits: &Limits<'_>) -> ApiResult<Option<usize>> {
    match (request.logprobs.unwrap_or(false), request.top_logprobs) {
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs: true`."))
        }
        (true, top) => num_logprobs("top_logprobs", top.unwrap_or(0), limits).map(Some),
    }
}

/// The state that all parts of an answer share.
struct ChatFormat {
    id: String,
    created: u64,
    model_name: String,
    names: TokenNames,
    /// Text to put before each choice's content.
    echo: String,
    /// Whether log-probabilities are reported.
    logprobs: bool,
    /// Whether token ids are reported.
    token_ids: bool,
    /// Whether the model reasons.
    reasons: bool,
    /// One state for each choice.
    answers: Vec<ChoiceAnswer>,
    /// Reported once, in the first chunk.
    prompt_token_ids: Option<Vec<u32>>,
}

/// The state of a choice's message while it is generated.
struct ChoiceAnswer {
    answer: Answer,
    /// Tokens whose text is not sent yet; its text is empty.
    waiting: Delta,
    /// The reasoning so far.
    reasoning: String,
}

impl ChoiceAnswer {
    fn new(answer: Answer) -> Self {
        Self { answer, waiting: Delta::default(), reasoning: String::new() }
    }
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
            Some(prompt_logprobs(&self.names.tokenizer, tokens, num_top))
        });
        let choices = choices
            .into_iter()
            .map(|choice| {
                usage.prompt(choice.index, choice.num_cached_tokens);
                usage.generated(choice.delta.token_ids.len());
                self.choice(choice)
            })
            .collect();
        let usage = self.with_reasoning_tokens(usage.usage());
        ChatCompletion {
            id: self.id,
            object: "chat.completion",
            created: self.created,
            model: self.model_name,
            choices,
            usage,
            system_fingerprint: None,
            prompt_logprobs,
            prompt_token_ids: self.prompt_token_ids.take(),
        }
    }

    fn choice(&mut self, FinishedChoice { index, delta, .. }: FinishedChoice) -> ChatChoice {
        let logprobs = self.logprobs_of(&delta);
        let finish = delta.finish.expect("a finished choice has a finish reason");
        let ChoiceAnswer { answer, reasoning, .. } = &mut self.answers[index];
        let mut message = answer.message(delta.parts);
        if !self.echo.is_empty() {
            message.content.get_or_insert_default().insert_str(0, &self.echo);
        }
        reasoning.push_str(message.reasoning_content.as_deref().unwrap_or_default());
        ChatChoice {
            index,
            message,
            logprobs,
            finish_reason: answer.finish_reason(finish.reason),
            stop_reason: finish.stop_reason,
            token_ids: self.token_ids.then_some(delta.token_ids),
        }
    }

    /// The usage with the number of reasoning tokens. The text is tokenized again for it, which may differ by a token or two.
    fn with_reasoning_tokens(&self, usage: Usage) -> Usage {
        let num_tokens = |answer: &ChoiceAnswer| {
            let ids = self.names.tokenizer.encode(&answer.reasoning, AddSpecialTokens::No);
            ids.map_or(0, |ids| ids.len())
        };
        let details = self.reasons.then(|| {
            let reasoning_tokens = self.answers.iter().map(num_tokens).sum();
            CompletionTokensDetails { reasoning_tokens }
        });
        Usage { completion_tokens_details: details, ..usage }
    }

    fn logprobs_of(&self, delta: &Delta) -> Option<ChatLogprobs> {
        self.logprobs.then(|| chat_logprobs(&self.names, &delta.logprobs))
    }

    fn chunk_choice(
        &self,
        index: usize,
        delta: ChatDelta,
        tokens: Delta,
        finish: Option<Finish>,
    ) -> ChatChunkChoice {
        let logprobs = if tokens.logprobs.is_empty() { None } else { self.logprobs_of(&tokens) };
        let (finish_reason, stop_reason) = match finish {
            Some(finish) => (Some(finish.reason), finish.stop_reason),
            None => (None, None),
        };
        ChatChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
            stop_reason,
            token_ids: self.token_ids.then_some(tokens.token_ids),
        }
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
        let delta = ChatDelta {
            role: Some("assistant"),
            content: Some(self.echo.clone()),
            ..ChatDelta::default()
        };
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

    fn delta(&mut self, index: usize, delta: Delta, usage: Option<Usage>) -> Bytes {
        let ChoiceAnswer { answer, waiting, reasoning } = &mut self.answers[index];
        waiting.token_ids.extend(delta.token_ids);
        waiting.logprobs.extend(delta.logprobs);
        let mut added: Vec<ChatDelta> =
            answer.push(delta.parts).into_iter().filter_map(AnswerPart::delta).collect();
        added
            .iter()
            .filter_map(|delta| delta.reasoning_content.as_deref())
            .for_each(|text| reasoning.push_str(text));
        let finish = delta.finish.map(|finish| Finish {
            reason: answer.finish_reason(finish.reason),
            stop_reason: finish.stop_reason,
        });
        // The finish reason is in the chunk of the last text, but in its own chunk after a call.
        if finish.is_some() && added.last().is_none_or(|last| last.tool_calls.is_some()) {
            added.push(ChatDelta::default());
        }
        let Some(last) = added.pop() else { return Bytes::new() };
        // Tokens are sent with the first text that they produced.
        let mut tokens = std::mem::take(waiting);
        let mut chunks = Vec::new();
        for delta in added {
            let choice = self.chunk_choice(index, delta, std::mem::take(&mut tokens), None);
            chunks.extend_from_slice(&self.chunk(vec![choice], usage));
        }
        let choice = self.chunk_choice(index, last, tokens, finish);
        chunks.extend_from_slice(&self.chunk(vec![choice], usage));
        chunks.into()
    }

    fn usage(&mut self, usage: Usage) -> Bytes {
        let usage = self.with_reasoning_tokens(usage);
        self.chunk(Vec::new(), Some(usage))
    }
}
