//! The playground, a page for conversations with the model, and GET /.
//!
//! The page is one response: its styles and scripts are parts of it, and it loads nothing else. Its sources are in
//! `crates/server/playground`.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, VARY};
use axum::response::{IntoResponse, Response};
use candlepower_api::RootResponse;

use super::health::VERSION;
use super::page::Page;

const HTML: &str = include_str!("../../playground/index.html");
const STYLE: &str =
    concat!(include_str!("../../colors.css"), include_str!("../../playground/style.css"));

/// In the order in which they use each other.
const SCRIPTS: [&str; 13] = [
    include_str!("../../playground/dom.js"),
    include_str!("../../playground/markdown.js"),
    include_str!("../../playground/schema.js"),
    include_str!("../../playground/api.js"),
    include_str!("../../playground/conversation.js"),
    include_str!("../../playground/logprobs.js"),
    include_str!("../../playground/settings.js"),
    include_str!("../../playground/tools.js"),
    include_str!("../../playground/images.js"),
    include_str!("../../playground/copy_as.js"),
    include_str!("../../playground/storage.js"),
    include_str!("../../playground/turns.js"),
    include_str!("../../playground/main.js"),
];

/// Whether GET / shows the playground to browsers.
#[derive(Clone, Copy)]
pub(crate) struct Playground(pub(crate) bool);

static PAGE: LazyLock<Page> = LazyLock::new(|| Page::new(HTML, STYLE, &SCRIPTS));

/// Shows the playground to browsers. Other clients get the server's name and the paths of its pages; some send `HEAD /` first, to see
/// whether there is a server.
#[utoipa::path(
    get, path = "/", tag = "Server",
    responses((status = 200, description = "The server and paths of its pages, or the playground if HTML is accepted", body = RootResponse))
)]
pub(crate) async fn root(
    Extension(Playground(is_on)): Extension<Playground>,
    headers: HeaderMap,
) -> Response {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_browser = accepts.flat_map(|value| value.split(',')).any(|kind| {
        let kind = kind.split(';').next().unwrap_or_default();
        kind.trim().eq_ignore_ascii_case("text/html")
    });
    let varies = [(VARY, "accept")];
    if !is_on || !is_browser {
        let root = RootResponse {
            name: "candlepower",
            version: VERSION,
            docs: "/docs",
            openapi: "/openapi.json",
            health: "/health",
        };
        return (varies, Json(root)).into_response();
    }
    (varies, &*PAGE).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::page::assert_alone;

    #[test]
    fn the_page_is_whole_small_and_without_outside_parts() {
        assert_alone(&PAGE, 1, 150_000);
    }
}
