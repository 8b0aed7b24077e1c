//! The outermost layer: names each request, counts it until its answer is out, and measures it.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

use crate::http::held::Held;
use crate::model::keys::ApiKey;
use crate::model::state::{ActiveRequest, AppState};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id of a client's that is echoed.
const MAX_REQUEST_ID_LEN: usize = 128;

/// What counts as the status of a request whose client went before there was one. Source: nginx.
const CLIENT_GONE: u16 = 499;

/// Runs the request and follows its answer to the last byte.
pub(crate) async fn track(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let active = state.enter();
    let method = method_label(request.method());
    let path = request
        .extensions()
        .get::<MatchedPath>()
        .map_or("unmatched", MatchedPath::as_str)
        .to_owned();
    let request_id = request_id(&request);
    let status = CLIENT_GONE;
    let mut tracker = Tracker { active, started, method, path, status, state };
    let mut response = next.run(request).await;
    tracker.status = response.status().as_u16();
    let key = response.extensions().get::<Arc<ApiKey>>().map(|key| key.name.as_str());
    if let Some(name) = key {
        tracker.state.metrics().count_key_request(name, tracker.status);
    }
    tracing::debug!(
        method,
        path = tracker.path,
        status = tracker.status,
        key,
        request_id = request_id.to_str().unwrap_or_default(),
        "request"
    );
    response.headers_mut().insert(X_REQUEST_ID, request_id);
    response.map(|body| Held::body(body, tracker))
}

/// The client's own id, or a new one.
fn request_id(request: &Request) -> HeaderValue {
    let given = request.headers().get(X_REQUEST_ID);
    let usable =
        |id: &&HeaderValue| !id.is_empty() && id.len() <= MAX_REQUEST_ID_LEN && id.to_str().is_ok();
    given.filter(usable).cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&Uuid::new_v4().to_string())
            .expect("an UUID is made of letters, digits and dashes")
    })
}

/// The method as a label; clients cannot make up new ones.
fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

/// Ends with the answer, however that ends.
struct Tracker {
    #[expect(dead_code, reason = "held for its drop")]
    active: ActiveRequest,
    started: Instant,
    method: &'static str,
    path: String,
    status: u16,
    state: AppState,
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        self.state.metrics().count_http(self.method, path, self.status, self.started.elapsed());
    }
}
