//! POST /v1/responses: conversations whose earlier turns the server may store. GET and DELETE of stored responses.

mod items;
mod object;
mod stream;

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use candlepower_api::{
    ChatMessage, ChatTokenLogprob, Content, ErrorResponse, FinishReason, ImagePart, ImageSource,
    ResponsesRequest, Role, Usage,
};
use candlepower_engine::{CallerId, TokenLogprobs};
use candlepower_tokenizer::AddSpecialTokens;
use serde_json::{Value, json};

use crate::generation::chat_output::AnswerFormat;
use crate::generation::content_blocks::{Block, Blocks, turn};
use crate::generation::conversation::Conversation;
use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::known_prefix::with_known_prefix;
use crate::generation::logprobs::{TokenNames, chat_logprobs};
use crate::generation::params::{Generation, StreamShape, num_logprobs};
use crate::generation::pictures::FetchedImages;
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{CallPaths, ChatPrompt, check_prompt};
use crate::generation::request::Incoming;
use crate::generation::sse;
use crate::generation::stream::ChoiceEvent;
use crate::generation::submit::{UsageCounter, check_queue, limits, submit};
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::{Generating, LoadedModel};
use crate::model::stored_responses::StoredResponse;

use items::{Items, Page, input_of, items};
use object::ResponseObject;
use stream::ResponseStream;

/// Generates the next response of a conversation (OpenAI Responses API).
#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = "Generation",
    request_body = ResponsesRequest,
    responses(
        (status = 200, description = "The response; server-sent events with `stream`", body = Object),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
        (status = 404, description = "The model or the previous response does not exist", body = ErrorResponse),
        (status = 429, description = "The queue is full, or a limit of the API key is reached", body = ErrorResponse),
    )
)]
pub(crate) async fn create_response(request: Incoming) -> ApiResult<Response> {
    let Prepared { generation, prompt, answers, object, messages } =
        request.prepare(Prepared::new).await?;
    let prompts = [prompt];
    let choices = submit(&request, &prompts, &generation)?;
    let mut usage = UsageCounter::new(&prompts, 1);
    let [prompt] = prompts;
    let mut blocks = Blocks::new(answers.answer());
    let caller = request.caller.id;
    let names = generation.token_names(&request.model.tokenizer);
    let mut turn = Turn { object, messages, prompt, caller, model: request.model, names };
    if generation.stream.is_some() {
        // Only the last event has the usage.
        let shape = StreamShape { include_usage: true, continuous_usage: false };
        return Ok(sse::respond(ResponseStream::new(turn, blocks), choices, usage, shape));
    }
    let (mut token_ids, mut finish) = (Vec::new(), None);
    // Read piece by piece, as in a stream, so that each token's log-probability is assigned to its block.
    for mut choice in choices {
        while let Some(event) = choice.next().await {
            match event? {
                ChoiceEvent::Prompt { num_cached_tokens, .. } => usage.prompt(0, num_cached_tokens),
                ChoiceEvent::Delta(delta) => {
                    usage.generated(delta.token_ids.len());
                    token_ids.extend_from_slice(&delta.token_ids);
                    finish = delta.finish.as_ref().map(|finish| finish.reason);
                    if let (_, Some((index, tokens))) = blocks.push_delta(delta) {
                        turn.add_logprobs(index, &tokens);
                    }
                }
            }
        }
    }
    let reason = finish.ok_or_else(|| {
        ApiError::internal("Defect of the server: the answer has no finish reason.")
    })?;
    let response = turn.finish(&blocks, &token_ids, reason, usage.usage());
    Ok(axum::Json(response).into_response())
}

