//! POST /tokenize and /detokenize.

use axum::Json;
use candlepower_api::{
    DetokenizeRequest, DetokenizeResponse, ErrorResponse, TokenizeInput, TokenizeRequest,
    TokenizeResponse,
};
use candlepower_tokenizer::SkipSpecialTokens;

use crate::generation::pictures;
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{BYTES_PER_TOKEN, ChatPrompt, encode_any_length};
use crate::generation::request::Incoming;
use crate::generation::tools::ToolUse;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::Served;

/// Tokenizes a text or a conversation.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = "Tokens",
    request_body = TokenizeRequest,
    responses(
        (status = 200, description = "The tokens", body = TokenizeResponse),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
    )
)]
pub(crate) async fn tokenize(request: Incoming<Served>) -> ApiResult<Json<TokenizeResponse>> {
    request.prepare(tokens).await.map(Json)
}

fn tokens(body: &[u8], model: &Preparation<'_, Served>) -> ApiResult<TokenizeResponse> {
    let request = TokenizeRequest::parse(body)?;
    model.asked_name(request.model.as_deref())?;
    model.leave_out_all(&request.not_held);
    let tokens = match &request.input {
        // A text may be longer than the context, because clients use this endpoint to find that out.
        TokenizeInput::Prompt { prompt } => {
            let add_special = request.add_special_tokens.unwrap_or(true);
            encode_any_length(model, "prompt", prompt, add_special)?
        }
        TokenizeInput::Messages {
            messages,
            add_generation_prompt,
            continue_final_message,
            chat_template_kwargs,
            tool_options,
        } => {
            let Served::Generating(generating) = &**model else {
                let message =
                    "This model has no chat template: use `prompt` instead of `messages`.";
                return Err(ApiError::invalid("messages", message));
            };
            let tools = ToolUse::new(tool_options.as_ref(), generating)?;
            let images = pictures::read(model, generating, messages)?;
            let prompt = ChatPrompt {
                images: &images,
                tools: tools.definitions(),
                add_generation_prompt: *add_generation_prompt,
                continue_final_message: *continue_final_message,
                chat_template_kwargs: chat_template_kwargs.as_ref(),
                add_special_tokens: request.add_special_tokens.unwrap_or(false),
                ..ChatPrompt::new(messages)
            };
            prompt.encode(generating, model)?.token_ids
        }
    };
    let token_strs = request.return_token_strs.unwrap_or(false);
    Ok(TokenizeResponse {
        count: tokens.len(),
        max_model_len: model.max_model_len,
        token_strs: token_strs
            .then(|| tokens.iter().map(|id| model.tokenizer.token_text(*id)).collect()),
        tokens,
    })
}

/// Converts token ids to text.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = "Tokens",
    request_body = DetokenizeRequest,
    responses(
        (status = 200, description = "The text", body = DetokenizeResponse),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
    )
)]
pub(crate) async fn detokenize(request: Incoming<Served>) -> ApiResult<Json<DetokenizeResponse>> {
    request.prepare(text).await.map(Json)
}

fn text(body: &[u8], model: &Preparation<'_, Served>) -> ApiResult<DetokenizeResponse> {
    let request = DetokenizeRequest::parse(body)?;
    model.asked_name(request.model.as_deref())?;
    // The limit of bytes, converted to ids: each id counts as many bytes as the limit has for a token of the context.
    let (count, limit) = (request.tokens.len(), model.max_prompt_bytes / BYTES_PER_TOKEN);
    let limit = limit.max(model.max_model_len);
    if count > limit {
        let message = format!(
            "`tokens` has {count} ids, and this server accepts at most {limit}: send fewer, or start the server with a \
             larger --max-prompt-bytes."
        );
        return Err(ApiError::context_length("tokens", message));
    }
    let vocab_size = model.vocab_size;
    if let Some((i, id)) =
        request.tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab_size)
    {
        let message = format!("Token id {id} is outside the model's vocabulary of {vocab_size}.");
        return Err(ApiError::invalid(format!("tokens[{i}]"), message));
    }
    let prompt = model
        .tokenizer
        .decode(&request.tokens, SkipSpecialTokens::No)
        .map_err(|error| ApiError::invalid("tokens", candlepower_api::clip(&error.to_string())))?;
    Ok(DetokenizeResponse { prompt })
}
