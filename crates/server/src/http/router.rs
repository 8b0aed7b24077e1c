//! All routes and the layers around them.

use std::any::Any;

use axum::extract::{Request, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any as AnyOrigin, CorsLayer};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::endpoints::openapi::{self, Rendered};
use crate::endpoints::playground::{self, Playground};
use crate::endpoints::{
    chat, completions, embeddings, generate, health, messages, models, rerank, responses, tokenize,
};
use crate::http::answer_head::{X_NOT_HELD, report_not_held, shape_errors};
use crate::http::auth::{OPEN_PATHS, authenticate, keyless_paths};
use crate::http::caller::identify;
use crate::http::host::check_host;
use crate::http::linger::linger;
use crate::http::track::track;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::state::AppState;

/// The whole application.
pub(crate) fn router(state: AppState) -> Router {
    let (router, document) = OpenApiRouter::with_openapi(openapi::document())
        .routes(routes!(chat::chat_completions))
        .routes(routes!(completions::completions))
        .routes(routes!(responses::create_response))
        .routes(routes!(responses::retrieve_response, responses::delete_response))
        .routes(routes!(responses::list_input_items))
        .routes(routes!(responses::cancel_response))
        .routes(routes!(responses::count_input_tokens))
        .routes(routes!(messages::create_message))
        .routes(routes!(messages::count_tokens))
        .routes(routes!(generate::generate))
        .routes(routes!(embeddings::embeddings))
        .routes(routes!(rerank::rerank))
        .routes(routes!(rerank::score))
        .routes(routes!(models::list_models))
        .routes(routes!(models::retrieve_model))
        .routes(routes!(tokenize::tokenize))
        .routes(routes!(tokenize::detokenize))
        .routes(routes!(health::health))
        .routes(routes!(health::version))
        .routes(routes!(health::metrics))
        .routes(routes!(openapi::openapi_json))
        .routes(routes!(openapi::docs))
        .routes(routes!(playground::root))
        .split_for_parts();
    // The last layer is the outermost: it gets a request first and its response last.
    let router = aliases(router)
        .fallback(path_not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(Extension(Playground(state.config().shows_playground())))
        .layer(Extension(Rendered::new(document, state.config(), keyless_paths(state.config()))))
        // Handlers need the model, and only those behind `gate` have it.
        .layer(middleware::from_fn(report_not_held))
        .layer(middleware::from_fn_with_state(state.clone(), gate))
        // The caller's name is that of the key, so it is known only behind `authenticate`.
        .layer(middleware::from_fn_with_state(state.clone(), identify))
        .layer(middleware::from_fn_with_state(state.clone(), authenticate));
    // A preflight has no key by the Fetch standard, so CORS answers outside of authentication.
    let router = match cors(&state.config().allowed_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        // A page of another origin must not even learn whether a key is needed.
        .layer(middleware::from_fn_with_state(state.clone(), check_host))
        .layer(middleware::from_fn(linger))
        // Only `track` and the errors' format are outside of this, so that a panic is counted and formatted, too.
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn(shape_errors))
        .layer(middleware::from_fn_with_state(state.clone(), track))
        .with_state(state)
}

/// Paths that clients of other servers use for the same endpoints, and one that would otherwise match the id of a response.
///
/// Sources: llama.cpp's server (paths without `/v1`), vLLM, Jina and Cohere (`/rerank`, `/v2/rerank`, `/score`).
fn aliases(router: Router<AppState>) -> Router<AppState> {
    router
        .route("/chat/completions", post(chat::chat_completions))
        .route("/completions", post(completions::completions))
        .route("/embeddings", post(embeddings::embeddings))
        .route("/models", get(models::list_models))
        .route("/models/{*id}", get(models::retrieve_model))
        .route("/rerank", post(rerank::rerank))
        .route("/v2/rerank", post(rerank::rerank))
        .route("/score", post(rerank::score))
        .route("/v1/responses/compact", any(path_not_found))
}

/// Admits requests only while the model is ready, and passes it to their handlers.
async fn gate(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> ApiResult<Response> {
    if !OPEN_PATHS.contains(&request.uri().path()) {
        // The handlers use this model even if the server begins to stop while they run.
        let model = state.ready_model()?;
        request.extensions_mut().insert(model);
    }
    Ok(next.run(request).await)
}

async fn path_not_found(request: Request) -> ApiError {
    ApiError::path_not_found(request.method().as_str(), request.uri().path())
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    // The panic hook has written the message to the log.
    ApiError::internal("This request hit a defect of the server; see the server's log.")
        .into_response()
}

/// The CORS layer; `None` if the settings name no origins.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // `*` would not cover `Authorization`. Source: the Fetch standard, on `Access-Control-Allow-Headers`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id"), RETRY_AFTER, X_NOT_HELD]);
    if origins.iter().any(|origin| origin == "*") {
        return Some(layer.allow_origin(AnyOrigin));
    }
    let origins: Vec<HeaderValue> =
        origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    Some(layer.allow_origin(AllowOrigin::list(origins)))
}

#[cfg(test)]
mod tests;
