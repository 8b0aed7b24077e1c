//! Accepts connections and runs HTTP on them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::model::api_error::ApiError;

/// Longest time for the head of a request, so that clients that never finish it do not pile up. A connection that is
/// kept open between two requests is closed after this, too.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, which mostly means that file handles have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long connections may take to close when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until `stop` becomes true, then closes the connections.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    mut stop: watch::Receiver<bool>,
) {
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            refuse(&stream);
            continue;
        };
        // Without this a token could wait for the acknowledgement of the one before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "set_nodelay");
        }
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, connections.shutdown()).await;
}

/// Answers a connection that is one too many, as far as that takes no waiting, and closes it.
fn refuse(stream: &TcpStream) {
    let body = serde_json::to_string(&ApiError::too_many_connections().to_body());
    let body = body.expect("an error has no keys that are no text");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // A new connection takes it whole; one that does not is closed without.
    let _ = stream.try_write(answer.as_bytes());
}
