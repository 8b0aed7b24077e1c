//! What the server serves: a model that generates text, or one that gives vectors or scores.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::Extensions;
use axum::http::request::Parts;
use candlepower_checkpoint::{SamplingDefaults, SentenceSettings};
use candlepower_dialect::{Dialect, PastCalls, ThinkingSwitch, Turns};
use candlepower_engine::{Caller, Embedder, EngineHandle, EngineHealth};
use candlepower_grammar::GrammarCompiler;
use candlepower_tokenizer::{ChatTemplate, Tokenizer};

use crate::model::api_error::{ApiError, ApiResult};
use crate::model::sessions::Sessions;
use crate::model::stored_responses::StoredResponses;

/// What every model is known by, whatever it gives.
pub(crate) struct ModelCard {
    pub(crate) tokenizer: Tokenizer,
    /// Names under which requests may ask for it.
    pub(crate) names: Vec<String>,
    /// What the server was started with.
    pub(crate) root: String,
    /// The same as others may see it: of a path on this machine only the last part.
    pub(crate) shown_root: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Most bytes of text that one token stands for.
    pub(crate) max_token_bytes: usize,
    /// Longest sequence, in tokens.
    pub(crate) max_model_len: usize,
    /// Most bytes of the texts of one prompt.
    pub(crate) max_prompt_bytes: usize,
    /// Every token id is below it.
    pub(crate) vocab_size: usize,
}

impl ModelCard {
    /// 404 unless `name` is one of the model's, or what the server was started with.
    pub(crate) fn check_name(&self, name: &str) -> ApiResult<()> {
        if self.names.iter().any(|known| known == name) || name == self.root {
            return Ok(());
        }
        Err(ApiError::model_not_found(name))
    }

    /// The name that an answer has: the one that the request has, or else the model's.
    ///
    /// # Errors
    /// 404 unless it is one of the model's.
    pub(crate) fn asked_name(&self, asked: Option<&str>) -> ApiResult<String> {
        let name = asked.unwrap_or_else(|| self.name());
        self.check_name(name).map(|()| name.to_owned())
    }

    /// The name that it goes by where a request names none.
    pub(crate) fn name(&self) -> &str {
        self.names.first().unwrap_or(&self.root)
    }
}

/// A model that generates text and can be asked.
pub(crate) struct LoadedModel {
    pub(crate) card: ModelCard,
    pub(crate) engine: EngineHandle,
    pub(crate) chat_template: Option<ChatTemplate>,
    /// Whether the chat template knows the role `developer`.
    pub(crate) knows_developer: bool,
    /// How calls and reasoning are written.
    pub(crate) dialect: Dialect,
    /// Whether the chat template tells the model what it may call.
    pub(crate) writes_tools: bool,
    /// How the chat template takes the calls of earlier turns.
    pub(crate) past_calls: PastCalls,
    /// Which rows of turns the chat template takes.
    pub(crate) turns: Turns,
    /// The variables by which the chat template switches thinking.
    pub(crate) thinking_switch: ThinkingSwitch,
    /// Whether the chat template takes documents.
    pub(crate) takes_documents: bool,
    /// Sampling of requests that do not say.
    pub(crate) sampling_defaults: SamplingDefaults,
    /// The conversations of /generate.
    pub(crate) sessions: Sessions,
    /// What /v1/responses holds.
    pub(crate) responses: StoredResponses,
    /// Made when the first constraint comes.
    pub(crate) grammar_compiler: OnceLock<candlepower_grammar::Result<GrammarCompiler>>,
}

impl Deref for LoadedModel {
    type Target = ModelCard;

    fn deref(&self) -> &ModelCard {
        &self.card
    }
}

/// A model that gives vectors or scores, and can be asked.
pub(crate) struct PoolingModel {
    pub(crate) card: ModelCard,
    pub(crate) embedder: Embedder,
    /// Prompts and whether texts are turned into lower case.
    pub(crate) sentence: SentenceSettings,
}

impl Deref for PoolingModel {
    type Target = ModelCard;

    fn deref(&self) -> &ModelCard {
        &self.card
    }
}

/// The one model of this server; cheap to clone.
#[derive(Clone)]
pub(crate) enum Served {
    Generating(Arc<LoadedModel>),
    Pooling(Arc<PoolingModel>),
}

impl Deref for Served {
    type Target = ModelCard;

    fn deref(&self) -> &ModelCard {
        match self {
            Self::Generating(model) => model,
            Self::Pooling(model) => model,
        }
    }
}

impl Served {
    /// How the model's engine is.
    pub(crate) fn health(&self) -> EngineHealth {
        match self {
            Self::Generating(model) => model.engine.health(),
            Self::Pooling(model) => model.embedder.health(),
        }
    }
}

/// A kind of model that an endpoint asks.
pub(crate) trait Asked: Send + Sync + Sized + 'static {
    /// 400 if the model of this server is of another kind.
    fn of(served: Served) -> ApiResult<Arc<Self>>;
}

/// Any kind.
impl Asked for Served {
    fn of(served: Served) -> ApiResult<Arc<Self>> {
        Ok(Arc::new(served))
    }
}

impl Asked for LoadedModel {
    fn of(served: Served) -> ApiResult<Arc<Self>> {
        match served {
            Served::Generating(model) => Ok(model),
            Served::Pooling(model) => {
                let message = match model.embedder.info().dimensions {
                    Some(_) => {
                        "This model gives vectors and generates no text: ask POST /v1/embeddings."
                    }
                    None => {
                        "This model scores pairs of texts and generates none: ask POST /v1/rerank or /v1/score."
                    }
                };
                Err(ApiError::invalid("model", message))
            }
        }
    }
}

impl Asked for PoolingModel {
    fn of(served: Served) -> ApiResult<Arc<Self>> {
        match served {
            Served::Pooling(model) => Ok(model),
            Served::Generating(_) => {
                let message = "This model generates text and gives neither vectors nor scores: serve an embedding model \
                    or a cross-encoder for this endpoint, or start this one with --pooling.";
                Err(ApiError::invalid("model", message))
            }
        }
    }
}

/// The model and the caller, for endpoints without a body that need a model that generates text.
pub(crate) struct Generating {
    pub(crate) model: Arc<LoadedModel>,
    pub(crate) caller: Caller,
}

impl<S: Send + Sync> FromRequestParts<S> for Generating {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        let caller = parts.extensions.get::<Caller>().copied().unwrap_or_default();
        Ok(Self { model: LoadedModel::of(served(&parts.extensions)?)?, caller })
    }
}

/// What the gate has let through.
pub(crate) fn served(extensions: &Extensions) -> ApiResult<Served> {
    let found = extensions.get::<Served>().cloned();
    found.ok_or_else(|| ApiError::internal("The request passed the gate without a model."))
}
