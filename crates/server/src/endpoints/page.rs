//! Pages for browsers: one response each, whose style and script are parts of it. They load nothing from elsewhere.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// A page, with the policy that admits its own script and style alone.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) html: String,
    pub(super) policy: String,
}

impl Page {
    /// Puts a style and scripts into the marks of a page. The scripts are in the order in which they use each other.
    pub(super) fn new(html: &str, style: &str, scripts: &[&str]) -> Self {
        let (style, script) = (format!("\n{style}"), format!("\n{}", scripts.join("\n")));
        let html = html
            .replace("<!-- style -->", &format!("<style>{style}</style>"))
            .replace("<!-- script -->", &format!("<script type=\"module\">{script}</script>"));
        let policy = format!(
            "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            source(&script),
            source(&style)
        );
        Self { html, policy }
    }
}

impl IntoResponse for &Page {
    fn into_response(self) -> Response {
        let headers = [
            (CONTENT_SECURITY_POLICY, self.policy.clone()),
            (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
            (REFERRER_POLICY, "no-referrer".to_owned()),
            // Another version of the server has another page.
            (CACHE_CONTROL, "no-cache".to_owned()),
        ];
        (headers, Html(self.html.clone())).into_response()
    }
}

/// A text as a source of a content security policy.
fn source(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

/// Asserts that a page is whole and loads nothing.
#[cfg(test)]
pub(super) fn assert_alone(page: &Page, num_scripts: usize, max_bytes: usize) {
    let Page { html, policy } = page;
    assert!(html.len() < max_bytes, "{} bytes", html.len());
    assert!(!html.contains("<!-- style -->") && !html.contains("<!-- script -->"));
    // A part that ended a tag would end the script or the style too early.
    assert_eq!(
        (html.matches("</script").count(), html.matches("</style").count()),
        (num_scripts, 1)
    );
    for outside in ["src=\"http", "href=\"http", "@import", "url(http", " style=\"", " onclick="] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert_eq!(policy.matches("'sha256-").count(), 2);
    assert!(!policy.contains("unsafe"));
}
