//! Answers of the fake hub: the bytes of a file, whole or in part, and refusals.

use std::ops::Range;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::Shared;
use super::faults::{Fault, Spot, body};

/// A file that will be sent.
pub(super) struct Content {
    /// The repository's id.
    pub(super) repository: String,
    /// The file's path in it.
    pub(super) path: String,
    pub(super) bytes: Bytes,
    /// Without quotes.
    pub(super) etag: String,
}

/// Answers a GET or HEAD for a file's contents.
pub(super) fn answer(
    content: Content,
    method: &Method,
    asked: &HeaderMap,
    shared: &Shared,
) -> Result<Response, Refusal> {
    let Content { repository, path, bytes, etag } = content;
    let fault = if method == Method::GET {
        take_fault(shared, &repository, &Spot::Content(path))?
    } else {
        None
    };
    let etag = format!("\"{etag}\"");
    let (status, part) = match part(asked, bytes.len(), &etag) {
        Part::Whole => (StatusCode::OK, 0..bytes.len()),
        Part::Range(range) => (StatusCode::PARTIAL_CONTENT, range),
        Part::Outside => {
            let total = format!("bytes */{}", bytes.len());
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, [(header::CONTENT_RANGE, total)])
                .into_response());
        }
    };
    let mut headers = HeaderMap::new();
    let mut set = |name, value: String| {
        headers.insert(name, HeaderValue::from_str(&value).expect("letters of ASCII"));
    };
    set(header::ACCEPT_RANGES, "bytes".into());
    set(header::CONTENT_LENGTH, part.len().to_string());
    set(header::CONTENT_TYPE, "application/octet-stream".into());
    set(header::ETAG, etag);
    if status == StatusCode::PARTIAL_CONTENT {
        let last = part.end - 1;
        set(header::CONTENT_RANGE, format!("bytes {}-{last}/{}", part.start, bytes.len()));
    }
    if method == Method::HEAD {
        return Ok((status, headers, Body::empty()).into_response());
    }
    let mut bytes = bytes.slice(part);
    // The length stays right, so only the hash shows the fault.
    if fault == Some(Fault::WrongBytes) {
        bytes = bytes.iter().map(|byte| !byte).collect();
    }
    Ok((status, headers, body(bytes, fault, shared.released.subscribe())).into_response())
}

/// The requested part of a file.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Whole,
    Range(Range<usize>),
    Outside,
}

/// The part that `Range` and `If-Range` request. An unknown form requests the whole file.
fn part(asked: &HeaderMap, length: usize, etag: &str) -> Part {
    let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    // Another version of the file must not be joined to the part that the client has.
    if text(header::IF_RANGE).is_some_and(|condition| condition != etag) {
        return Part::Whole;
    }
    let ends = text(header::RANGE).and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let range = match ends.map(|(first, last)| (first.parse(), last.parse::<usize>(), last)) {
        Some((Ok(first), Ok(last), _)) => first..last.saturating_add(1).min(length),
        Some((Ok(first), Err(_), "")) => first..length,
        // A range without a first byte counts from the end.
        Some((Err(_), Ok(count), _)) => length.saturating_sub(count)..length,
        _ => return Part::Whole,
    };
    if range.is_empty() { Part::Outside } else { Part::Range(range) }
}

/// The next fault for this spot; an error if it replaces the answer.
pub(super) fn take_fault(
    shared: &Shared,
    repository: &str,
    spot: &Spot,
) -> Result<Option<Fault>, Refusal> {
    let mut repositories = shared.repositories();
    let fault = repositories.get_mut(repository).and_then(|repository| repository.take_fault(spot));
    match fault {
        Some(Fault::Status(status)) => Err(Refusal::failing(status, None)),
        Some(Fault::RetryAfter(status, seconds)) => Err(Refusal::failing(status, Some(seconds))),
        other => Ok(other),
    }
}

/// A refusal in the hub's own form.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// `X-Error-Code`.
    pub(super) code: Option<&'static str>,
    /// `X-Error-Message`, and the body's message.
    pub(super) message: String,
    /// `X-Repo-Commit`, if the commit is known.
    pub(super) commit: Option<String>,
    /// `Retry-After`, in seconds.
    pub(super) retry_after: Option<u32>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, code: None, message: message.into(), commit: None, retry_after: None }
    }

    pub(super) fn coded(
        status: StatusCode,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self { code: Some(code), ..Self::new(status, message) }
    }

    fn failing(status: u16, retry_after: Option<u32>) -> Self {
        let status = StatusCode::from_u16(status).expect("a fault's status is one of HTTP");
        let message = status.canonical_reason().unwrap_or("This fault was asked for");
        Self { retry_after, ..Self::new(status, message) }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({"error": self.message}))).into_response();
        let headers = [
            ("x-error-code", self.code.map(str::to_owned)),
            ("x-error-message", Some(self.message)),
            ("x-repo-commit", self.commit),
            ("retry-after", self.retry_after.map(|seconds| seconds.to_string())),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                let value = HeaderValue::from_str(&value).expect("letters of ASCII");
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}
