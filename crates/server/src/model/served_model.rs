//! The model of this server: one that generates text, or one for embeddings or scores.

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
use crate::model::image_input::ImageInput;
use crate::model::sessions::Sessions;
use crate::model::stored_responses::StoredResponses;

/// The properties that all kinds of models have.
pub(crate) struct ModelCard {
    pub(crate) tokenizer: Tokenizer,
    /// Model names that requests may use.
    pub(crate) names: Vec<String>,
    /// The argument MODEL of `serve`.
    pub(crate) root: String,
    /// The same for clients: of a local path only the last part.
    pub(crate) shown_root: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// Maximum bytes of text of one token.
    pub(crate) max_token_bytes: usize,
    /// Context length in tokens.
    pub(crate) max_model_len: usize,
    /// Maximum bytes of a prompt's text.
    pub(crate) max_prompt_bytes: usize,
    /// Size of the vocabulary; all token ids are below it.
    pub(crate) vocab_size: usize,
}

impl ModelCard {
    /// 404 unless `name` is one of the model's names, or the argument MODEL.
    pub(crate) fn check_name(&self, name: &str) -> ApiResult<()> {
        if self.names.iter().any(|known| known == name) || name == self.root {
            return Ok(());
        }
        Err(ApiError::model_not_found(name))
    }

    /// The name in an answer: the request's, or else the model's first.
    ///
    /// # Errors
    /// 404 unless it is one of the model's.
    pub(crate) fn asked_name(&self, asked: Option<&str>) -> ApiResult<String> {
        let name = asked.unwrap_or_else(|| self.name());
        self.check_name(name).map(|()| name.to_owned())
    }

    /// The name for requests that name no model.
    pub(crate) fn name(&self) -> &str {
        self.names.first().unwrap_or(&self.root)
    }
}

/// A loaded model that generates text.
pub(crate) struct LoadedModel {
    pub(crate) card: ModelCard,
    pub(crate) engine: EngineHandle,
    pub(crate) chat_template: Option<ChatTemplate>,
    /// Whether the chat template knows the role `developer`.
    pub(crate) knows_developer: bool,
    /// The formats of tool calls and reasoning.
    pub(crate) dialect: Dialect,
    /// Whether the chat template writes tools into the prompt.
    pub(crate) writes_tools: bool,
    /// The form in which the chat template accepts tool calls of earlier turns.
    pub(crate) past_calls: PastCalls,
    /// The orders of roles that the chat template accepts.
    pub(crate) turns: Turns,
    /// The variables with which the chat template switches thinking on or off.
    pub(crate) thinking_switch: ThinkingSwitch,
    /// Whether the chat template accepts documents.
    pub(crate) takes_documents: bool,
    /// Whether the model takes images.
    pub(crate) images: ImageInput,
    /// Default sampling parameters.
    pub(crate) sampling_defaults: SamplingDefaults,
    /// The sessions of /generate.
    pub(crate) sessions: Sessions,
    /// The stored responses of /v1/responses.
    pub(crate) responses: StoredResponses,
    /// The compiler of constraints, created by the first request that needs it.
    pub(crate) grammar_compiler: OnceLock<candlepower_grammar::Result<GrammarCompiler>>,
}

impl Deref for LoadedModel {
    type Target = ModelCard;

    fn deref(&self) -> &ModelCard {
        &self.card
    }
}

/// A loaded model for embeddings or scores.
pub(crate) struct PoolingModel {
    pub(crate) card: ModelCard,
    pub(crate) embedder: Embedder,
    /// Prompts, and whether texts are lower-cased.
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
    /// Whether the model takes images.
    pub(crate) fn takes_images(&self) -> bool {
        matches!(self, Self::Generating(model) if model.images.support().is_some())
    }

    /// Health of the model's engine.
    pub(crate) fn health(&self) -> EngineHealth {
        match self {
            Self::Generating(model) => model.engine.health(),
            Self::Pooling(model) => model.embedder.health(),
        }
    }
}

/// A kind of model that an endpoint needs.
pub(crate) trait Asked: Send + Sync + Sized + 'static {
    /// The model, or 400 if this server's is of another kind.
    fn of(served: Served) -> ApiResult<Arc<Self>>;
}

/// Accepts any kind.
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
                        "This is an embedding model and does not generate text: use POST /v1/embeddings."
                    }
                    None => {
                        "This is a reranking model and does not generate text: use POST /v1/rerank or /v1/score."
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
                let message = "This model generates text. This endpoint needs an embedding model or a cross-encoder: serve one, \
                    or start this model with --pooling for embeddings.";
                Err(ApiError::invalid("model", message))
            }
        }
    }
}

/// A model that generates text, and the caller, for endpoints without a body.
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

/// The model that the gate has added to the request.
pub(crate) fn served(extensions: &Extensions) -> ApiResult<Served> {
    let found = extensions.get::<Served>().cloned();
    found.ok_or_else(|| ApiError::internal("Defect of the server: the request has no model."))
}
