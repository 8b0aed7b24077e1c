//! POST /v1/responses: conversations whose earlier turns the server may hold; GET and DELETE of what it holds.

mod items;
mod object;
mod stream;

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use candlepower_api::{
    ChatMessage, ChatTokenLogprob, ErrorResponse, FinishReason, ResponsesRequest, Role, Usage,
};
use candlepower_engine::{CallerId, TokenLogprobs};
use candlepower_tokenizer::AddSpecialTokens;
use serde_json::{Value, json};

use crate::generation::chat_output::AnswerFormat;
use crate::generation::content_blocks::{Block, Blocks, turn};
use crate::generation::conversation::Conversation;
use crate::generation::logprobs::{TokenNames, chat_logprobs};
use crate::generation::params::{Generation, StreamShape, num_logprobs};
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{ChatPrompt, check_prompt};
use crate::generation::request::Incoming;
use crate::generation::sse;
use crate::generation::stream::ChoiceEvent;
use crate::generation::submit::{UsageCounter, check_queue, limits, submit};
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::{Generating, LoadedModel};
use crate::model::stored_responses::{StoredResponse, with_known_prefix};

use items::{Page, items};
use object::ResponseObject;
use stream::ResponseStream;

/// Answers the next turn of a conversation.
#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = "Generation",
    request_body = ResponsesRequest,
    responses(
        (status = 200, description = "The response; with `stream`, server-sent events", body = Object),
        (status = 400, description = "A field cannot be taken as it is; `param` names it", body = ErrorResponse),
        (status = 404, description = "No such model or previous response", body = ErrorResponse),
        (status = 429, description = "The queue is full", body = ErrorResponse),
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
    let mut turn =
        Turn { object, messages, token_ids: prompt, caller, model: request.model, names };
    if generation.stream.is_some() {
        // The usage is in the last event.
        let shape = StreamShape { include_usage: true, continuous_usage: false };
        return Ok(sse::respond(ResponseStream::new(turn, blocks), choices, usage, shape));
    }
    let (mut token_ids, mut finish) = (Vec::new(), None);
    // Piece by piece, as in a stream, so that each token belongs to what it led to.
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
    let reason = finish.ok_or_else(|| ApiError::internal("It did not end."))?;
    let response = turn.finish(&blocks, &token_ids, reason, usage.usage());
    Ok(axum::Json(response).into_response())
}

/// A response that the server holds.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}",
    tag = "Generation",
    params(("id" = String, Path, description = "Id of the response")),
    responses(
        (status = 200, description = "The response", body = Object),
        (status = 404, description = "No such response", body = ErrorResponse),
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

/// Lists the input of a response that the server holds.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}/input_items",
    tag = "Generation",
    params(
        ("id" = String, Path, description = "Id of the response"),
        ("limit" = Option<usize>, Query, description = "Items of the page, 1 to 100; 20 by default"),
        ("order" = Option<String>, Query, description = "`asc` or `desc`, the default"),
        ("after" = Option<String>, Query, description = "Id of the item before the page"),
    ),
    responses(
        (status = 200, description = "A list of items", body = Object),
        (status = 404, description = "No such response", body = ErrorResponse),
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
    // The last turn is the response.
    let input = stored.messages.split_last().map_or(&[][..], |(_, input)| input);
    Ok(axum::Json(page.list(items(&id, input))?))
}

/// Refuses to cancel a response: none is generated in the background.
#[utoipa::path(
    post,
    path = "/v1/responses/{id}/cancel",
    tag = "Generation",
    params(("id" = String, Path, description = "Id of the response")),
    responses(
        (status = 400, description = "The response was not generated in the background", body = ErrorResponse),
        (status = 404, description = "No such response", body = ErrorResponse),
    )
)]
pub(crate) async fn cancel_response(
    Generating { model, caller }: Generating,
    id: Result<Path<String>, PathRejection>,
) -> ApiError {
    match model.responses.get(caller.id, "id", &known_id(id)) {
        Err(error) => error,
        Ok(_) => {
            let message = "This response is complete: only responses in the background can be cancelled. Close the connection \
                           of one that is being generated.";
            ApiError::invalid("id", message)
        }
    }
}

/// Says how many tokens the prompt of a response has.
#[utoipa::path(
    post,
    path = "/v1/responses/input_tokens",
    tag = "Tokens",
    request_body = ResponsesRequest,
    responses(
        (status = 200, description = "`input_tokens`", body = Object),
        (status = 400, description = "A field cannot be taken as it is; `param` names it", body = ErrorResponse),
    )
)]
pub(crate) async fn count_input_tokens(request: Incoming) -> ApiResult<axum::Json<Value>> {
    let prepared = request.prepare(Prepared::new).await?;
    let input_tokens = prepared.prompt.len();
    Ok(axum::Json(json!({"object": "response.input_tokens", "input_tokens": input_tokens})))
}

