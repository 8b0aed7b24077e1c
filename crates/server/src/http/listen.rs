//! Accepts connections and runs HTTP on them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower::Service;

use crate::model::api_error::ApiError;

/// Longest time for the head of a request, so that clients that never finish it do not pile up. A connection that is
/// kept open between two requests is closed after this, too.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, which mostly means that file handles have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections beyond the limit that are answered at once; more are closed without an answer.
const MAX_REFUSALS: usize = 64;
/// Most bytes that are read of a refused connection.
const REFUSED_BYTES: u64 = 1 << 20;
/// How long connections may take to close when the server stops, or refuses them.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves until `stop` becomes true, then closes the connections.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    mut stop: watch::Receiver<bool>,
) {
    let mut router = router.into_make_service_with_connect_info::<SocketAddr>();
    let connections = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            refuse(stream, &refusals);
            continue;
        };
        // Without this a token could wait for the acknowledgement of the one before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "set_nodelay");
        }
        let Ok(service) = router.call(peer).await;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_READ_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
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

/// Answers a connection that is one too many, and closes it.
fn refuse(mut stream: TcpStream, refusals: &Arc<Semaphore>) {
    let body = serde_json::to_string(&ApiError::too_many_connections().to_body());
    let body = body.expect("an error has no keys that are no text");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let Ok(place) = Arc::clone(refusals).try_acquire_owned() else { return };
    tokio::spawn(async move {
        let last_words = async {
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await?;
            // A request that is left unread would reset the connection, and the answer with it.
            tokio::io::copy(&mut stream.take(REFUSED_BYTES), &mut tokio::io::sink()).await
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, last_words).await;
        drop(place);
    });
}
