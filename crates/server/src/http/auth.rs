//! The API key, where one is set: every path but a few needs it.

use std::hint::black_box;

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;

use crate::model::api_error::{ApiError, ApiResult};
use crate::model::state::AppState;

/// Paths that probes and scrapers ask: no key is needed, and they answer in every phase.
pub(crate) const OPEN_PATHS: [&str; 3] = ["/health", "/version", "/metrics"];

/// Refuses requests without the key. Without a key in the settings, whatever a client sends is ignored.
pub(crate) async fn authenticate(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    if let Some(key) = &state.config().api_key
        && !OPEN_PATHS.contains(&request.uri().path())
        && !sent_key(&request).is_some_and(|sent| is_same(sent, key.as_bytes()))
    {
        return Err(ApiError::unauthorized());
    }
    Ok(next.run(request).await)
}

/// The key of a request: in the Authorization header, or where Anthropic's clients send it.
fn sent_key(request: &Request) -> Option<&[u8]> {
    bearer(request).or_else(|| Some(request.headers().get("x-api-key")?.as_bytes()))
}

/// What stands behind `Bearer` in the Authorization header.
fn bearer(request: &Request) -> Option<&[u8]> {
    let value = request.headers().get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Compares in a time that depends on the length of `sent` only.
fn is_same(sent: &[u8], key: &[u8]) -> bool {
    let mut difference = sent.len() ^ key.len();
    for (i, byte) in sent.iter().enumerate() {
        difference |= usize::from(byte ^ key[i % key.len()]);
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_is_the_same() {
        assert!(is_same(b"secret", b"secret"));
        for sent in [&b""[..], b"secre", b"secretsecret", b"secreT", b"xecret"] {
            assert!(!is_same(sent, b"secret"));
        }
    }

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