/// Returns a stored response.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}",
    tag = "Generation",
    params(("id" = String, Path, description = "Id of the response")),
    responses(
        (status = 200, description = "The response", body = Object),
        (status = 404, description = "The response does not exist or is not stored", body = ErrorResponse),
    )
)]
pub(crate) async fn retrieve_response(
    Generating { model, caller }: Generating,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> ApiResult<impl IntoResponse> {
    check_query(query.as_deref().unwrap_or_default())?;
    let stored = model.responses.get(caller.id, "id", &known_id(id))?;
    Ok(([(CONTENT_TYPE, "application/json")], stored.object.to_string()))
}

/// Lists the input items of a stored response.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}/input_items",
    tag = "Generation",
    params(
        ("id" = String, Path, description = "Id of the response"),
        ("limit" = Option<usize>, Query, description = "Number of items, 1 to 100; 20 by default"),
        ("order" = Option<String>, Query, description = "`asc` or `desc`; `desc` by default"),
        ("after" = Option<String>, Query, description = "Id of the last item of the previous page"),
    ),
    responses(
        (status = 200, description = "A list of items", body = Object),
        (status = 404, description = "The response does not exist or is not stored", body = ErrorResponse),
    )
)]
pub(crate) async fn list_input_items(
    Generating { model, caller }: Generating,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> ApiResult<axum::Json<Value>> {
    let page = Page::of_query(query.as_deref().unwrap_or_default())?;
    let id = known_id(id);
    let stored = model.responses.get(caller.id, "id", &id)?;
    Ok(axum::Json(page.list(items(&id, input_of(&stored)))?))
}

/// Refuses to cancel a response, because responses are not generated in the background.
#[utoipa::path(
    post,
    path = "/v1/responses/{id}/cancel",
    tag = "Generation",
    params(("id" = String, Path, description = "Id of the response")),
    responses(
        (status = 400, description = "The response was not generated in the background", body = ErrorResponse),
        (status = 404, description = "The response does not exist or is not stored", body = ErrorResponse),
    )
)]
pub(crate) async fn cancel_response(
    Generating { model, caller }: Generating,
    id: Result<Path<String>, PathRejection>,
) -> ApiError {
    match model.responses.get(caller.id, "id", &known_id(id)) {
        Err(error) => error,
        Ok(_) => {
            let message = "This response is complete; only background responses can be cancelled. To cancel a running response, \
                           close its connection.";
            ApiError::invalid("id", message)
        }
    }
}

/// Counts the prompt tokens of a request.
#[utoipa::path(
    post,
    path = "/v1/responses/input_tokens",
    tag = "Tokens",
    request_body = ResponsesRequest,
    responses(
        (status = 200, description = "An object with `input_tokens`", body = Object),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
    )
)]
pub(crate) async fn count_input_tokens(request: Incoming) -> ApiResult<axum::Json<Value>> {
    let prepared = request.prepare(Prepared::new).await?;
    let input_tokens = prepared.prompt.len();
    Ok(axum::Json(json!({"object": "response.input_tokens", "input_tokens": input_tokens})))
}

/// The id; one that is not UTF-8 belongs to no response.
fn known_id(id: Result<Path<String>, PathRejection>) -> String {
    id.map_or_else(|_| "?".to_owned(), |Path(id)| id)
}

