//! A response body that keeps a value until it is sent or dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};

/// The body of a response, and a value that is dropped with it.
pub(crate) struct Held<T> {
    body: Body,
    _value: T,
}

impl<T: Send + Unpin + 'static> Held<T> {
    /// A body with the same content, which drops the value at its end.
    pub(crate) fn body(body: Body, value: T) -> Body {
        Body::new(Self { body, _value: value })
    }
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
