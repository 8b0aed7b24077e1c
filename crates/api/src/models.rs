//! The small answers: models, health, version.

use serde::Serialize;
use utoipa::ToSchema;

/// The answer of GET /v1/models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// The names that requests may use.
    pub data: Vec<Model>,
}

/// A name that requests may use, and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Model {
    /// The name.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// When the server loaded it: seconds since 1970.
    pub created: u64,
    /// `candlepower`.
    pub owned_by: &'static str,
    /// The model that the server was started with.
    pub root: String,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_len: usize,
}

/// The answer of GET /health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct HealthResponse {
    /// `healthy` with status 200; otherwise `starting`, `draining`, `failed` or `unhealthy`.
    pub status: &'static str,
    /// Where the server is; absent when healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    /// Why, where there is more to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How far loading is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<LoadProgress>,
}

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LoadProgress {
    /// Bytes of weights read.
    pub bytes_done: u64,
    /// Bytes of weights in all.
    pub bytes_total: u64,
}

/// The answer of GET /version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct VersionResponse {
    /// The server's version, `x.y.z`.
    pub version: &'static str,
}