/// Refuses query parameters that would change the answer and are not supported.
fn check_query(query: &str) -> ApiResult<()> {
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = name.trim_end_matches("[]").trim_end_matches("%5B%5D");
        if ["include", "starting_after"].contains(&name) || (name == "stream" && value != "false") {
            let message = format!(
                "`{name}` is not supported: a stored response is returned whole. Leave `{name}` out."
            );
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(())
}

/// Deletes a stored response.
#[utoipa::path(
    delete,
    path = "/v1/responses/{id}",
    tag = "Generation",
    params(("id" = String, Path, description = "Id of the response")),
    responses(
        (status = 200, description = "The response is deleted", body = Object),
        (status = 404, description = "The response does not exist or is not stored", body = ErrorResponse),
    )
)]
pub(crate) async fn delete_response(
    Generating { model, caller }: Generating,
    id: Result<Path<String>, PathRejection>,
) -> ApiResult<axum::Json<Value>> {
    let id = known_id(id);
    model.responses.remove(caller.id, &id)?;
    Ok(axum::Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// A validated and tokenized request.
struct Prepared {
    generation: Generation,
    prompt: EncodedPrompt,
    answers: AnswerFormat,
    object: ResponseObject,
    /// The conversation, without the instructions of this turn.
    messages: Vec<ChatMessage>,
}

impl Prepared {
    fn new(body: &[u8], model: &Preparation<'_, LoadedModel>) -> ApiResult<Self> {
        let mut items = Items::new(model);
        let request = ResponsesRequest::parse(body, &mut items);
        if items.are_postponed {
            return Err(model.postpone());
        }
        let mut request = request.map_err(|error| items.not_found(error))?;
        request.model = Some(model.asked_name(request.model.as_deref())?);
        model.leave_out_all(&request.not_held);
        let limits = limits(model, model.config, 1);
        if request.max_output_tokens.is_none() && request.generation.max_tokens.is_none() {
            request.generation.max_tokens = Some(model.max_model_len as i64);
        }
        let generation_fields = std::mem::take(&mut request.generation);
        let mut generation = Generation::new(&generation_fields, &limits)?;
        let logprobs = request.num_logprobs();
        let logprobs = logprobs.map(|asked| num_logprobs("top_logprobs", asked, &limits));
        generation.set_logprobs(logprobs.transpose()?);
        check_queue(model, "input", 1, 1)?;
        let previous = request.previous_response_id.as_deref();
        let previous = previous
            .map(|id| model.responses.to_continue(model.caller, "previous_response_id", id))
            .transpose()?;
        let mut messages =
            previous.as_ref().map_or_else(Vec::new, |stored| stored.messages.clone());
        let calls = |message: &ChatMessage| message.tool_calls.as_ref().map_or(0, Vec::len);
        let num_stored = messages.iter().map(calls).sum();
        messages.append(&mut request.input);
        let instructions = request.instructions.iter();
        let instructions = instructions.map(|text| ChatMessage::text(Role::System, text.clone()));
        let conversation: Vec<_> = instructions.chain(messages.iter().cloned()).collect();
        let conversation = Conversation {
            prompt: ChatPrompt {
                chat_template_kwargs: request.chat_template_kwargs.as_ref(),
                thinking: Some(&request.thinking),
                call_paths: Some(CallPaths { num_stored, paths: &request.call_paths }),
                ..ChatPrompt::new(&conversation)
            },
            tools: request.tool_options.as_ref(),
            output: generation_fields.constraint.as_ref(),
        };
        let (prompt, answers) = conversation
            .prepare(model, &mut generation)
            .map_err(|error| error.about("messages", "input"))?;
        let prompt = match &previous {
            Some(stored) => with_known_prefix(&model.tokenizer, &stored.known, prompt),
            None => prompt,
        };
        check_prompt(model, "input", &prompt.token_ids, false)?;
        if request.store.unwrap_or(true) {
            hold_bytes(&mut messages, model.fetched());
        }
        let object = ResponseObject::new(request, &generation_fields);
        Ok(Self { generation, prompt, answers, object, messages })
    }
}

/// Puts the bytes of images in place of their URLs, from which a later turn might get other ones.
fn hold_bytes(messages: &mut [ChatMessage], fetched: Option<&FetchedImages>) {
    let Some(fetched) = fetched else { return };
    let contents = messages.iter_mut().filter_map(|message| message.content.as_mut());
    for image in contents.flat_map(Content::images_mut) {
        let ImageSource::Url(url) = &image.source else { continue };
        if let Some(encoded) = fetched.by_url.get(url) {
            let media_type = encoded.format().media_type().to_owned();
            let data = STANDARD.encode(encoded.bytes());
            let source = ImageSource::Base64 { media_type, data };
            *image = Arc::new(ImagePart { source, detail: image.detail, path: image.path.clone() });
        }
    }
}

/// A response that is being generated.
struct Turn {
    object: ResponseObject,
    messages: Vec<ChatMessage>,
    prompt: EncodedPrompt,
    caller: CallerId,
    model: Arc<LoadedModel>,
    names: TokenNames,
}

impl Turn {
    /// Adds the log-probabilities of more tokens of a text, and returns them.
    fn add_logprobs(&mut self, index: usize, tokens: &[TokenLogprobs]) -> Vec<ChatTokenLogprob> {
        // The end token of a turn is not part of its text.
        let ends = &self.model.engine.info().eos_token_ids;
        let tokens = tokens.iter().filter(|token| !ends.contains(&token.token_id)).cloned();
        let tokens = tokens.collect::<Vec<_>>();
        let logprobs = chat_logprobs(&self.names, &tokens).content;
        self.object.add_logprobs(index, logprobs.clone());
        logprobs
    }

    /// Ends the turn, and stores the response if the request asks for it.
    fn finish(
        mut self,
        blocks: &Blocks,
        output_ids: &[u32],
        reason: FinishReason,
        usage: Usage,
    ) -> Value {
        let num_reasoning_tokens = self.num_reasoning_tokens(blocks.list());
        let object = self.object.finished(blocks, reason, usage, num_reasoning_tokens);
        if self.object.store {
            self.messages.push(turn(blocks.list()));
            let eos_token_ids = &self.model.engine.info().eos_token_ids;
            // End tokens are left out, because the chat template writes them in the next prompt.
            let output = output_ids.iter().filter(|id| !eos_token_ids.contains(id));
            let mut known = self.prompt.known();
            known.token_ids.extend(output);
            let stored = StoredResponse::new(self.caller, self.messages, known, &object);
            self.model.responses.insert(self.object.id.clone(), stored);
        }
        object
    }

    /// Number of tokens of the reasoning. The text is tokenized again for it, which may differ by a token or two.
    fn num_reasoning_tokens(&self, blocks: &[Block]) -> usize {
        let num_tokens = |text: &str| {
            self.model.tokenizer.encode(text, AddSpecialTokens::No).map_or(0, |ids| ids.len())
        };
        let reasoning = blocks.iter().map(|block| match block {
            Block::Reasoning(text) => num_tokens(text),
            Block::Text(_) | Block::Call { .. } => 0,
        });
        reasoning.sum()
    }
}
