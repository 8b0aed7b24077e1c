//! The outermost layer: gives each request an id, counts it until its response is complete, and measures it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::header::CONNECTION;
use axum::http::{HeaderName, HeaderValue, Method, Version};
use axum::middleware::Next;
use axum::response::Response;
use candlepower_api::clip;
use uuid::Uuid;

use crate::http::auth::OPEN_PATHS;
use crate::http::caller::CallerName;
use crate::http::held::Held;
use crate::model::keys::ApiKey;
use crate::model::state::{ActiveRequest, AppState};
use crate::model::tokens::RequestTokens;
use crate::model::trace::{HttpEnd, RequestTrace, operation};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Maximum length of a client's request id that is echoed.
const MAX_REQUEST_ID_LEN: usize = 128;

/// Status in logs and metrics for a request whose client left before the response. Source: nginx.
const CLIENT_GONE: u16 = 499;

/// Runs the request and follows its response to the last byte.
pub(crate) async fn track(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let active = state.enter();
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let label = matched.unwrap_or("unmatched").to_owned();
    // Probes and scrapes would be most of all traces.
    let tracer = state.tracer().filter(|_| !OPEN_PATHS.contains(&label.as_str()));
    let trace = tracer.map(|tracer| tracer.begin(request.headers(), operation(&label)));
    let tokens = Arc::new(RequestTokens::traced(trace.map(Box::new)));
    request.extensions_mut().insert(Arc::clone(&tokens));
    // The matched route is known here already, since the layers lie within the router.
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let caller =
        peer.map_or_else(String::new, |ConnectInfo(peer)| format!("address {}", peer.ip()));
    let request_id = request_id(&request);
    let mut tracker = Tracker {
        active,
        started: Instant::now(),
        method: method_label(request.method()),
        label,
        path: clip(request.uri().path()),
        status: CLIENT_GONE,
        caller,
        key: None,
        tokens,
        request_id: request_id.to_str().unwrap_or_default().to_owned(),
        state,
    };
    // HTTP/2 has no `Connection` header; its clients get GOAWAY.
    let has_own_connection = request.version() <= Version::HTTP_11;
    let mut response = next.run(request).await;
    tracker.status = response.status().as_u16();
    // The key is found by an inner layer, which passes it back with the response.
    tracker.key = response.extensions().get::<Arc<ApiKey>>().cloned();
    if let Some(key) = &tracker.key {
        tracker.state.metrics().count_key_request(&key.name, tracker.status);
    }
    if let Some(CallerName(name)) = response.extensions_mut().remove() {
        tracker.caller = name;
    }
    response.headers_mut().insert(X_REQUEST_ID, request_id);
    if let Some(header) = tracker.tokens.trace().and_then(RequestTrace::header) {
        response.headers_mut().insert(TRACEPARENT, header);
    }
    if has_own_connection && tracker.state.is_stopping() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    // The tracker is dropped with the body, so the time and the status of a stream are those of its end.
    response.map(|body| Held::body(body, tracker))
}

/// The client's own id, or a new one.
fn request_id(request: &Request) -> HeaderValue {
    let given = request.headers().get(X_REQUEST_ID);
    let usable =
        |id: &&HeaderValue| !id.is_empty() && id.len() <= MAX_REQUEST_ID_LEN && id.to_str().is_ok();
    given.filter(usable).cloned().unwrap_or_else(|| {
        HeaderValue::from_str(&Uuid::new_v4().to_string())
            .expect("a UUID consists of letters, digits and dashes")
    })
}

/// The method as a label. The set is fixed, so that clients cannot create new time series.
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

/// Data of a request, dropped with its response, however that ends.
struct Tracker {
    #[expect(dead_code, reason = "held for its drop")]
    active: ActiveRequest,
    started: Instant,
    method: &'static str,
    /// The route's path, so that clients cannot create new time series.
    label: String,
    /// The path that the client sent.
    path: String,
    status: u16,
    caller: String,
    /// Its API key, if there are keys.
    key: Option<Arc<ApiKey>>,
    tokens: Arc<RequestTokens>,
    request_id: String,
    state: AppState,
}

impl Tracker {
    /// Logs the request's line, at level info with `--access-log`, else at debug.
    fn write_line(&self, took: Duration) {
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    method = self.method,
                    path = self.path,
                    status = self.status,
                    ms = took.as_millis() as u64,
                    prompt_tokens = self.tokens.prompt(),
                    generated_tokens = self.tokens.generated(),
                    key = self.key.as_ref().map(|key| key.name.as_str()),
                    caller = self.caller,
                    request_id = self.request_id,
                    "request"
                )
            };
        }
        match self.state.config().access_log {
            true => line!(info),
            false => line!(debug),
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let (label, took) = (std::mem::take(&mut self.label), self.started.elapsed());
        self.write_line(took);
        if let Some(trace) = self.tokens.trace() {
            trace.end(&HttpEnd {
                method: self.method,
                route: &label,
                status: self.status,
                request_id: &self.request_id,
                prompt_tokens: self.tokens.prompt(),
                generated_tokens: self.tokens.generated(),
            });
        }
        // Probes are refused while the model loads, which is no news.
        if !OPEN_PATHS.contains(&label.as_str()) {
            self.state.refusals().count(self.status, self.method, &label);
        }
        self.state.metrics().count_http(self.method, label, self.status, took);
    }
}
