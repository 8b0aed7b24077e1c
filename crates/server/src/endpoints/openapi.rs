//! GET /openapi.json and a page that shows it.

use std::sync::Arc;

use axum::extract::Extension;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse};
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

/// The document's head; the routes add themselves.
#[derive(OpenApi)]
#[openapi(
    info(title = "candlepower", description = "A self-hosted, OpenAI-compatible inference server."),
    components(schemas(candlepower_api::ChatCompletionChunk<'static>)),
    tags(
        (name = "Generation", description = "Text from the model"),
        (name = "Embeddings", description = "Vectors of texts, and scores of pairs"),
        (name = "Models", description = "What is served"),
        (name = "Tokens", description = "Text to tokens and back"),
        (name = "Server", description = "How the server is"),
    )
)]
struct Document;

/// The document without its routes.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    document.components.get_or_insert_default().add_security_scheme("bearer", bearer);
    document
}

/// The document as it is sent, in JSON.
#[derive(Clone)]
pub(crate) struct Rendered {
    json: Arc<str>,
    html: Arc<str>,
}

impl Rendered {
    pub(crate) fn new(mut document: utoipa::openapi::OpenApi) -> Self {
        // The router's way to say that a parameter may hold slashes is not OpenAPI's.
        let paths = std::mem::take(&mut document.paths.paths);
        document.paths.paths =
            paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
        let json = serde_json::to_string(&document).expect("an OpenAPI document is plain data");
        let html = include_str!("docs.html").replace("__DOCUMENT__", &json.replace('<', "\\u003c"));
        Self { json: json.into(), html: html.into() }
    }
}

/// Describes this API.
#[utoipa::path(get, path = "/openapi.json", tag = "Server", responses((status = 200, description = "An OpenAPI document")))]
pub(crate) async fn openapi_json(Extension(rendered): Extension<Rendered>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], rendered.json.to_string())
}

/// Shows this API to people; needs nothing from elsewhere.
#[utoipa::path(get, path = "/docs", tag = "Server", responses((status = 200, description = "A page", content_type = "text/html")))]
pub(crate) async fn docs(Extension(rendered): Extension<Rendered>) -> Html<String> {
    Html(rendered.html.to_string())
}
