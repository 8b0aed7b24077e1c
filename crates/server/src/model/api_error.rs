//! `ApiError`, which maps errors of requests to HTTP statuses and bodies.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use candlepower_api::{ErrorBody, ErrorResponse, FieldError, excerpt};
use candlepower_engine::SubmitError;
use serde_json::{Value, json};

/// An error of a request: status and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    /// Value of `Retry-After`, in seconds.
    retry_after: u64,
}

/// A result of a handler.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

const INVALID_REQUEST: &str = "invalid_request_error";
const SERVER_ERROR: &str = "server_error";

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        // A second is long enough for a sequence to end, and most errors have no other estimate.
        Self { status, kind, code: None, param: None, message, retry_after: 1 }
    }

    fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// 400: the value of the field `param` is invalid.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
                .with_code("invalid_value")
        }
    }

    /// 400: the value of the field `param` is invalid, with a more specific code.
    pub(crate) fn invalid_as(code: &'static str, param: &str, message: &str) -> Self {
        Self::invalid(param, message).with_code(code)
    }

    /// 400: the model takes no images.
    pub(crate) fn images_not_taken(param: &str, message: &str) -> Self {
        Self::invalid(param, message).with_code("image_input_not_supported")
    }

    /// 400: the prompt is longer than the context.
    pub(crate) fn context_length(param: impl Into<String>, message: String) -> Self {
        Self::invalid(param, message).with_code("context_length_exceeded")
    }

    /// 400: the constraint turned out to be too complex while the output was generated.
    pub(crate) fn too_complex(reason: &str) -> Self {
        let message = format!("Generation was stopped: {reason}.");
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
            .with_code("grammar_too_complex")
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        let message = "The API key is missing or wrong: send it in the header `Authorization: Bearer KEY` or `x-api-key: KEY`.";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
            .with_code("invalid_api_key")
    }

    /// 404: the model does not exist.
    pub(crate) fn model_not_found(name: &str) -> Self {
        let message = format!(
            "The model `{}` does not exist; GET /v1/models lists the models.",
            excerpt(name)
        );
        Self {
            param: Some("model".into()),
            ..Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, message)
                .with_code("model_not_found")
        }
    }

    /// 404: the object that `param` or the path names does not exist.
    pub(crate) fn not_found(
        param: Option<&str>,
        code: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            param: param.map(str::to_owned),
            ..Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, message).with_code(code)
        }
    }

    /// 404: the path does not exist.
    pub(crate) fn path_not_found(method: &str, path: &str) -> Self {
        // Endpoints of vLLM whose names say nothing of ours.
        let hint = match path {
            "/pooling" | "/v1/pooling" => "POST /v1/embeddings makes one vector of each text; ",
            "/classify" | "/v1/classify" => "POST /v1/score and /v1/rerank score pairs of texts; ",
            _ => "",
        };
        let message = format!(
            "There is no {} {}; {hint}GET /openapi.json lists the endpoints.",
            excerpt(method),
            excerpt(path)
        );
        Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, message).with_code("not_found")
    }

    /// 405; the router adds `Allow`.
    pub(crate) fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("{} does not take {}.", excerpt(path), excerpt(method));
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID_REQUEST, message)
            .with_code("method_not_allowed")
    }

    /// 408: the body did not arrive in time.
    pub(crate) fn body_timeout() -> Self {
        let message = "The request body did not arrive in time.";
        Self::new(StatusCode::REQUEST_TIMEOUT, INVALID_REQUEST, message)
            .with_code("request_timeout")
    }

    /// 400: the body is incomplete.
    pub(crate) fn body_broken() -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, "The request body is incomplete.")
            .with_code("invalid_body")
    }

    /// 413.
    pub(crate) fn body_too_large(limit: usize) -> Self {
        let message = format!("The request body is larger than the limit of {} MiB.", limit >> 20);
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, message)
            .with_code("request_too_large")
    }

    /// 503: the bodies of other requests fill the memory for bodies.
    pub(crate) fn bodies_full(limit: u64) -> Self {
        Self::unavailable(format!(
            "The bodies of running requests fill the {} MiB for request bodies (max_body_memory). Try again later.",
            limit >> 20
        ))
    }

    /// 503: the limit of connections is reached.
    pub(crate) fn too_many_connections() -> Self {
        Self::unavailable(
            "The server has reached its limit of connections (max_connections). Try again later.",
        )
    }

    /// 400: the host of the request is missing or ambiguous.
    pub(crate) fn bad_host(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message).with_code("invalid_host")
    }

    /// 421: the request is for another host.
    pub(crate) fn misdirected(host: &str) -> Self {
        let host = excerpt(host);
        let message = format!(
            "This server does not accept the host {host}: start it with --allowed-hosts {host}, or with an API key."
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, INVALID_REQUEST, message)
            .with_code("misdirected_request")
    }

    /// 501.
    pub(crate) fn unknown_transfer_encoding() -> Self {
        let message = "The transfer coding is not supported: use `Transfer-Encoding: chunked`, or leave it out.";
        Self::new(StatusCode::NOT_IMPLEMENTED, INVALID_REQUEST, message)
            .with_code("unknown_transfer_encoding")
    }

    /// 417.
    pub(crate) fn unknown_expectation() -> Self {
        let message =
            "The expectation is not supported: use `Expect: 100-continue`, or leave it out.";
        Self::new(StatusCode::EXPECTATION_FAILED, INVALID_REQUEST, message)
            .with_code("unknown_expectation")
    }

    /// 415.
    pub(crate) fn unsupported_media_type() -> Self {
        let message = "The request body must be JSON: send `Content-Type: application/json`.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, message)
            .with_code("unsupported_media_type")
    }

    /// 415: the body is compressed.
    pub(crate) fn unsupported_encoding() -> Self {
        let message = "The request body must not be compressed: leave `Content-Encoding` out.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, message)
            .with_code("unsupported_content_encoding")
    }

    /// 429: the limit of running and waiting choices is reached.
    pub(crate) fn queue_full(in_flight: usize, limit: usize) -> Self {
        let message = format!(
            "The queue is full: {in_flight} of at most {limit} choices run or wait. Try again later."
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .with_code("queue_full")
    }

    /// 429: the images of other requests fill the memory for images.
    pub(crate) fn images_full(limit: usize) -> Self {
        let message = format!(
            "The images of running requests fill the {} MiB for images (--image-memory). Try again later.",
            limit >> 20
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            .with_code("image_memory_full")
    }

    /// 429: the caller has reached a limit of its key.
    pub(crate) fn rate_limited(message: impl Into<String>, retry_after: u64) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { retry_after, ..error.with_code("rate_limit_exceeded") }
    }

    /// 400: the request exceeds a limit of the caller's key, so that a retry cannot help.
    pub(crate) fn beyond_key(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message).with_code("key_limit_exceeded")
    }

    /// 500.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER_ERROR, message)
            .with_code("internal_error")
    }

    /// 503: the server is starting, stopping or has failed.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, message).with_code("unavailable")
    }

    /// The same error for an endpoint that names the field `param` differently, `name`.
    pub(crate) fn about(mut self, param: &str, name: &str) -> Self {
        if self.param.as_deref() == Some(param) {
            self.param = Some(name.to_owned());
        }
        self
    }

    /// The body.
    pub(crate) fn to_body(&self) -> ErrorResponse {
        ErrorResponse {
            error: ErrorBody {
                message: self.message.clone(),
                kind: self.kind.into(),
                param: self.param.clone(),
                code: self.code.map(Into::into),
            },
        }
    }
}

