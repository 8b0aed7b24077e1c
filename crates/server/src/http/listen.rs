//! Accepts connections, and has TLS and HTTP run on each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::server::TlsStream;

use crate::http::connection::{Http, Protocol, Stop};
use crate::http::tls::{HTTP2, Tls};
use crate::model::api_error::ApiError;

/// Pause after a failed accept, which mostly means that file handles have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections beyond the limit that are answered at once; more are closed without an answer.
const MAX_REFUSALS: usize = 64;
/// Most bytes that are read of a refused connection.
const REFUSED_BYTES: u64 = 1 << 20;
/// How long connections may take to close when the server stops, or refuses them.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The protocols of a listener, and its limits.
pub(crate) struct Door {
    http: Http,
    tls: Option<Arc<Tls>>,
    /// Whether HTTP/2 is spoken without TLS.
    prior_knowledge: bool,
    refusals: Arc<Semaphore>,
}

impl Door {
    pub(crate) fn new(
        app: Router,
        max_connections: usize,
        tls: Option<Arc<Tls>>,
        http2: bool,
    ) -> Self {
        let http = Http::new(app, max_connections);
        let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
        Self { http, prior_knowledge: http2 && tls.is_none(), tls, refusals }
    }

    /// Serves until `stop` is [`Stop::Closing`], then closes the connections.
    pub(crate) async fn serve(self, listener: TcpListener, mut stop: watch::Receiver<Stop>) {
        let door = Arc::new(self);
        // Each connection has a receiver: the sender sees when all have ended.
        let (connections, running) = watch::channel(());
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop == Stop::Closing) => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let Some(place) = door.http.place() else {
                door.clone().refuse(stream);
                continue;
            };
            // Without this a token could wait for the acknowledgement of the one before.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "set_nodelay");
            }
            let (door, stop, running) = (Arc::clone(&door), stop.clone(), running.clone());
            tokio::spawn(async move {
                door.connect(stream, peer, stop).await;
                drop((place, running));
            });
        }
        drop((listener, running));
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connections.closed()).await;
    }

    /// Runs a connection to its end. A handshake that takes long holds up no other connection.
    async fn connect(&self, stream: TcpStream, peer: SocketAddr, stop: watch::Receiver<Stop>) {
        let Some(tls) = &self.tls else {
            let protocol = if self.prior_knowledge { Protocol::Either } else { Protocol::Http1 };
            return self.http.serve(TokioIo::new(stream), peer, protocol, stop).await;
        };
        match tls.accept(stream).await {
            Ok(stream) => {
                let protocol = negotiated(&stream);
                self.http.serve(TokioIo::new(stream), peer, protocol, stop).await;
            }
            Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
        }
    }

    /// Answers a connection that is one too many, and closes it.
    fn refuse(self: Arc<Self>, stream: TcpStream) {
        let Ok(refusal) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        tokio::spawn(async move {
            let last_words = async {
                let Some(tls) = &self.tls else { return say_full(stream).await };
                let stream = tls.accept(stream).await?;
                match negotiated(&stream) {
                    Protocol::Http2 => self.http.refuse(TokioIo::new(stream)).await,
                    _ => say_full(stream).await?,
                }
                Ok(())
            };
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, last_words).await;
            drop(refusal);
        });
    }
}

fn negotiated(stream: &TlsStream<TcpStream>) -> Protocol {
    let (_, session) = stream.get_ref();
    if session.alpn_protocol() == Some(HTTP2) { Protocol::Http2 } else { Protocol::Http1 }
}

/// Says in HTTP/1.1 that there are too many connections, without waiting for a request.
async fn say_full(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    let body = serde_json::to_string(&ApiError::too_many_connections().to_body());
    let body = body.expect("an error has no keys that are no text");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // A request that is left unread would reset the connection, and the answer with it.
    tokio::io::copy(&mut stream.take(REFUSED_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}
