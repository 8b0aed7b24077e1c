//! Reads the rest of a body after an early response. A client that is still sending would otherwise get a broken connection instead of
//! the response: Python's `http.client` raises `BrokenPipeError`, and nginx in front answers 502 instead of 413.
//!
//! Source: nginx's `lingering_close`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use http_body::{Frame, SizeHint};

use crate::generation::body::MAX_BODY_BYTES;

/// Maximum bytes that are read and dropped.
const MAX_BYTES: usize = 2 * MAX_BODY_BYTES;
/// Maximum time for reading them.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Reads and drops the rest of a body after any response.
pub(crate) async fn linger(request: Request, next: Next) -> Response {
    // A client that waits for `100 Continue` has not sent its body.
    let waits = request.headers().contains_key(EXPECT);
    let request = request.map(|body| Body::new(Lingering { body: Some(body), is_sent: !waits }));
    next.run(request).await
}

/// A body whose rest is read after it is dropped.
struct Lingering {
    /// `None` at its end.
    body: Option<Body>,
    /// Whether the client is sending it.
    is_sent: bool,
}

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // hyper sends `100 Continue` when the body is read for the first time.
        self.is_sent = true;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| self.is_sent && !body.is_end_stream());
        // There is no runtime any more where the process ends.
        if let (Some(body), Ok(runtime)) = (body, tokio::runtime::Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(MAX_TIME, drain(body)));
        }
    }
}

async fn drain(body: Body) {
    let mut chunks = body.into_data_stream();
    let mut dropped = 0;
    while let Some(Ok(chunk)) = chunks.next().await {
        dropped += chunk.len();
        if dropped > MAX_BYTES {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::stream;

    use super::*;

    /// A body of 1 MiB chunks, and the number of chunks read.
    fn endless(sent: bool) -> (Lingering, Arc<AtomicUsize>) {
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let chunk = Bytes::from(vec![0; 1 << 20]);
        let chunks = stream::repeat_with(move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(chunk.clone())
        });
        (Lingering { body: Some(Body::from_stream(chunks)), is_sent: sent }, read)
    }

    #[tokio::test(start_paused = true)]
    async fn the_rest_of_a_body_is_read_up_to_a_bound() {
        let (body, read) = endless(true);
        drop(body);
        tokio::time::sleep(2 * MAX_TIME).await;
        // The bound is checked after a chunk, and one chunk more may be on its way.
        let most = MAX_BYTES >> 20;
        assert!((most..most + 3).contains(&read.load(Ordering::Relaxed)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_the_client_has_not_sent_is_not_asked_for() {
        let (body, read) = endless(false);
        drop(body);
        tokio::time::sleep(MAX_TIME).await;
        assert_eq!(read.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up() {
        let stalled = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        drop(Lingering { body: Some(stalled), is_sent: true });
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        tokio::task::yield_now().await;
        assert_eq!(tasks(), 1);
        tokio::time::sleep(MAX_TIME + Duration::from_secs(1)).await;
        assert_eq!(tasks(), 0);
    }
}
