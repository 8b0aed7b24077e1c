//! Streams answers as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use candlepower_api::Usage;
use candlepower_engine::TokenLogprobs;
use futures::stream::{self, BoxStream, SelectAll, StreamExt};
use serde::Serialize;

use crate::generation::params::StreamShape;
use crate::generation::stream::{Choice, ChoiceEvent, Delta};
use crate::generation::submit::UsageCounter;
use crate::model::api_error::{ApiError, ApiResult};

/// Maximum silence of a stream. Proxies (60 s by default) and clients (300 s in Node's fetch) close a connection that is silent for long.
const SILENCE: Duration = Duration::from_secs(10);

/// The chunk format of an endpoint.
pub(crate) trait ChunkFormat: Send + 'static {
    /// The chunks of choice `index` before anything is computed.
    fn opening(&mut self, _index: usize, _usage: Option<Usage>) -> Option<Bytes> {
        None
    }
    /// The chunk after the prompt of choice `index` is computed.
    fn prompt(
        &mut self,
        _index: usize,
        _logprobs: Option<Vec<Option<TokenLogprobs>>>,
        _usage: Option<Usage>,
    ) -> Option<Bytes> {
        None
    }
    /// The chunks that add `delta` to choice `index`; may be empty.
    fn delta(&mut self, index: usize, delta: Delta, usage: Option<Usage>) -> Bytes;
    /// The chunk without choices that reports the usage.
    fn usage(&mut self, usage: Usage) -> Bytes;
    /// The chunk that reports an error.
    fn error(&mut self, error: &ApiError) -> Bytes {
        event(&error.to_body())
    }
    /// A keep-alive for a stream that has nothing to send: a comment, which clients ignore.
    fn keep_alive(&mut self) -> Bytes {
        Bytes::from_static(b": keep-alive\n\n")
    }
    /// The end marker of the stream.
    fn close(&mut self) -> Option<Bytes> {
        Some(Bytes::from_static(b"data: [DONE]\n\n"))
    }
}

/// One event.
pub(crate) fn event(chunk: &impl Serialize) -> Bytes {
    let mut line = Vec::with_capacity(256);
    line.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut line, chunk)
        .expect("chunks are plain data, and writing to a Vec cannot fail");
    line.extend_from_slice(b"\n\n");
    line.into()
}

/// One event with a name.
pub(crate) fn named_event(name: &str, body: &impl Serialize) -> Bytes {
    [b"event: ", name.as_bytes(), b"\n", &event(body)].concat().into()
}

/// The response that streams `choices`. It owns them, so that when the client disconnects, dropping the response cancels
/// the choices.
pub(crate) fn respond(
    format: impl ChunkFormat,
    choices: Vec<Choice>,
    usage: UsageCounter,
    shape: StreamShape,
) -> Response {
    let mut sender = Sender {
        format,
        ready: VecDeque::new(),
        usage,
        shape,
        events: choices.into_iter().map(Choice::into_events).collect(),
        ended: false,
    };
    for index in 0..sender.events.len() {
        let usage = sender.usage_so_far();
        let opening = sender.format.opening(index, usage);
        sender.ready.extend(opening);
    }
    let body = stream::unfold(sender, |mut sender| async move {
        let bytes = sender.next_in_time().await?;
        Some((Ok::<_, Infallible>(bytes), sender))
    });
    let headers = [
        (CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (CACHE_CONTROL, "no-cache"),
        // Tells proxies such as nginx not to buffer the stream.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(body)).into_response()
}

type Events = SelectAll<BoxStream<'static, (usize, ApiResult<ChoiceEvent>)>>;

struct Sender<F> {
    format: F,
    /// Chunks to send before the next event is awaited.
    ready: VecDeque<Bytes>,
    usage: UsageCounter,
    shape: StreamShape,
    events: Events,
    ended: bool,
}

impl<F: ChunkFormat> Sender<F> {
    /// The next chunk, or a keep-alive.
    async fn next_in_time(&mut self) -> Option<Bytes> {
        // Pending events are kept in `self`, so that a timeout of this wait loses none.
        match tokio::time::timeout(SILENCE, self.next()).await {
            Ok(bytes) => bytes,
            Err(_) => Some(self.format.keep_alive()),
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            match self.events.next().await {
                Some((index, Ok(event))) => self.take(index, event),
                Some((_, Err(error))) => {
                    // The HTTP status is already sent, so the error is the last event, and the other choices are cancelled.
                    let chunk = self.format.error(&error);
                    self.ready.push_back(chunk);
                    self.events = Events::new();
                    self.close();
                }
                None => {
                    if self.shape.include_usage {
                        let chunk = self.format.usage(self.usage.usage());
                        self.ready.push_back(chunk);
                    }
                    self.close();
                }
            }
        }
    }

    fn take(&mut self, index: usize, event: ChoiceEvent) {
        let chunk = match event {
            ChoiceEvent::Prompt { num_cached_tokens, logprobs } => {
                self.usage.prompt(index, num_cached_tokens);
                let usage = self.usage_so_far();
                self.format.prompt(index, logprobs, usage)
            }
            ChoiceEvent::Delta(delta) => {
                self.usage.generated(delta.token_ids.len());
                let usage = self.usage_so_far();
                Some(self.format.delta(index, delta, usage))
            }
        };
        // No chunk is sent while the text is held back.
        self.ready.extend(chunk.filter(|bytes| !bytes.is_empty()));
    }

    fn close(&mut self) {
        self.ready.extend(self.format.close());
        self.ended = true;
    }

    fn usage_so_far(&self) -> Option<Usage> {
        self.shape.continuous_usage.then(|| self.usage.usage())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks with only the texts.
    struct Texts;

    impl ChunkFormat for Texts {
        fn delta(&mut self, _: usize, delta: Delta, _: Option<Usage>) -> Bytes {
            delta.text.into()
        }
        fn usage(&mut self, _: Usage) -> Bytes {
            Bytes::new()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_is_kept_alive() {
        // The prompt takes 25 s and the first text another second; then a chunk without text comes in between.
        let pauses = [(25, None), (1, Some("a")), (6, Some("")), (6, Some("b"))];
        let events = stream::iter(pauses).then(|(seconds, text)| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let event = match text {
                None => ChoiceEvent::Prompt { num_cached_tokens: 0, logprobs: None },
                Some(text) => ChoiceEvent::Delta(Delta { text: text.into(), ..Delta::default() }),
            };
            (0, Ok(event))
        });
        let mut sender = Sender {
            format: Texts,
            ready: VecDeque::new(),
            usage: UsageCounter::new(&[], 1),
            shape: StreamShape::default(),
            events: std::iter::once(events.boxed()).collect(),
            ended: false,
        };
        let mut sent = Vec::new();
        while let Some(bytes) = sender.next_in_time().await {
            sent.push(String::from_utf8(bytes.to_vec()).unwrap());
        }
        let comment = ": keep-alive\n\n";
        assert_eq!(sent, [comment, comment, "a", comment, "b", "data: [DONE]\n\n"]);
    }

    #[test]
    fn an_event_is_one_line_whatever_the_text() {
        let bytes = event(&serde_json::json!({"text": "a\nb\r\n\u{2028}"}));
        let text = std::str::from_utf8(&bytes).unwrap();
        assert_eq!(text.matches('\n').count(), 2);
        assert!(text.starts_with("data: {") && text.ends_with("}\n\n"));
    }
}
