//! GET /openapi.json, and GET /docs, a page that shows it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use axum::extract::Extension;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use utoipa::OpenApi;
use utoipa::openapi::example::ExampleBuilder;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{RefOr, Server};

use super::page::Page;
use crate::config::{DefaultMaxTokens, ServeConfig};

const HTML: &str = include_str!("../../reference/index.html");
const STYLE: &str =
    concat!(include_str!("../../colors.css"), include_str!("../../reference/style.css"));

/// In the order in which they use each other.
const SCRIPTS: [&str; 4] = [
    include_str!("../../reference/dom.js"),
    include_str!("../../reference/types.js"),
    include_str!("../../reference/try.js"),
    include_str!("../../reference/main.js"),
];

/// The name of the model is a placeholder there.
const EXAMPLES: &str = include_str!("../../reference/examples.json");

/// The id in examples of stored responses.
const RESPONSE_ID: &str = "resp_0123456789abcdef";

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

/// The document as JSON and as a page, rendered for the first request: most servers never get one.
#[derive(Clone)]
pub(crate) struct Rendered(Arc<LazyLock<Pages, Box<dyn FnOnce() -> Pages + Send>>>);

struct Pages {
    json: String,
    page: Page,
}

impl Rendered {
    /// The document with its endpoints. Those at `keyless` paths need no key.
    pub(crate) fn new(
        document: utoipa::openapi::OpenApi,
        config: &ServeConfig,
        keyless: impl Iterator<Item = &'static str> + Send + 'static,
    ) -> Self {
        let config = config.clone();
        Self(Arc::new(LazyLock::new(Box::new(move || Pages::new(document, &config, keyless)))))
    }
}

impl Pages {
    fn new(
        mut document: utoipa::openapi::OpenApi,
        config: &ServeConfig,
        keyless: impl Iterator<Item = &'static str>,
    ) -> Self {
        // `{*id}` is the router's syntax for a parameter with slashes; OpenAPI has none.
        let paths = std::mem::take(&mut document.paths.paths);
        document.paths.paths =
            paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
        let model = model_name(config);
        let examples = examples(&model);
        for (path, item) in &mut document.paths.paths {
            for operation in operations(item) {
                add_examples(operation, path, examples.get(path), &model);
            }
        }
        describe_choices(&mut document);
        say_who_may_ask(&mut document, config.needs_key(), keyless);
        let about = document.info.description.get_or_insert_default();
        about.push_str(&match config.default_max_tokens {
            DefaultMaxTokens::Tokens(tokens) => format!(
                " Answers end after {tokens} tokens unless the request sets `max_tokens`; the server's --default-max-tokens changes this default."
            ),
            DefaultMaxTokens::Max => " Answers may use the rest of the context unless the request sets `max_tokens`.".to_owned(),
        });
        let json = serde_json::to_string(&document).expect("an OpenAPI document is plain data");
        // The document is data of the page, which needs no hash.
        let mut page = Page::new(HTML, STYLE, &SCRIPTS);
        page.html = page.html.replace("__DOCUMENT__", &json.replace('<', "\\u003c"));
        Self { json, page }
    }
}

/// Adds the authentication schemes, the paths that need no key, and the server's URL.
fn say_who_may_ask(
    document: &mut utoipa::openapi::OpenApi,
    needs_key: bool,
    keyless: impl Iterator<Item = &'static str>,
) {
    // Relative to the document, which may be behind a prefix.
    document.servers = Some(vec![Server::new(".")]);
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

/// The operations of a path.
fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, post, delete, .. } = item;
    [get, post, delete].into_iter().filter_map(Option::as_mut)
}

/// Adds examples of the body and of the parameters.
fn add_examples(
    operation: &mut Operation,
    path: &str,
    bodies: Option<&Vec<BodyExample>>,
    model: &str,
) {
    let content = operation.request_body.as_mut().and_then(|body| match body {
        RefOr::T(body) => body.content.get_mut("application/json"),
        RefOr::Ref(_) => None,
    });
    if let (Some(RefOr::T(content)), Some(bodies)) = (content, bodies) {
        // The names are in the order of the examples.
        content.examples = (1..)
            .zip(bodies)
            .map(|(number, BodyExample { summary, value })| {
                let example = ExampleBuilder::new().summary(summary).value(Some(value.clone()));
                (format!("example-{number}"), RefOr::T(example.build()))
            })
            .collect();
    }
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let example = match parameter.name.as_str() {
            "id" if path.contains("/models/") => model,
            "id" => RESPONSE_ID,
            _ => continue,
        };
        if let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema {
            schema.examples.push(example.into());
        }
    }
}

/// Describes fields that may be null or of another schema. The derived document describes the schema alone there.
fn describe_choices(document: &mut utoipa::openapi::OpenApi) {
    fn describe(schema: &mut RefOr<Schema>) {
        match schema {
            RefOr::T(Schema::Object(object)) => {
                object.properties.values_mut().for_each(describe);
            }
            RefOr::T(Schema::AllOf(all)) => all.items.iter_mut().for_each(describe),
            RefOr::T(Schema::OneOf(one)) => {
                let described = one.items.iter().find_map(|item| match item {
                    RefOr::Ref(item) => {
                        Some(item.description.clone()).filter(|text| !text.is_empty())
                    }
                    RefOr::T(_) => None,
                });
                one.description = one.description.take().or(described);
                one.items.iter_mut().for_each(describe);
            }
            RefOr::T(Schema::AnyOf(any)) => any.items.iter_mut().for_each(describe),
            RefOr::T(_) | RefOr::Ref(_) => {}
        }
    }
    let components = document.components.get_or_insert_default();
    components.schemas.values_mut().for_each(describe);
}

/// An example of a body, with a title.
#[derive(Deserialize)]
struct BodyExample {
    summary: String,
    value: Value,
}

/// Examples of bodies by path. A server with a fitting model answers each of them.
fn examples(model: &str) -> BTreeMap<String, Vec<BodyExample>> {
    let mut examples: BTreeMap<String, Vec<BodyExample>> =
        serde_json::from_str(EXAMPLES).expect("the file is part of the program");
    for example in examples.values_mut().flatten() {
        if let Some(name) = example.value.get_mut("model") {
            *name = model.into();
        }
    }
    examples
}

/// Returns the OpenAPI document of this server.
#[utoipa::path(get, path = "/openapi.json", tag = "Server", responses((status = 200, description = "An OpenAPI document")))]
pub(crate) async fn openapi_json(Extension(rendered): Extension<Rendered>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], rendered.0.json.clone())
}

/// Shows the API as a page, which loads nothing from other servers.
#[utoipa::path(get, path = "/docs", tag = "Server", responses((status = 200, description = "An HTML page", content_type = "text/html")))]
pub(crate) async fn docs(Extension(rendered): Extension<Rendered>) -> Response {
    (&rendered.0.page).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::page::assert_alone;

    #[test]
    fn the_page_is_whole_and_without_outside_parts() {
        // The second script is the document, which comes in later.
        assert_alone(&Page::new(HTML, STYLE, &SCRIPTS), 2, 60_000);
    }
}
