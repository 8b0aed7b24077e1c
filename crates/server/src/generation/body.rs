//! Request bodies: JSON with limits of size and time.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use futures::StreamExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::model::api_error::{ApiError, ApiResult};
use crate::model::body_memory::BodyMemory;

/// Maximum bytes of a body.
pub(crate) const MAX_BODY_BYTES: usize = 32 << 20;
/// Maximum wait for the next part of a body.
const BODY_IDLE: Duration = Duration::from_secs(30);
/// Minimum rate of a body, in bytes per second. A time limit between parts alone would let a client send one byte at a time for years.
const LEAST_RATE: usize = 8 << 10;

/// The bytes of a body with a JSON content type.
#[derive(Debug)]
pub(crate) struct JsonBytes {
    pub(crate) bytes: Bytes,
    /// Their share of the memory for bodies, released on drop.
    _memory: Vec<OwnedSemaphorePermit>,
}

impl JsonBytes {
    pub(crate) async fn of(request: Request, memory: &BodyMemory) -> ApiResult<Self> {
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
        read(request.into_body(), MAX_BODY_BYTES, memory).await
    }
}

async fn read(body: Body, limit: usize, memory: &BodyMemory) -> ApiResult<JsonBytes> {
    let began = Instant::now();
    let mut stream = body.into_data_stream();
    let mut first = Bytes::new();
    let mut rest = Vec::new();
    let mut taken = Vec::new();
    loop {
        let received = first.len() + rest.len();
        let earned = Duration::from_secs((received / LEAST_RATE) as u64);
        let next = tokio::time::timeout_at(began + BODY_IDLE + earned, stream.next());
        let next = tokio::time::timeout(BODY_IDLE, next).await;
        let next = next.ok().and_then(Result::ok).ok_or_else(ApiError::body_timeout)?;
        let Some(chunk) = next else { break };
        let chunk = chunk.map_err(|_| ApiError::body_broken())?;
        if received + chunk.len() > limit {
            return Err(ApiError::body_too_large(limit));
        }
        // A body of several pieces is joined in a buffer that doubles when it is full.
        let after = received + chunk.len();
        let needed = if received == 0 { after } else { 2 * after };
        let held = taken.iter().map(OwnedSemaphorePermit::num_permits).sum::<usize>() * 1024;
        if needed > held {
            taken.push(memory.take(needed - held)?);
        }
        // Most bodies arrive in one piece, which is not copied.
        if received == 0 {
            first = chunk;
            continue;
        }
        rest.extend_from_slice(&std::mem::take(&mut first));
        rest.extend_from_slice(&chunk);
    }
    let bytes = if rest.is_empty() { first } else { rest.into() };
    Ok(JsonBytes { bytes, _memory: taken })
}

/// Whether the content type is `application/json` or another JSON type, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else {
        return false;
    };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Whether the body is not compressed.
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

    async fn read_with(body: Body, limit: usize, memory: &BodyMemory) -> ApiResult<Bytes> {
        read(body, limit, memory).await.map(|body| body.bytes)
    }

    async fn read_all(body: Body, limit: usize) -> ApiResult<Bytes> {
        read_with(body, limit, &BodyMemory::new(1 << 20)).await
    }

    #[tokio::test]
    async fn pieces_are_joined_up_to_the_limit() {
        let body = read_all(chunks(&["ab", "cd", "e"]), 5).await.unwrap();
        assert_eq!(&body[..], b"abcde");
        assert_eq!(read_all(chunks(&["abc", "def"]), 5).await, Err(ApiError::body_too_large(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_given_up() {
        let stalled = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read_all(stalled, 5).await, Err(ApiError::body_timeout()));
    }

    /// A body with one chunk per second.
    fn slow(bytes: usize, count: usize) -> Body {
        Body::from_stream(stream::iter(0..count).then(move |_| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, std::io::Error>(Bytes::from(vec![b'a'; bytes]))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_a_least_rate() {
        let began = Instant::now();
        assert_eq!(read_all(slow(1, 1000), 5000).await, Err(ApiError::body_timeout()));
        assert!(began.elapsed() < BODY_IDLE + Duration::from_secs(2));
        let body = read_all(slow(LEAST_RATE, 60), 1 << 20).await.unwrap();
        assert_eq!(body.len(), 60 * LEAST_RATE);
    }

    #[tokio::test]
    async fn bodies_share_their_memory_and_give_it_back() {
        let memory = BodyMemory::new(64 << 10);
        let large = || Body::from(vec![b'a'; 40 << 10]);
        let held = read(large(), 1 << 20, &memory).await.unwrap();
        let refused = read_with(large(), 1 << 20, &memory).await;
        assert_eq!(refused, Err(ApiError::bodies_full(64 << 10)));
        drop(held);
        read_with(large(), 1 << 20, &memory).await.unwrap();
        // A body in parts counts as a whole.
        let parts = || {
            let chunk = Bytes::from(vec![b'a'; 4 << 10]);
            let chunks = (0..20).map(move |_| Ok::<_, std::io::Error>(chunk.clone()));
            Body::from_stream(stream::iter(chunks))
        };
        assert!(read_with(parts(), 1 << 20, &memory).await.is_err());
        read_with(parts(), 1 << 20, &BodyMemory::new(512 << 10)).await.unwrap();
        assert_eq!(memory.free_bytes(), 64 << 10, "the permits of a refused body are released");
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_an_error() {
        let broken =
            stream::iter([Ok(Bytes::from_static(b"a")), Err(std::io::Error::other("gone"))]);
        assert_eq!(read_all(Body::from_stream(broken), 5).await, Err(ApiError::body_broken()));
    }
}
