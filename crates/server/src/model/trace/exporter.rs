//! Sends traces to a collector, over HTTP with protobuf. Traces that cannot be sent in time are dropped and counted.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, USER_AGENT};
use reqwest::{Client, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::encode;
use super::span::Span;
use crate::config::OtlpEndpoint;
use crate::model::metrics::TraceCounters;

/// Maximum spans that wait; those of a request are dropped beyond it. A span takes about 1 KiB.
const MAX_QUEUED: usize = 8192;
/// Maximum spans of one message, but for those of its last request.
const BATCH: usize = 512;
/// Time that a trace waits for others.
const DELAY: Duration = Duration::from_secs(1);
/// Time limit of one attempt to send.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses before further attempts.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// Maximum bytes of a refusal in the log.
const MAX_REFUSAL: usize = 200;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Spans of one request, the last of which is the request itself.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) id: [u8; 16],
    pub(super) state: Option<Arc<str>>,
    pub(super) spans: Vec<Span>,
}

enum Order {
    Send(Trace),
    /// Everything before this is to be sent now, and then this.
    Flush(oneshot::Sender<()>),
}

/// The queue of traces, whose other end is a task that sends them.
pub(super) struct Exporter {
    // The number of spans bounds it.
    orders: mpsc::UnboundedSender<Order>,
    num_queued: Arc<AtomicUsize>,
    counters: TraceCounters,
}

impl Exporter {
    pub(super) fn start(
        endpoint: &OtlpEndpoint,
        service: &str,
        counters: TraceCounters,
    ) -> Result<Self, String> {
        let client = Client::builder().timeout(SEND_TIMEOUT);
        // A proxy of the environment does not lead to this machine.
        let client = if is_local(endpoint) { client.no_proxy() } else { client };
        let client = client.build().map_err(|error| error.to_string())?;
        let (orders, queue) = mpsc::unbounded_channel();
        let num_queued = Arc::<AtomicUsize>::default();
        let sender = Sender {
            client,
            url: endpoint.traces_url(),
            service: service.to_owned(),
            counters: counters.clone(),
            num_queued: Arc::clone(&num_queued),
            was_sent: true,
        };
        tokio::spawn(sender.run(queue));
        Ok(Self { orders, num_queued, counters })
    }

    /// Queues a trace, or drops it if the queue is full.
    pub(super) fn queue(&self, trace: Trace) {
        let num_spans = trace.spans.len();
        let before = self.num_queued.fetch_add(num_spans, Ordering::Relaxed);
        let is_full = before + num_spans > MAX_QUEUED;
        // The task ends with the runtime.
        if is_full || self.orders.send(Order::Send(trace)).is_err() {
            self.num_queued.fetch_sub(num_spans, Ordering::Relaxed);
            self.counters.queue_full.increment(num_spans as u64);
        }
    }

    pub(super) async fn flush(&self, within: Duration) {
        let (done, is_done) = oneshot::channel();
        if self.orders.send(Order::Flush(done)).is_ok() {
            let _ = timeout(within, is_done).await;
        }
    }
}

fn is_local(endpoint: &OtlpEndpoint) -> bool {
    let host = endpoint.host().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The task that sends traces.
struct Sender {
    client: Client,
    url: String,
    service: String,
    counters: TraceCounters,
    num_queued: Arc<AtomicUsize>,
    /// Whether the last message was sent. The log tells changes only.
    was_sent: bool,
}

impl Sender {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Order>) {
        while let Some(first) = queue.recv().await {
            let (mut batch, mut num_spans, mut flushed) = (Vec::new(), 0, None);
            let deadline = Instant::now() + DELAY;
            let mut next = Some(first);
            while let Some(order) = next {
                match order {
                    Order::Flush(done) => {
                        flushed = Some(done);
                        break;
                    }
                    Order::Send(trace) => {
                        num_spans += trace.spans.len();
                        batch.push(trace);
                    }
                }
                if num_spans >= BATCH {
                    break;
                }
                next = timeout_at(deadline, queue.recv()).await.ok().flatten();
            }
            if !batch.is_empty() {
                self.send(&batch, num_spans as u64).await;
                // Until then the spans count as queued, so that a slow collector bounds the memory.
                self.num_queued.fetch_sub(num_spans, Ordering::Relaxed);
            }
            // Nobody may wait any more.
            let _ = flushed.map(|done| done.send(()));
        }
    }

    async fn send(&mut self, batch: &[Trace], num_spans: u64) {
        let body = encode::request(&self.service, VERSION, batch);
        let mut pauses = PAUSES.iter();
        let failure = loop {
            let failure = match self.attempt(body.clone()).await {
                Ok(()) => {
                    self.counters.sent.increment(num_spans);
                    if !std::mem::replace(&mut self.was_sent, true) {
                        tracing::info!("traces are sent again");
                    }
                    return;
                }
                Err(failure) => failure,
            };
            match pauses.next().filter(|_| failure.may_pass) {
                Some(pause) => sleep(*pause).await,
                None => break failure,
            }
        };
        self.counters.send_failed.increment(num_spans);
        if std::mem::replace(&mut self.was_sent, false) {
            tracing::warn!(
                "traces cannot be sent and are dropped (otlp_endpoint): {}",
                failure.reason
            );
        }
    }

    async fn attempt(&self, body: Vec<u8>) -> Result<(), Failure> {
        let request = self.client.post(&self.url).body(body);
        let request = request
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(USER_AGENT, concat!("candlepower/", env!("CARGO_PKG_VERSION")));
        let mut response = request.send().await.map_err(|error| {
            // The outer errors say only that a request failed.
            let mut cause: &dyn std::error::Error = &error;
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            Failure { reason: cause.to_string(), may_pass: true }
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        // Source: the OTLP specification on retryable response codes.
        let may_pass = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        let said = response.chunk().await.ok().flatten().unwrap_or_default();
        let said = String::from_utf8_lossy(&said[..said.len().min(MAX_REFUSAL)]);
        Err(Failure { reason: format!("HTTP {status} {said:?}"), may_pass })
    }
}

/// Why a message was not sent.
struct Failure {
    reason: String,
    /// Whether another attempt may succeed.
    may_pass: bool,
}
