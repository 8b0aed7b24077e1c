//! POST /generate, the endpoint of prism: branches, selection among choices, and sessions.

mod select;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use candlepower_api::{
    ErrorResponse, GenerateChoice, GenerateRequest, GenerateResponse, SessionRequest, SessionState,
    Usage,
};
use uuid::Uuid;

use crate::config::Framework;
use crate::generation::constraint;
use crate::generation::encoded_prompt::EncodedPrompt;
use crate::generation::logprobs::{TokenNames, chat_logprobs};
use crate::generation::params::{Generation, num_logprobs};
use crate::generation::preparation::Preparation;
use crate::generation::prompt::{check_prompt, encode, unix_seconds};
use crate::generation::request::Incoming;
use crate::generation::sse::{self, ChunkFormat};
use crate::generation::stream::{Delta, FinishedChoice, finish_all};
use crate::generation::submit::{UsageCounter, check_queue, limits, submit};
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::served_model::LoadedModel;
use crate::model::sessions::Turn;

/// Generates text in branches, selects the most likely of given texts, or continues a session. Needs `--framework prism`.
#[utoipa::path(
    post,
    path = "/generate",
    tag = "Generation",
    request_body = GenerateRequest,
    responses(
        (status = 200, description = "The answer; server-sent events of the same format with `stream`", body = GenerateResponse),
        (status = 400, description = "A field is invalid; `param` names it", body = ErrorResponse),
        (status = 404, description = "The model or session does not exist, or the server runs without `--framework prism`", body = ErrorResponse),
        (status = 429, description = "The queue is full, or a limit of the API key is reached", body = ErrorResponse),
    )
)]
pub(crate) async fn generate(request: Incoming) -> ApiResult<Response> {
    if request.state.config().framework != Framework::Prism {
        return Err(ApiError::not_found(
            None,
            "not_found",
            "POST /generate needs `--framework prism`; use /v1/completions, or start the server with it.",
        ));
    }
    match request.prepare(Work::new).await? {
        Work::Close { header, id } => {
            let session = request.model.sessions.close(request.caller.id, &id)?;
            let usage = Some(Usage::default());
            let response = header.response("generation", Vec::new(), usage);
            Ok(axum::Json(GenerateResponse { session: Some(session), ..response }).into_response())
        }
        Work::Select(selection) => select::respond(selection, &request).await,
        Work::Generate(prepared) => respond(prepared, &request).await,
    }
}

/// A validated and tokenized request.
enum Work {
    /// A request that only closes a session.
    Close {
        header: Header,
        id: String,
    },
    Select(select::Selection),
    Generate(Prepared),
}

/// The fields that all parts of an answer share.
struct Header {
    id: String,
    created: u64,
    model_name: String,
}

struct Prepared {
    header: Header,
    generation: Generation,
    prompt: Vec<u32>,
    turn: Option<Turn>,
}

impl Work {
    fn new(body: &[u8], model: &Preparation<'_, LoadedModel>) -> ApiResult<Self> {
        let request = GenerateRequest::parse(body)?;
        let header = Header::new(&request, model)?;
        if let Some(id) = request.session.as_ref().and_then(|session| session.id.clone())
            && request.only_closes()
        {
            return Ok(Self::Close { header, id });
        }
        let limits = limits(model, model.config, 0);
        let mut generation = Generation::new(&request.generation, &limits)?;
        let logprobs =
            request.logprobs.map(|asked| num_logprobs("logprobs", asked, &limits)).transpose()?;
        generation.set_logprobs(logprobs);
        if generation.only_scores() && generation.n > 1 {
            let message = "`n` must be 1 if `max_tokens` is 0, because nothing is sampled.";
            return Err(ApiError::invalid("n", message));
        }
        if generation.prompt_logprobs.is_some() {
            let message = "`prompt_logprobs` is not supported by /generate: use /v1/completions, or `choices` to score texts.";
            return Err(ApiError::invalid("prompt_logprobs", message));
        }
        let num_choices = request.choices.as_ref().map_or(1, Vec::len);
        check_queue(model, "choices", num_choices, generation.n)?;
        generation.grammar = constraint::compile(model, request.generation.constraint.as_ref())?;
        let turn = turn(request.session.as_ref(), &mut generation, model)?;
        let (param, prompt) = prompt(&request, turn.as_ref(), model)?;
        check_prompt(model, param, &prompt, generation.only_scores() || request.choices.is_some())?;
        let prepared = Prepared { header, generation, prompt, turn };
        match request.choices {
            Some(texts) => Ok(Self::Select(select::Selection::new(prepared, texts, model)?)),
            None => Ok(Self::Generate(prepared)),
        }
    }
}

/// The turn of a session, if the request has one. Its cache salt is the session's.
fn turn(
    session: Option<&SessionRequest>,
    generation: &mut Generation,
    model: &Preparation<'_, LoadedModel>,
) -> ApiResult<Option<Turn>> {
    let Some(session) = session else { return Ok(None) };
    let (sessions, ttl, owner) = (&model.sessions, session.ttl, model.caller);
    let turn = match (&session.id, &session.fork) {
        (Some(id), _) => sessions.resume(owner, id, ttl, session.close == Some(true))?,
        (None, Some(id)) => sessions.fork(owner, id, ttl)?,
        (None, None) => sessions.open(owner, ttl, generation.cache_salt.clone())?,
    };
    let salt = turn.cache_salt();
    if generation.cache_salt.is_some() && generation.cache_salt != salt {
        let message =
            "The session has another `cache_salt`: leave it out; the session keeps its own.";
        return Err(ApiError::invalid("cache_salt", message));
    }
    generation.cache_salt = salt;
    Ok(Some(turn))
}

