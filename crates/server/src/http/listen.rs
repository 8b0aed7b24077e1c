//! Accepts connections, and runs TLS and HTTP on each.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::server::TlsStream;

use crate::http::connection::{Http, Protocol, Stop};
use crate::http::tls::{HTTP2, Tls};
use crate::model::api_error::ApiError;

/// Pause after a failed accept. The usual reason is that file descriptors have run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections beyond the limit that get a response concurrently; more are closed without one.
const MAX_REFUSALS: usize = 64;
/// Maximum bytes that are read from a refused connection.
const REFUSED_BYTES: u64 = 1 << 20;
/// Time in which connections must close when the server stops or refuses them.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A socket that accepts connections.
pub(crate) trait Accept: Send + 'static {
    /// One connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and the address of its client.
    fn accept_next(&self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept_next(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.accept().await?;
        // With Nagle's algorithm, a token could wait for the acknowledgement of the one before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "set_nodelay");
        }
        Ok((stream, peer))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    /// All clients have the loopback address, since they are on this machine.
    async fn accept_next(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let (stream, _) = self.accept().await?;
        Ok((stream, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))
    }
}

/// The protocols and limits of a listener.
pub(crate) struct Door {
    http: Http,
    tls: Option<Arc<Tls>>,
    /// Whether HTTP/2 is accepted without TLS.
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
    pub(crate) async fn serve(self, listener: impl Accept, mut stop: watch::Receiver<Stop>) {
        let door = Arc::new(self);
        // Each connection has a receiver, so that the sender is notified when all have ended.
        let (connections, running) = watch::channel(());
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept_next() => accepted,
                _ = stop.wait_for(|stop| *stop == Stop::Closing) => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // A failed accept would fail again at once, and the loop would take a whole core.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let Some(place) = door.http.place() else {
                door.clone().refuse(stream);
                continue;
            };
            let (door, stop, running) = (Arc::clone(&door), stop.clone(), running.clone());
            tokio::spawn(async move {
                door.connect(stream, peer, stop).await;
                drop((place, running));
            });
        }
        // The task's own receiver would keep the channel open for ever.
        drop((listener, running));
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connections.closed()).await;
    }

    /// Runs a connection to its end, in its own task: a slow TLS handshake delays no other connection.
    async fn connect(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        stop: watch::Receiver<Stop>,
    ) {
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

    /// Answers a connection beyond the limit with 503, and closes it.
    fn refuse(self: Arc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        // Beyond so many refusals, silence is cheaper than an answer.
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

fn negotiated<S>(stream: &TlsStream<S>) -> Protocol {
    let (_, session) = stream.get_ref();
    if session.alpn_protocol() == Some(HTTP2) { Protocol::Http2 } else { Protocol::Http1 }
}

/// Sends 503 in HTTP/1.1 without waiting for a request.
// No request was read, so its version is not known; every HTTP client understands HTTP/1.1.
async fn say_full(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let body = serde_json::to_string(&ApiError::too_many_connections().to_body());
    let body = body.expect("all keys of an error are strings");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing with unread data would reset the connection, and the client would lose the response.
    tokio::io::copy(&mut stream.take(REFUSED_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}
