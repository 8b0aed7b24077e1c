//! GET /openapi.json, and GET /docs, a page that shows it.

use std::path::Path;
use std::sync::Arc;

use axum::extract::Extension;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse};
use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{RefOr, Server};

use crate::config::{DefaultMaxTokens, ServeConfig};

/// The head of the document; the router adds the endpoints.
#[derive(OpenApi)]
#[openapi(
    info(title = "candlepower", description = "A self-hosted, OpenAI-compatible inference server."),
    components(schemas(candlepower_api::ChatCompletionChunk<'static>)),
    tags(
        (name = "Generation", description = "Generate text"),
        (name = "Embeddings", description = "Embeddings of texts, and scores of text pairs"),
        (name = "Models", description = "The served model"),
        (name = "Tokens", description = "Tokenize, detokenize and count tokens"),
        (name = "Server", description = "Health, metrics and documentation"),
    )
)]
struct Document;

/// Names of the authentication schemes in the document.
const BEARER: &str = "bearer";
const HEADER: &str = "header";

/// The document without endpoints.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    let header = SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("x-api-key")));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(BEARER, bearer);
    components.add_security_scheme(HEADER, header);
    document
}

/// The document as JSON and as a page.
#[derive(Clone)]
pub(crate) struct Rendered {
    json: Arc<str>,
    html: Arc<str>,
}

impl Rendered {
    /// Renders the document with its endpoints. Those at `keyless` paths need no key.
    pub(crate) fn new(
        mut document: utoipa::openapi::OpenApi,
        config: &ServeConfig,
        keyless: impl Iterator<Item = &'static str>,
    ) -> Self {
        // `{*id}` is the router's syntax for a parameter with slashes; OpenAPI has none.
        let paths = std::mem::take(&mut document.paths.paths);
        document.paths.paths =
            paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
        for (path, example) in examples(&model_name(config)) {
            let item = document.paths.paths.get_mut(path);
            let body = item.and_then(|item| item.post.as_mut()?.request_body.as_mut());
            if let Some(RefOr::T(body)) = body
                && let Some(RefOr::T(content)) = body.content.get_mut("application/json")
            {
                content.example = Some(example);
            }
        }
        say_who_may_ask(&mut document, config.needs_key(), keyless);
        let about = document.info.description.get_or_insert_default();
        about.push_str(&match config.default_max_tokens {
            DefaultMaxTokens::Tokens(tokens) => format!(
                " Answers end after {tokens} tokens unless the request sets `max_tokens`; the server's --default-max-tokens changes this default."
            ),
            DefaultMaxTokens::Max => " Answers may use the rest of the context unless the request sets `max_tokens`.".to_owned(),
        });
        let json = serde_json::to_string(&document).expect("an OpenAPI document is plain data");
        let html = include_str!("docs.html").replace("__DOCUMENT__", &json.replace('<', "\\u003c"));
        Self { json: json.into(), html: html.into() }
    }
}

/// Adds the authentication schemes, the paths that need no key, and the server's URL.
fn say_who_may_ask(
    document: &mut utoipa::openapi::OpenApi,
    needs_key: bool,
    keyless: impl Iterator<Item = &'static str>,
) {
    document.servers = Some(vec![Server::new("/")]);
    let schemes = [BEARER, HEADER].map(|scheme| SecurityRequirement::new(scheme, [""; 0]));
    // Without keys in the settings, a key that a client sends is ignored.
    let none = (!needs_key).then(SecurityRequirement::default);
    document.security = Some(none.into_iter().chain(schemes).collect());
    for path in keyless {
        let item = document.paths.paths.get_mut(path);
        if let Some(operation) = item.and_then(|item| item.get.as_mut()) {
            operation.security = Some(Vec::new());
        }
    }
}

/// The model's name in examples: the last part of a path, which is the name that requests use.
fn model_name(config: &ServeConfig) -> String {
    let model = config.model.as_deref().unwrap_or("demo");
    let is_path = model.starts_with(['/', '.']) || model.ends_with(".gguf");
    let name = Path::new(model).file_stem().filter(|_| is_path);
    let name = name.map_or(model.into(), |name| name.to_string_lossy());
    config.served_model_name.first().cloned().unwrap_or_else(|| name.into_owned())
}

/// Example requests of the most used endpoints.
fn examples(model: &str) -> Vec<(&'static str, Value)> {
    let question = json!([{"role": "user", "content": "Name the capital of France."}]);
    vec![
        ("/v1/chat/completions", json!({"model": model, "messages": question, "max_tokens": 64})),
        (
            "/v1/completions",
            json!({"model": model, "prompt": "The capital of France is", "max_tokens": 8}),
        ),
        (
            "/v1/responses",
            json!({"model": model, "input": "Name the capital of France.", "max_output_tokens": 64}),
        ),
        ("/v1/messages", json!({"model": model, "messages": question, "max_tokens": 64})),
        ("/v1/messages/count_tokens", json!({"model": model, "messages": question})),
        ("/generate", json!({"text": "The capital of France is", "choices": ["Paris", "Rome"]})),
        ("/v1/embeddings", json!({"model": model, "input": ["A text", "Another text"]})),
        (
            "/v1/rerank",
            json!({"model": model, "query": "Name the capital of France.", "documents": ["Paris", "Rome"]}),
        ),
        (
            "/v1/score",
            json!({"model": model, "text_1": "Name the capital of France.", "text_2": ["Paris", "Rome"]}),
        ),
        ("/tokenize", json!({"model": model, "prompt": "The capital of France"})),
        ("/detokenize", json!({"model": model, "tokens": [1, 2, 3]})),
    ]
}

/// Returns the OpenAPI document of this server.
#[utoipa::path(get, path = "/openapi.json", tag = "Server", responses((status = 200, description = "An OpenAPI document")))]
pub(crate) async fn openapi_json(Extension(rendered): Extension<Rendered>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], rendered.json.to_string())
}

/// Shows the API as a page, which loads nothing from other servers.
#[utoipa::path(get, path = "/docs", tag = "Server", responses((status = 200, description = "An HTML page", content_type = "text/html")))]
pub(crate) async fn docs(Extension(rendered): Extension<Rendered>) -> Html<String> {
    Html(rendered.html.to_string())
}
