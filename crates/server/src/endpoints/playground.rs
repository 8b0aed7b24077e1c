//! The playground, a page for conversations with the model, and GET /.
//!
//! The page is one response: its styles and scripts are parts of it, and it loads nothing else. Its sources are in
//! `crates/server/playground`.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use candlepower_api::RootResponse;
use sha2::{Digest, Sha256};

use super::health::VERSION;

const HTML: &str = include_str!("../../playground/index.html");
const STYLE: &str = include_str!("../../playground/style.css");

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

/// The page, with the policy that admits its own script and style alone.
struct Page {
    html: String,
    policy: String,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let (style, script) = (format!("\n{STYLE}"), format!("\n{}", SCRIPTS.join("\n")));
    let html = HTML
        .replace("<!-- style -->", &format!("<style>{style}</style>"))
        .replace("<!-- script -->", &format!("<script type=\"module\">{script}</script>"));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source(&script),
        source(&style)
    );
    Page { html, policy }
});

/// A text as a source of a content security policy.
fn source(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

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
    let headers = [
        (CONTENT_SECURITY_POLICY, PAGE.policy.as_str()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // Another version of the server has another page.
        (CACHE_CONTROL, "no-cache"),
    ];
    (varies, headers, Html(PAGE.html.as_str())).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_small_and_without_outside_parts() {
        let Page { html, policy } = &*PAGE;
        assert!(html.len() < 150_000, "{} bytes", html.len());
        assert!(!html.contains("<!-- style -->") && !html.contains("<!-- script -->"));
        // A part that ended a tag would end the script or the style too early.
        assert_eq!((html.matches("</script").count(), html.matches("</style").count()), (1, 1));
        for outside in
            ["src=\"http", "href=\"http", "@import", "url(http", " style=\"", " onclick="]
        {
            assert!(!html.contains(outside), "{outside}");
        }
        assert_eq!(policy.matches("'sha256-").count(), 2);
        assert!(!policy.contains("unsafe"));
    }
}
