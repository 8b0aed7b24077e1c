//! HTTP on one connection: its version, its limits, and its end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::Version;
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tower::ServiceExt;

use crate::http::held::Held;
use crate::http::linger::linger;
use crate::model::api_error::ApiError;

/// Maximum time for the head of a request, so that clients that never finish it do not accumulate. It also closes a connection that
/// is idle between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which an HTTP/2 connection without a request must close after GOAWAY.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which an HTTP/2 client gets a PING, and the time in which it must answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum open streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 100;
/// Maximum bytes of a head. The library also limits CONTINUATION frames by it.
const MAX_HEAD_BYTES: u32 = 16 << 10;
/// Maximum streams that an HTTP/2 client resets before they are accepted (rapid reset), and that the server resets for protocol errors.
/// One more ends the connection.
const MAX_EARLY_RESETS: usize = 20;
const MAX_FAULTY_STREAMS: usize = 100;
/// Flow-control windows for request bodies, in bytes: of a stream, and of all streams of a connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Maximum bytes of a response that wait for an HTTP/2 client to read.
const SEND_BUFFER: usize = 64 << 10;

/// The phase of stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The server is not stopping.
    Serving,
    /// Running requests finish. HTTP/2 clients get GOAWAY.
    Draining,
    /// Connections are closed.
    Closing,
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    /// Either one, detected from the client's first bytes.
    Either,
}

/// The settings and limits of all connections.
pub(crate) struct Http {
    app: Router,
    builder: auto::Builder<TokioExecutor>,
    /// A permit for each connection, and for each further concurrent request on an HTTP/2 connection.
    places: Arc<Semaphore>,
}

impl Http {
    pub(crate) fn new(app: Router, max_connections: usize) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // The timer is needed: without one the library ignores the timeout.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD_BYTES)
            .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
            .max_local_error_reset_streams(MAX_FAULTY_STREAMS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        // A semaphore panics beyond its own limit.
        let places = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
        Self { app, builder, places }
    }

    /// A permit for a new connection; `None` if none is left.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    fn builder(&self, protocol: Protocol) -> auto::Builder<TokioExecutor> {
        match protocol {
            Protocol::Http1 => self.builder.clone().http1_only(),
            Protocol::Http2 => self.builder.clone().http2_only(),
            Protocol::Either => self.builder.clone(),
        }
    }

    /// Answers the requests of a connection until the client leaves, is idle for too long, or the server stops.
    pub(crate) async fn serve<I>(
        &self,
        io: I,
        peer: SocketAddr,
        protocol: Protocol,
        mut stop: watch::Receiver<Stop>,
    ) where
        I: Read + Write + Unpin + Send + 'static,
    {
        let requests = Arc::new(Requests::new(protocol));
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            let place = requests.place(request.version(), &self.places);
            answer(self.app.clone(), request, place)
        });
        let builder = self.builder(protocol);
        let mut connection = pin!(builder.serve_connection(io, service));
        // A connection that opens while the server drains is a probe's, and is answered.
        let began = *stop.borrow_and_update();
        let stopped = async {
            let is_asked = |now: &Stop| match now {
                Stop::Serving => false,
                Stop::Draining => began != Stop::Draining && requests.are(Protocol::Http2),
                Stop::Closing => true,
            };
            // A dropped sender means closing too.
            let _ = stop.wait_for(is_asked).await;
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stopped => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = requests.idle() => {
                connection.as_mut().graceful_shutdown();
                // A client that ignores GOAWAY would keep the connection, so its time is limited.
                tokio::time::timeout(GOODBYE_TIMEOUT, connection).await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error, "a connection ended early");
        }
    }

    /// Refuses every request of an HTTP/2 connection beyond the limit.
    pub(crate) async fn refuse<I>(&self, io: I)
    where
        I: Read + Write + Unpin + Send + 'static,
    {
        let service = service_fn(|_| async {
            Ok::<_, Infallible>(ApiError::too_many_connections().into_response())
        });
        // The caller limits its time, so that its result does not matter.
        let _ = self.builder(Protocol::Http2).serve_connection(io, service).await;
    }
}

/// A request's permit, until its response is complete; `Err` if none is left.
type Place = Result<Open, Open>;

/// Answers a request, or refuses it because of the limit.
async fn answer(app: Router, request: Request, place: Place) -> Result<Response, Infallible> {
    let (app, open) = match place {
        Ok(open) => (app, open),
        Err(open) => (refusing(), open),
    };
    // The permit lives in the body of the response, which is dropped when it is sent or the client leaves.
    let response = app.oneshot(request).await?;
    Ok(response.map(|body| Held::body(body, open)))
}