/// The prompt, and the field that contains its last part.
fn prompt(
    request: &GenerateRequest,
    turn: Option<&Turn>,
    model: &LoadedModel,
) -> ApiResult<(&'static str, Vec<u32>)> {
    let before = turn.map_or(&[][..], Turn::token_ids);
    let (param, new) = match (&request.text, &request.input_ids) {
        (Some(text), _) => {
            let add_special_tokens =
                before.is_empty() && request.add_special_tokens.unwrap_or(true);
            ("text", encode(model, "text", text, add_special_tokens)?)
        }
        (None, Some(ids)) => ("input_ids", ids.clone()),
        (None, None) => ("text", Vec::new()),
    };
    Ok((param, [before, &new].concat()))
}

async fn respond(prepared: Prepared, request: &Incoming) -> ApiResult<Response> {
    let Prepared { header, generation, prompt, turn } = prepared;
    let prompts = [EncodedPrompt::from(prompt)];
    let choices = submit(request, &prompts, &generation)?;
    let usage = UsageCounter::new(&prompts, generation.n);
    let [EncodedPrompt { token_ids: prompt, .. }] = prompts;
    let format = GenerateFormat {
        header,
        names: generation.token_names(&request.model.tokenizer),
        logprobs: generation.logprobs().is_some(),
        branches: Branch::of(turn, &prompt, generation.n),
    };
    match generation.stream {
        Some(shape) => Ok(sse::respond(format, choices, usage, shape)),
        None => Ok(format.whole(finish_all(choices).await?, usage)),
    }
}

impl Header {
    fn new(request: &GenerateRequest, model: &LoadedModel) -> ApiResult<Self> {
        if let Some(name) = &request.model {
            model.check_name(name)?;
        }
        Ok(Self {
            id: format!("gen-{}", Uuid::new_v4().simple()),
            created: unix_seconds(),
            model_name: request.model.clone().unwrap_or_else(|| model.name().to_owned()),
        })
    }

    fn response(
        &self,
        object: &'static str,
        choices: Vec<GenerateChoice>,
        usage: Option<Usage>,
    ) -> GenerateResponse<'_> {
        GenerateResponse {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model_name,
            choices,
            selected: None,
            session: None,
            usage,
        }
    }
}

/// The session of one branch, and its tokens after the answer.
struct Branch {
    turn: Option<Turn>,
    token_ids: Vec<u32>,
}

impl Branch {
    /// The branches of a request: the first continues its session, the others continue forks of it.
    fn of(turn: Option<Turn>, prompt: &[u32], n: usize) -> Vec<Self> {
        let Some(turn) = turn else { return Vec::new() };
        let forks: Vec<Turn> = (1..n).map(|_| turn.branch()).collect();
        let turns = std::iter::once(turn).chain(forks);
        turns.map(|turn| Self { turn: Some(turn), token_ids: prompt.to_vec() }).collect()
    }
}

/// Writes answers.
struct GenerateFormat {
    header: Header,
    names: TokenNames,
    /// Whether log-probabilities are reported.
    logprobs: bool,
    /// One branch for each choice; empty without a session.
    branches: Vec<Branch>,
}

impl GenerateFormat {
    fn whole(mut self, choices: Vec<FinishedChoice>, mut usage: UsageCounter) -> Response {
        let mut written = Vec::with_capacity(choices.len());
        for FinishedChoice { index, num_cached_tokens, delta, .. } in choices {
            usage.prompt(index, num_cached_tokens);
            usage.generated(delta.token_ids.len());
            written.push(self.choice(index, delta));
        }
        let response = self.header.response("generation", written, Some(usage.usage()));
        axum::Json(response).into_response()
    }

    fn choice(&mut self, index: usize, delta: Delta) -> GenerateChoice {
        let session = self.advance(index, &delta);
        let (finish_reason, stop_reason) =
            delta.finish.map_or((None, None), |finish| (Some(finish.reason), finish.stop_reason));
        GenerateChoice {
            index,
            text: delta.text,
            logprobs: self.logprobs.then(|| chat_logprobs(&self.names, &delta.logprobs).content),
            token_ids: delta.token_ids,
            score: None,
            finish_reason,
            stop_reason,
            session,
        }
    }

    /// Adds a branch's tokens to its session; returns the session's state when the branch has finished.
    fn advance(&mut self, index: usize, delta: &Delta) -> Option<SessionState> {
        let branch = self.branches.get_mut(index)?;
        branch.token_ids.extend(&delta.token_ids);
        delta.finish.as_ref()?;
        Some(branch.turn.take()?.commit(std::mem::take(&mut branch.token_ids)))
    }
}

impl ChunkFormat for GenerateFormat {
    fn delta(&mut self, index: usize, delta: Delta, usage: Option<Usage>) -> Bytes {
        let choice = self.choice(index, delta);
        sse::event(&self.header.response("generation.chunk", vec![choice], usage))
    }

    fn usage(&mut self, usage: Usage) -> Bytes {
        sse::event(&self.header.response("generation.chunk", Vec::new(), Some(usage)))
    }
}