impl ApiError {
    /// The body in the format of Anthropic's API, with `param` and `code` in addition.
    ///
    /// Source: the types of errors in Anthropic's reference. Its clients retry without `thread` if an error has these details.
    pub(crate) fn to_anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => INVALID_REQUEST,
        };
        let mut error =
            json!({"type": kind, "message": self.message, "param": self.param, "code": self.code});
        if self.param.as_deref() == Some("thread") {
            error["details"] =
                json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
        }
        json!({"type": "error", "error": error})
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        let code = if error.param.is_some() { "invalid_value" } else { "invalid_body" };
        Self {
            param: error.param,
            ..Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, error.message).with_code(code)
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull { in_flight, limit } => Self::queue_full(in_flight, limit),
            SubmitError::Invalid(reason) => {
                Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, reason)
                    .with_code("invalid_value")
            }
            SubmitError::Dead(reason) => {
                Self::unavailable(format!("The engine is not running: {reason}"))
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.to_body();
        let mut response = (self.status, axum::Json(body)).into_response();
        // The layer that formats errors for Anthropic's clients finds the error here.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                // RFC 9110, section 15.5.2, demands the header.
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, self.retry_after.into());
            }
            // The rest of the body would be read as the next request.
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_bring_their_headers() {
        let response = ApiError::queue_full(3, 3).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(
            ApiError::unauthorized().into_response().headers()["www-authenticate"],
            "Bearer"
        );
        assert_eq!(
            ApiError::body_too_large(32 << 20).into_response().headers()["connection"],
            "close"
        );
    }

    #[test]
    fn errors_have_the_types_of_both_dialects() {
        let shaped = |error: ApiError| {
            let body = error.to_anthropic();
            assert_eq!(body["type"], "error");
            body["error"]["type"].as_str().unwrap().to_owned()
        };
        assert_eq!(shaped(ApiError::invalid("a", "b")), "invalid_request_error");
        assert_eq!(shaped(ApiError::unauthorized()), "authentication_error");
        assert_eq!(shaped(ApiError::model_not_found("m")), "not_found_error");
        assert_eq!(shaped(ApiError::queue_full(1, 1)), "rate_limit_error");
        assert_eq!(shaped(ApiError::internal("x")), "api_error");
        assert_eq!(shaped(ApiError::unavailable("x")), "overloaded_error");
        let thread = ApiError::invalid("thread", "no").to_anthropic();
        assert_eq!(thread["error"]["details"]["error_code"], "thread_unsupported_request");
    }

    #[test]
    fn input_is_not_reflected() {
        let long = "x".repeat(100_000);
        for error in [
            ApiError::model_not_found(&long),
            ApiError::path_not_found("GET", &long),
            ApiError::method_not_allowed(&long, &long),
        ] {
            let body = serde_json::to_string(&error.to_body()).unwrap();
            assert!(body.matches('x').count() <= 200, "{body}");
        }
    }

    #[test]
    fn field_errors_keep_their_param() {
        let body = ApiError::from(FieldError::new("messages[0].role", "bad")).to_body();
        assert_eq!(body.error.param.as_deref(), Some("messages[0].role"));
        assert_eq!(body.error.kind, "invalid_request_error");
    }
}
