//! The wire: JSON types of requests, responses and errors.
//!
//! Requests are read by [`Fields`], which knows the path of every value, so that an error names the
//! field that caused it, and which refuses what it does not know unless ignoring it cannot change the
//! output. This crate checks shapes; bounds that depend on the model or the server are the server's.

mod chat;
mod chat_response;
mod completion;
mod completion_response;
mod constraint;
mod embeddings;
mod error;
mod fields;
mod generate;
mod generation;
mod messages;
mod models;
mod neutral;
mod not_held;
mod rerank;
mod responses;
mod scalar;
mod thinking;
mod tokenize;
mod usage;

pub use chat::{
    AllowedMode, AllowedTools, ChatCompletionRequest, ChatMessage, Content, ContentPart,
    FunctionCall, FunctionCallDelta, MAX_TOOLS, PastToolCall, Role, Tool, ToolCall, ToolCallDelta,
    ToolChoice, ToolOptions,
};
pub use chat_response::{
    ChatChoice, ChatChunkChoice, ChatCompletion, ChatCompletionChunk, ChatDelta, ChatLogprobs,
    ChatTokenLogprob, ChatTopLogprob, ResponseMessage,
};
pub use completion::{CompletionRequest, MAX_PROMPTS, Prompt};
pub use completion_response::{Completion, CompletionChoice, CompletionLogprobs};
pub use constraint::{
    ConstraintKind, JsonSchemaFormat, OutputConstraint, ResponseFormat, StructuredOutputs,
};
pub use embeddings::{
    Embedding, EmbeddingsRequest, EmbeddingsResponse, EncodingFormat, PoolingUsage, Vector,
};
pub use error::{ErrorBody, ErrorResponse, FieldError, clip, excerpt};
pub use fields::Fields;
pub use generate::{
    GenerateChoice, GenerateRequest, GenerateResponse, MAX_SCORED_CHOICES, SessionRequest,
    SessionState,
};
pub use generation::{
    GenerationFields, MAX_STOP_STRINGS, MaxTokensName, StopStrings, StreamOptions,
};
pub use messages::{MessagesPrompt, MessagesRequest, OutputConfig, OutputFormat};
pub use models::{HealthResponse, LoadProgress, Model, ModelList, VersionResponse};
pub use not_held::{NotHeld, NotHeldPart};
pub use rerank::{
    Document, RankedText, RerankRequest, RerankResponse, RerankResult, ResultDocument, Score,
    ScoreRequest, ScoreResponse, Texts,
};
pub use responses::{ResponsesRequest, TextFormat, TextSettings};
pub use thinking::{Said, ThinkingOptions};
pub use tokenize::{
    DetokenizeRequest, DetokenizeResponse, TokenizeInput, TokenizeRequest, TokenizeResponse,
};
pub use usage::{
    CompletionTokensDetails, FinishReason, PromptLogprob, PromptLogprobs, PromptTokensDetails,
    StopReason, Usage,
};
