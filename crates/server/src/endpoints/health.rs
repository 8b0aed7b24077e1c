//! GET /health, /version and /metrics, which need no key and answer in every phase.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use candlepower_api::{HealthResponse, VersionResponse};

use crate::model::state::AppState;

/// Reports the health of the server.
#[utoipa::path(
    get,
    path = "/health",
    tag = "Server",
    responses(
        (status = 200, description = "Healthy", body = HealthResponse),
        (status = 503, description = "Starting, draining or failed, or the engine has stopped or is stuck", body = HealthResponse),
    )
)]
pub(crate) async fn health(State(state): State<AppState>) -> Response {
    let (is_healthy, body) = state.health();
    let status = if is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

/// The server's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the version of the server.
#[utoipa::path(get, path = "/version", tag = "Server", responses((status = 200, description = "The version", body = VersionResponse)))]
pub(crate) async fn version() -> Json<VersionResponse> {
    Json(VersionResponse { version: VERSION })
}

/// Returns metrics in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "Server", responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], state.render_metrics())
}
