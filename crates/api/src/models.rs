//! Responses of the endpoints for models, health and version.

use serde::Serialize;
use utoipa::ToSchema;

/// Response of GET /v1/models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// Model names that requests may use.
    pub data: Vec<Model>,
}

/// A model name that requests may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Model {
    /// The name.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// Time at which the server loaded the model, in seconds since 1970.
    pub created: u64,
    /// `candlepower`.
    pub owned_by: &'static str,
    /// Model that the server was started with.
    pub root: String,
    /// Context length: tokens of prompt and output together.
    pub max_model_len: usize,
    /// Kinds of input: `text`, and `image` if the model takes images.
    pub input_modalities: &'static [&'static str],
}

/// Response of GET /health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct HealthResponse {
    /// `healthy` with status 200; otherwise `starting`, `draining`, `failed` or `unhealthy`.
    pub status: &'static str,
    /// Phase of the server; absent when healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    /// Reason, if there is more to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Progress of downloading or loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<LoadProgress>,
}

/// Progress of downloading or loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LoadProgress {
    /// Bytes downloaded or loaded.
    pub bytes_done: u64,
    /// Total bytes.
    pub bytes_total: u64,
}

/// Response of GET /.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RootResponse {
    /// The server's name, `candlepower`.
    pub name: &'static str,
    /// The server's version, `x.y.z`.
    pub version: &'static str,
    /// Path of the API's documentation.
    pub docs: &'static str,
    /// Path of the OpenAPI document.
    pub openapi: &'static str,
    /// Path of the health check.
    pub health: &'static str,
}

/// Response of GET /version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct VersionResponse {
    /// The server's version, `x.y.z`.
    pub version: &'static str,
}