/// What is not UTF-8 names no response.
fn known_id(id: Result<Path<String>, PathRejection>) -> String {
    id.map_or_else(|_| "?".to_owned(), |Path(id)| id)
}

/// Refuses what would change the answer to a GET and is not there.
fn check_query(query: &str) -> ApiResult<()> {
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = name.trim_end_matches("[]").trim_end_matches("%5B%5D");
        if ["include", "starting_after"].contains(&name) || (name == "stream" && value != "false") {
            let message =
                format!("A response is given as a whole, and as it was: leave `{name}` out.");
            return Err(ApiError::invalid(name, message));
        }
    }
    Ok(())
}

/// Forgets a response.
#[utoipa::path(
    delete,
    path = "/v1/responses/{id}",
    tag = "Generation",
    params(("id" = String, Path, description = "Id of the response")),
    responses(
        (status = 200, description = "It is forgotten", body = Object),
        (status = 404, description = "No such response", body = ErrorResponse),
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

/// A request that was checked and turned into tokens.
struct Prepared {
    generation: Generation,
    prompt: Vec<u32>,
    answers: AnswerFormat,
    object: ResponseObject,
    /// The conversation, without the instructions of this turn.
    messages: Vec<ChatMessage>,
}

impl Prepared {
    fn new(body: &[u8], model: &Preparation<'_, LoadedModel>) -> ApiResult<Self> {
        let mut request = ResponsesRequest::parse(body)?;
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
            .map(|id| model.responses.get(model.caller, "previous_response_id", id))
            .transpose()?;
        let mut messages =
            previous.as_ref().map_or_else(Vec::new, |stored| stored.messages.clone());
        messages.append(&mut request.input);
        let instructions = request.instructions.iter();
        let instructions = instructions.map(|text| ChatMessage::text(Role::System, text.clone()));
        let conversation: Vec<_> = instructions.chain(messages.iter().cloned()).collect();
        let conversation = Conversation {
            prompt: ChatPrompt {
                chat_template_kwargs: request.chat_template_kwargs.as_ref(),
                thinking: Some(&request.thinking),
                ..ChatPrompt::new(&conversation)
            },
            tools: request.tool_options.as_ref(),
            output: generation_fields.constraint.as_ref(),
        };
        let (prompt, answers) = conversation
            .prepare(model, &mut generation)
            .map_err(|error| error.about("messages", "input"))?;
        let known = previous.as_ref().map_or(&[][..], |stored| &stored.token_ids);
        let prompt = with_known_prefix(&model.tokenizer, known, prompt);
        check_prompt(model, "input", &prompt, false)?;
        let object = ResponseObject::new(request, &generation_fields);
        Ok(Self { generation, prompt, answers, object, messages })
    }
}

/// A turn that is being answered.
struct Turn {
    object: ResponseObject,
    messages: Vec<ChatMessage>,
    /// The prompt.
    token_ids: Vec<u32>,
    caller: CallerId,
    model: Arc<LoadedModel>,
    names: TokenNames,
}

impl Turn {
    /// Adds the log-probabilities of more tokens of a text; these.
    fn add_logprobs(&mut self, index: usize, tokens: &[TokenLogprobs]) -> Vec<ChatTokenLogprob> {
        // The token that ends a turn is none of its text.
        let ends = &self.model.engine.info().eos_token_ids;
        let tokens = tokens.iter().filter(|token| !ends.contains(&token.token_id)).cloned();
        let tokens = tokens.collect::<Vec<_>>();
        let logprobs = chat_logprobs(&self.names, &tokens).content;
        self.object.add_logprobs(index, logprobs.clone());
        logprobs
    }

    /// Ends the turn; holds the response if it is to be held.
    fn finish(
        mut self,
        blocks: &Blocks,
        output_ids: &[u32],
        reason: FinishReason,
        usage: Usage,
    ) -> Value {
        let num_thought = self.num_thought(blocks.list());
        let object = self.object.finished(blocks, reason, usage, num_thought);
        if self.object.store {
            self.messages.push(turn(blocks.list()));
            let eos_token_ids = &self.model.engine.info().eos_token_ids;
            // What ends a turn is the template's to write.
            let output = output_ids.iter().filter(|id| !eos_token_ids.contains(id));
            self.token_ids.extend(output);
            let stored = StoredResponse::new(self.caller, self.messages, self.token_ids, &object);
            self.model.responses.insert(self.object.id.clone(), stored);
        }
        object
    }

    /// How many tokens the reasoning has; it is split again for that, which may differ by a token or two.
    fn num_thought(&self, blocks: &[Block]) -> usize {
        let num_tokens = |text: &str| {
            self.model.tokenizer.encode(text, AddSpecialTokens::No).map_or(0, |ids| ids.len())
        };
        let thoughts = blocks.iter().map(|block| match block {
            Block::Reasoning(text) => num_tokens(text),
            Block::Text(_) | Block::Call { .. } => 0,
        });
        thoughts.sum()
    }
}
