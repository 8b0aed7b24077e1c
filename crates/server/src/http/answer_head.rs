//! Layers around responses: the header that lists ignored parts of a request, and the format of errors.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::generation::request::ReportedNotHeld;
use crate::model::api_error::ApiError;

/// Response header that lists the unsupported parts of the request, which were ignored.
pub(crate) const X_NOT_HELD: HeaderName = HeaderName::from_static("x-candlepower-not-held");

/// Adds the header to responses if a part of the request was ignored.
pub(crate) async fn report_not_held(mut request: Request, next: Next) -> Response {
    let reported = ReportedNotHeld::default();
    request.extensions_mut().insert(reported.clone());
    let mut response = next.run(request).await;
    let line = reported.not_held().map(|not_held| HeaderValue::from_str(&not_held.line()));
    // The line has visible ASCII characters only, which are always a valid header value.
    if let Some(Ok(line)) = line {
        response.headers_mut().insert(X_NOT_HELD, line);
    }
    response
}

/// The prefix of paths whose errors have the format of Anthropic's API.
const ANTHROPIC_PATHS: &str = "/v1/messages";

/// Converts errors to the format that the clients of their path expect.
pub(crate) async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let rest = path.strip_prefix(ANTHROPIC_PATHS);
    // A path such as `/v1/messages_x` only begins like the prefix.
    let is_anthropic = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let response = next.run(request).await;
    if !is_anthropic {
        return response;
    }
    match response.extensions().get::<ApiError>().map(ApiError::to_anthropic) {
        None => response,
        Some(body) => response.map(|_| Body::from(body.to_string())),
    }
}