/// The application for a refused request.
fn refusing() -> Router {
    let refusal = || async { ApiError::too_many_connections() };
    // The whole application is left out here, and with it its own lingering.
    Router::new().fallback(refusal).layer(middleware::from_fn(linger))
}

/// The requests of one connection.
struct Requests {
    /// Number of requests whose responses are not complete.
    open: watch::Sender<usize>,
    /// The [`Protocol`] of the newest request; before the first one, that of the connection.
    protocol: AtomicU8,
}

impl Requests {
    fn new(protocol: Protocol) -> Self {
        Self { open: watch::Sender::new(0), protocol: AtomicU8::new(protocol as u8) }
    }

    /// Counts a request. The first one uses the connection's own permit.
    fn place(self: &Arc<Self>, version: Version, places: &Arc<Semaphore>) -> Place {
        let is_http2 = version == Version::HTTP_2;
        let spoken = if is_http2 { Protocol::Http2 } else { Protocol::Http1 };
        self.protocol.store(spoken as u8, Ordering::Relaxed);
        let mut others = 0;
        self.open.send_modify(|open| {
            others = *open;
            *open += 1;
        });
        let open = |place| Open { requests: Arc::clone(self), place };
        // HTTP/1.1 answers one request after another, so the connection's own permit is enough.
        if !is_http2 || others == 0 {
            return Ok(open(None));
        }
        match Arc::clone(places).try_acquire_owned() {
            Ok(place) => Ok(open(Some(place))),
            Err(_) => Err(open(None)),
        }
    }

    fn are(&self, protocol: Protocol) -> bool {
        self.protocol.load(Ordering::Relaxed) == protocol as u8
    }

    /// Waits until the connection was without a request for too long. HTTP/1.1 has its own limit.
    async fn idle(&self) {
        let mut open = self.open.subscribe();
        loop {
            // The sender lives as long as `self`.
            let _ = open.wait_for(|open| *open == 0).await;
            // The wait ends early when a request comes, and the loop begins again.
            if tokio::time::timeout(IDLE_TIMEOUT, open.changed()).await.is_err()
                && !self.are(Protocol::Http1)
            {
                return;
            }
        }
    }
}

/// A request whose response is not complete.
struct Open {
    requests: Arc<Requests>,
    #[expect(dead_code, reason = "held for its drop")]
    place: Option<OwnedSemaphorePermit>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.requests.open.send_modify(|open| *open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn further_streams_of_a_connection_have_places_of_their_own() {
        let places = Arc::new(Semaphore::new(1));
        let requests = Arc::new(Requests::new(Protocol::Http2));
        let place = || requests.place(Version::HTTP_2, &places);
        let (first, second) = (place(), place());
        assert!(first.is_ok() && second.is_ok() && places.available_permits() == 0);
        assert!(place().is_err());
        assert_eq!(*requests.open.borrow(), 2);
        drop(second);
        let second = place();
        assert!(second.is_ok() && place().is_err());
        drop((first, second));
        assert_eq!((*requests.open.borrow(), places.available_permits()), (0, 1));
        // HTTP/1.1 requests of a connection are sequential.
        let places = Arc::new(Semaphore::new(0));
        let requests = Arc::new(Requests::new(Protocol::Either));
        let place = || requests.place(Version::HTTP_11, &places);
        let _pipelined = (place().ok().unwrap(), place().ok().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_while_it_has_no_request() {
        let places = Arc::new(Semaphore::new(1));
        let requests = Arc::new(Requests::new(Protocol::Either));
        let idle = || tokio::time::timeout(LONG, requests.idle());
        idle().await.unwrap();
        let open = requests.place(Version::HTTP_2, &places);
        idle().await.unwrap_err();
        drop(open);
        let began = tokio::time::Instant::now();
        idle().await.unwrap();
        assert!(began.elapsed() < 2 * IDLE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_between_keep_a_connection_open() {
        let places = Arc::new(Semaphore::new(1));
        let requests = Arc::new(Requests::new(Protocol::Http2));
        let asking = async {
            for _ in 0..10 {
                tokio::time::sleep(IDLE_TIMEOUT / 2).await;
                drop(requests.place(Version::HTTP_2, &places));
            }
        };
        tokio::select! {
            () = requests.idle() => panic!("it counts as idle"),
            () = asking => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn http1_has_a_limit_of_its_own() {
        let places = Arc::new(Semaphore::new(1));
        let requests = Arc::new(Requests::new(Protocol::Either));
        drop(requests.place(Version::HTTP_11, &places));
        tokio::time::timeout(LONG, requests.idle()).await.unwrap_err();
    }
}
