//! POST /v1/completions.

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use candlepower_api::{
    Completion, CompletionChoice, CompletionLogprobs, CompletionRequest, ErrorResponse, Prompt,
    Usage,
};
use candlepower_engine::TokenLogprobs;
use candlepower_tokenizer::SkipSpecialTokens;
use uuid::Uuid;

use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::logprobs::{
    CompletionLogprobsBuilder, SpecialTokens, TokenNames, prompt_logprobs,
};
use crate::generation::params::{Generation, num_logprobs};
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{check_prompt, encode, unix_seconds};
use crate::generation::request::Incoming;
use crate::generation::sse::{self, ChunkFormat};
use crate::generation::stream::{Delta, FinishedChoice, finish_all};
use crate::generation::submit::{UsageCounter, check_queue, limits, submit};
use crate::generation::{constraint, fill_middle};
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;

/// Continues one or several texts.
#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "Generation",
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The completion; server-sent events of the same format with `stream`", body = Completion),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
        (status = 404, description = "The model does not exist", body = ErrorResponse),
        (status = 429, description = "The queue is full, or a limit of the API key is reached", body = ErrorResponse),
    )
)]
pub(crate) async fn completions(request: Incoming) -> ApiResult<Response> {
    let Prepared { model_name, generation, prompts, echo, echo_logprobs, num_prompt_logprobs } =
        request.prepare(Prepared::new).await?;
    let choices = submit(&request, &prompts, &generation)?;
    let usage = UsageCounter::new(&prompts, generation.n);
    let format = CompletionFormat {
        id: format!("cmpl-{}", Uuid::new_v4().simple()),
        created: unix_seconds(),
        model_name,
        names: generation.token_names(&request.model.tokenizer),
        n: generation.n,
        prompts,
        echo,
        echo_logprobs,
        logprobs: generation.logprobs().is_some(),
        output_specials: match generation.text.skip_special_tokens {
            true => SpecialTokens::NotInText,
            false => SpecialTokens::InText,
        },
        token_ids: generation.return_token_ids,
        num_prompt_logprobs,
        builders: vec![CompletionLogprobsBuilder::default(); choices.len()],
    };
    match generation.stream {
        Some(shape) => Ok(sse::respond(format, choices, usage, shape)),
        None => Ok(format.whole(finish_all(choices).await?, usage)),
    }
}

/// A validated and tokenized request.
struct Prepared {
    model_name: String,
    generation: Generation,
    prompts: Vec<EncodedPrompt>,
    /// With `echo`, the prompts' texts.
    echo: Option<Vec<Echo>>,
    /// Whether log-probabilities of the echoed prompt are reported.
    echo_logprobs: bool,
    num_prompt_logprobs: Option<usize>,
}

/// The echo of a prompt.
struct Echo {
    text: String,
    specials: SpecialTokens,
}

impl Prepared {
    fn new(body: &[u8], model: &Preparation<'_, LoadedModel>) -> ApiResult<Self> {
        let request = CompletionRequest::parse(body)?;
        let model_name = model.asked_name(request.model.as_deref())?;
        model.leave_out_all(&request.not_held);
        let echo = request.echo.unwrap_or(false);
        let limits = limits(model, model.config, if echo { 0 } else { 1 });
        let mut generation = Generation::new(&request.generation, &limits)?;
        let num_prompt_logprobs = generation.prompt_logprobs;
        let logprobs =
            request.logprobs.map(|asked| num_logprobs("logprobs", asked, &limits)).transpose()?;
        generation.set_logprobs(logprobs);
        if echo {
            generation.prompt_logprobs = generation.prompt_logprobs.max(logprobs);
        }
        let num_prompts = match &request.prompt {
            Prompt::Text(_) | Prompt::TokenIds(_) => 1,
            Prompt::Texts(texts) => texts.len(),
            Prompt::TokenIdLists(lists) => lists.len(),
        };
        check_queue(model, "prompt", num_prompts, generation.n)?;
        generation.grammar = constraint::compile(model, request.generation.constraint.as_ref())?;
        let add_special_tokens = request.add_special_tokens.unwrap_or(true);
        let prompts =
            encode_prompts(model, &request.prompt, add_special_tokens && request.suffix.is_none())?;
        let prompts = match &request.suffix {
            None => prompts,
            Some(suffix) => {
                let encode = |text: &str| encode(model, "suffix", text, false);
                let fill = |prefix: &Vec<u32>| {
                    fill_middle::prompt(model, suffix, add_special_tokens, prefix, encode)
                };
                prompts.iter().map(fill).collect::<ApiResult<_>>()?
            }
        };
        let has_several = matches!(request.prompt, Prompt::Texts(_) | Prompt::TokenIdLists(_));
        for (index, prompt) in prompts.iter().enumerate() {
            check_prompt(model, "prompt", prompt, generation.only_scores())
                .map_err(|error| if has_several { of_prompt(index, error) } else { error })?;
        }
        Ok(Self {
            model_name,
            generation,
            echo: if echo { Some(echoes(model, &prompts, request.prompt)?) } else { None },
            prompts: prompts.into_iter().map(EncodedPrompt::from).collect(),
            echo_logprobs: echo && logprobs.is_some(),
            num_prompt_logprobs,
        })
    }
}

