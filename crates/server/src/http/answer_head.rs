//! Layers around answers: the header that lists the parts of a request that were left out, and the shape of errors.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::generation::request::Told;
use crate::model::api_error::ApiError;

/// Says which parts of the request the server neither runs nor holds.
pub(crate) const X_NOT_HELD: HeaderName = HeaderName::from_static("x-candlepower-not-held");

/// Adds the header to answers of requests of which a part was left out.
pub(crate) async fn tell_not_held(mut request: Request, next: Next) -> Response {
    let told = Told::default();
    request.extensions_mut().insert(told.clone());
    let mut response = next.run(request).await;
    let line = told.not_held().map(|not_held| HeaderValue::from_str(&not_held.line()));
    // A line of visible characters is always a value.
    if let Some(Ok(line)) = line {
        response.headers_mut().insert(X_NOT_HELD, line);
    }
    response
}

/// The paths whose errors have the shape of Anthropic's API.
const ANTHROPIC_PATHS: &str = "/v1/messages";

/// Gives errors the shape that the clients of their path read.
pub(crate) async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let rest = path.strip_prefix(ANTHROPIC_PATHS);
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
