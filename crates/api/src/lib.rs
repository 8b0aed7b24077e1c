//! JSON types of requests, responses and errors.
//!
//! [`Fields`] parses requests. It tracks the path of every value, so that each error names its field. It refuses
//! unknown fields, unless ignoring them cannot change the output. This crate checks types and structure; the server
//! checks bounds that depend on the model or the settings.

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
mod image;
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
    FunctionCall, FunctionCallDelta, MAX_TOOLS, PastToolCall, Role, TextPart, Tool, ToolCall,
    ToolCallDelta, ToolChoice, ToolOptions,
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
pub use image::{ImageDetail, ImagePart, ImageSource};
pub use messages::{MessagesPrompt, MessagesRequest, OutputConfig, OutputFormat};
pub use models::{HealthResponse, LoadProgress, Model, ModelList, RootResponse, VersionResponse};
pub use not_held::{NotHeld, NotHeldPart};
pub use rerank::{
    Document, RankedText, RerankRequest, RerankResponse, RerankResult, ResultDocument, Score,
    ScoreRequest, ScoreResponse, Texts,
};
pub use responses::{ResponsesRequest, StoredItems, TextFormat, TextSettings};
pub use thinking::{Said, ThinkingOptions};
pub use tokenize::{
    DetokenizeRequest, DetokenizeResponse, TokenizeInput, TokenizeRequest, TokenizeResponse,
};
pub use usage::{
    CompletionTokensDetails, FinishReason, PromptLogprob, PromptLogprobs, PromptTokensDetails,
    StopReason, Usage,
};