/// An error of one of several prompts.
fn of_prompt(index: usize, error: ApiError) -> ApiError {
    error.about("prompt", &format!("prompt[{index}]"))
}

/// The prompts' token ids.
fn encode_prompts(
    model: &LoadedModel,
    prompt: &Prompt,
    add_special_tokens: bool,
) -> ApiResult<Vec<Vec<u32>>> {
    let encode = |text: &String| encode(model, "prompt", text, add_special_tokens);
    match prompt {
        Prompt::Text(text) => Ok(vec![encode(text)?]),
        Prompt::Texts(texts) => {
            let encode = |(index, text)| encode(text).map_err(|error| of_prompt(index, error));
            texts.iter().enumerate().map(encode).collect()
        }
        Prompt::TokenIds(ids) => Ok(vec![ids.clone()]),
        Prompt::TokenIdLists(lists) => Ok(lists.clone()),
    }
}

/// The echoes of the prompts: the given texts, or decoded token ids.
fn echoes(model: &LoadedModel, prompts: &[Vec<u32>], given: Prompt) -> ApiResult<Vec<Echo>> {
    // Special tokens that the tokenizer adds around a text are not part of the echo.
    let as_given = |text| Echo { text, specials: SpecialTokens::NotInText };
    let decoded = |prompt: &Vec<u32>| {
        let text = model.tokenizer.decode(prompt, SkipSpecialTokens::No);
        let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(Echo { text, specials: SpecialTokens::InText })
    };
    match given {
        Prompt::Text(text) => Ok(vec![as_given(text)]),
        Prompt::Texts(texts) => Ok(texts.into_iter().map(as_given).collect()),
        Prompt::TokenIds(_) | Prompt::TokenIdLists(_) => prompts.iter().map(decoded).collect(),
    }
}

/// The state that all parts of an answer share.
struct CompletionFormat {
    id: String,
    created: u64,
    model_name: String,
    names: TokenNames,
    n: usize,
    prompts: Vec<EncodedPrompt>,
    echo: Option<Vec<Echo>>,
    echo_logprobs: bool,
    logprobs: bool,
    /// Whether special tokens are in the generated text.
    output_specials: SpecialTokens,
    token_ids: bool,
    num_prompt_logprobs: Option<usize>,
    /// One builder for each choice.
    builders: Vec<CompletionLogprobsBuilder>,
}

impl CompletionFormat {
    /// The echo of choice `index`, if the request asks for it, with log-probabilities if they are reported.
    fn echo(
        &mut self,
        index: usize,
        tokens: Option<&[Option<TokenLogprobs>]>,
    ) -> Option<(String, Option<CompletionLogprobs>)> {
        let echo = &self.echo.as_ref()?[index / self.n];
        let builder = &mut self.builders[index];
        let logprobs = tokens.filter(|_| self.echo_logprobs).map(|tokens| {
            let prompt = &self.prompts[index / self.n].token_ids;
            builder.prompt(&self.names, prompt, tokens, echo.specials)
        });
        if logprobs.is_none() {
            builder.skip(&echo.text);
        }
        Some((echo.text.clone(), logprobs))
    }

