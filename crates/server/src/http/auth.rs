//! Authentication by API keys. If the settings have keys, every path except a few needs one.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;

use crate::config::ServeConfig;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::keys::ApiKey;
use crate::model::state::AppState;

/// Paths of probes and scrapers. They need no key, and answer in every phase.
pub(crate) const OPEN_PATHS: [&str; 3] = ["/health", "/version", "/metrics"];

/// Pages of documentation, which contain nothing confidential. They need no key, because a browser cannot send one.
const DOCS: [&str; 3] = ["/", "/docs", "/openapi.json"];

/// The paths that never need a key.
pub(crate) fn keyless_paths(config: &ServeConfig) -> impl Iterator<Item = &'static str> + use<> {
    let has_open_docs = !config.private_docs;
    OPEN_PATHS.into_iter().chain(DOCS.into_iter().filter(move |_| has_open_docs))
}

/// Refuses requests without a known key. Adds the [`ApiKey`] to other requests and to their responses. Without keys in the settings,
/// a key that a client sends is ignored.
pub(crate) async fn authenticate(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> ApiResult<Response> {
    let path = request.uri().path();
    if !state.config().needs_key() || keyless_paths(state.config()).any(|open| open == path) {
        return Ok(next.run(request).await);
    }
    let key = sent_key(&request).and_then(|sent| state.keys().find(sent));
    let key: Arc<ApiKey> = key.ok_or_else(ApiError::unauthorized)?;
    request.extensions_mut().insert(Arc::clone(&key));
    let mut response = next.run(request).await;
    // The outer layer, which counts and logs requests by key, sees only the response.
    response.extensions_mut().insert(key);
    Ok(response)
}

/// The key in the `Authorization` header, or in `x-api-key`, which Anthropic's clients use.
fn sent_key(request: &Request) -> Option<&[u8]> {
    bearer(request).or_else(|| Some(request.headers().get("x-api-key")?.as_bytes()))
}

/// The token after `Bearer` in the `Authorization` header.
fn bearer(request: &Request) -> Option<&[u8]> {
    let value = request.headers().get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    // RFC 9110 has schemes of authentication in any case, section 11.1.
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_is_bearer() {
        let header = |value: &str| {
            let request = Request::builder()
                .header(AUTHORIZATION, value)
                .body(axum::body::Body::empty())
                .unwrap();
            bearer(&request).map(<[u8]>::to_vec)
        };
        assert_eq!(header("Bearer k"), Some(b"k".to_vec()));
        assert_eq!(header("bearer  k "), Some(b"k".to_vec()));
        assert_eq!(header("Basic k"), None);
        assert_eq!(header("Bearer"), None);
    }

    #[test]
    fn the_key_may_stand_in_a_header_of_its_own() {
        let request = Request::builder().header("x-api-key", "k").body(axum::body::Body::empty());
        assert_eq!(sent_key(&request.unwrap()), Some(&b"k"[..]));
    }
}
