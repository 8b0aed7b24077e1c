//! Request bodies: JSON, of bounded size, arriving in bounded time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use futures::StreamExt;

use crate::model::api_error::{ApiError, ApiResult};

/// Most bytes of a body.
pub(crate) const MAX_BODY_BYTES: usize = 32 << 20;
/// Longest wait for more of a body.
const BODY_IDLE: Duration = Duration::from_secs(30);

/// The bytes of a body that says of itself that it is JSON.
pub(crate) struct JsonBytes(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> ApiResult<Self> {
        if !is_json(request.headers()) {
            return Err(ApiError::unsupported_media_type());
        }
        if !is_plain(request.headers()) {
            return Err(ApiError::unsupported_encoding());
        }
        let length = request
            .headers()
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > MAX_BODY_BYTES as u64) {
            return Err(ApiError::body_too_large(MAX_BODY_BYTES));
        }
        read(request.into_body(), MAX_BODY_BYTES, BODY_IDLE).await.map(JsonBytes)
    }
}

async fn read(body: Body, limit: usize, idle: Duration) -> ApiResult<Bytes> {
    let mut stream = body.into_data_stream();
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    loop {
        let next = tokio::time::timeout(idle, stream.next())
            .await
            .map_err(|_| ApiError::body_timeout())?;
        let Some(chunk) = next else { break };
        let chunk = chunk.map_err(|_| ApiError::body_broken())?;
        if first.len() + rest.len() + chunk.len() > limit {
            return Err(ApiError::body_too_large(limit));
        }
        // Most bodies come in one piece, which is then not copied.
        if first.is_empty() {
            first = chunk;
        } else {
            rest.extend_from_slice(&chunk);
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    Ok([&first[..], &rest[..]].concat().into())
}

/// `application/json`, or another type that is JSON, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Whether the bytes are the text itself.
fn is_plain(headers: &HeaderMap) -> bool {
    let is_identity = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    headers.get_all(CONTENT_ENCODING).iter().all(is_identity)
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[test]
    fn only_json_is_json() {
        let is =
            |value: &str| is_json(&HeaderMap::from_iter([(CONTENT_TYPE, value.parse().unwrap())]));
        assert!(is("application/json"));
        assert!(is("Application/JSON; charset=utf-8"));
        assert!(is("application/vnd.api+json"));
        assert!(!is("text/plain"));
        assert!(!is("application/x-www-form-urlencoded"));
        assert!(!is_json(&HeaderMap::new()));
    }

    #[test]
    fn only_what_is_not_packed_is_plain() {
        let is = |value: &str| {
            is_plain(&HeaderMap::from_iter([(CONTENT_ENCODING, value.parse().unwrap())]))
        };
        assert!(is("identity") && is("Identity") && is_plain(&HeaderMap::new()));
        assert!(!is("gzip") && !is("identity, br"));
    }

    fn chunks(chunks: &[&'static str]) -> Body {
        Body::from_stream(stream::iter(chunks.to_vec()).map(Ok::<_, std::io::Error>))
    }

    #[tokio::test]
    async fn pieces_are_joined_up_to_the_limit() {
        let body = read(chunks(&["ab", "cd", "e"]), 5, BODY_IDLE).await.unwrap();
        assert_eq!(&body[..], b"abcde");
        assert_eq!(
            read(chunks(&["abc", "def"]), 5, BODY_IDLE).await,
            Err(ApiError::body_too_large(5))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_given_up() {
        let stalled = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read(stalled, 5, BODY_IDLE).await, Err(ApiError::body_timeout()));
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_an_error() {
        let broken =
            stream::iter([Ok(Bytes::from_static(b"a")), Err(std::io::Error::other("gone"))]);
        assert_eq!(
            read(Body::from_stream(broken), 5, BODY_IDLE).await,
            Err(ApiError::body_broken())
        );
    }
}