    /// The addition of `delta` to choice `index`.
    fn addition(&mut self, index: usize, delta: Delta) -> CompletionChoice {
        let logprobs = self.logprobs.then(|| {
            self.builders[index].output(&self.names, &delta.logprobs, self.output_specials)
        });
        let (finish_reason, stop_reason) = match delta.finish {
            Some(finish) => (Some(finish.reason), finish.stop_reason),
            None => (None, None),
        };
        CompletionChoice {
            index,
            text: delta.text,
            logprobs,
            finish_reason,
            stop_reason,
            prompt_logprobs: None,
            token_ids: self.token_ids.then_some(delta.token_ids),
            prompt_token_ids: None,
        }
    }

    fn whole(mut self, choices: Vec<FinishedChoice>, mut usage: UsageCounter) -> Response {
        let choices = choices
            .into_iter()
            .map(|choice| {
                usage.prompt(choice.index, choice.num_cached_tokens);
                usage.generated(choice.delta.token_ids.len());
                self.choice(choice)
            })
            .collect();
        axum::Json(self.answer(choices, Some(usage.usage()))).into_response()
    }

    fn choice(
        &mut self,
        FinishedChoice { index, prompt_logprobs: tokens, delta, .. }: FinishedChoice,
    ) -> CompletionChoice {
        let echo = self.echo(index, tokens.as_deref());
        let mut choice = self.addition(index, delta);
        if let Some((text, logprobs)) = echo {
            choice.text.insert_str(0, &text);
            choice.logprobs = match (logprobs, choice.logprobs) {
                (Some(prompt), Some(output)) => Some(joined(prompt, output)),
                (_, output) => output,
            };
        }
        if let (Some(num_top), Some(tokens)) = (self.num_prompt_logprobs, &tokens) {
            choice.prompt_logprobs = Some(prompt_logprobs(&self.names.tokenizer, tokens, num_top));
        }
        choice.prompt_token_ids =
            self.token_ids.then(|| self.prompts[index / self.n].token_ids.clone());
        choice
    }

    fn answer(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Completion<'_> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model_name,
            choices,
            usage,
            system_fingerprint: None,
        }
    }
}

/// Joins the log-probabilities of two parts of a text.
fn joined(mut first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs {
    first.text_offset.extend(second.text_offset);
    first.token_logprobs.extend(second.token_logprobs);
    first.tokens.extend(second.tokens);
    first.top_logprobs.extend(second.top_logprobs);
    first
}

impl ChunkFormat for CompletionFormat {
    fn prompt(
        &mut self,
        index: usize,
        logprobs: Option<Vec<Option<TokenLogprobs>>>,
        usage: Option<Usage>,
    ) -> Option<Bytes> {
        let echo = self.echo(index, logprobs.as_deref());
        let prompt_token_ids =
            self.token_ids.then(|| self.prompts[index / self.n].token_ids.clone());
        if echo.is_none() && prompt_token_ids.is_none() {
            return None;
        }
        let (text, logprobs) = echo.unwrap_or_default();
        let choice = CompletionChoice {
            index,
            text,
            logprobs,
            finish_reason: None,
            stop_reason: None,
            prompt_logprobs: None,
            token_ids: self.token_ids.then(Vec::new),
            prompt_token_ids,
        };
        Some(sse::event(&self.answer(vec![choice], usage)))
    }

    fn delta(&mut self, index: usize, delta: Delta, usage: Option<Usage>) -> Bytes {
        let choice = self.addition(index, delta);
        let choice = CompletionChoice {
            logprobs: choice.logprobs.filter(|logprobs| !logprobs.is_empty()),
            ..choice
        };
        sse::event(&self.answer(vec![choice], usage))
    }

    fn usage(&mut self, usage: Usage) -> Bytes {
        sse::event(&self.answer(Vec::new(), Some(usage)))
    }
}
