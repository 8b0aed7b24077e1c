//! Sends requests: with a number of concurrent clients, or at a rate.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::ProgressBar;
use tokio::task::JoinSet;

use super::client::Answer;
use crate::api::Api;

/// The arrival pattern of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    /// A number of clients, each of which sends its next request when its last one has ended.
    Closed { concurrency: usize },
    /// Requests at random times with this average rate, whether or not earlier ones have ended.
    Open { rate_per_s: f64 },
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { concurrency: 1 } => f.write_str("1 client"),
            Self::Closed { concurrency } => write!(f, "{concurrency} clients"),
            Self::Open { rate_per_s } => write!(f, "{rate_per_s}/s"),
        }
    }
}

/// The requests of one level, ready to be sent.
pub(super) struct Requests {
    pub(super) api: Arc<Api>,
    pub(super) path: &'static str,
    pub(super) bodies: Vec<Vec<u8>>,
}

/// The measurements of a level.
pub(super) struct Measured {
    /// Time from the first request to the end of the last answer.
    pub(super) duration: Duration,
    /// In no order.
    pub(super) answers: Vec<Result<Answer>>,
}

impl Load {
    /// Sends all requests and waits for their answers.
    pub(super) async fn run(self, requests: Requests, seed: u64, bar: &ProgressBar) -> Measured {
        let requests = Arc::new(requests);
        let begin = Instant::now();
        let mut tasks = JoinSet::new();
        match self {
            Self::Closed { concurrency } => {
                let next = Arc::new(AtomicUsize::new(0));
                for _ in 0..concurrency.min(requests.bodies.len()) {
                    tasks.spawn(client(Arc::clone(&requests), Arc::clone(&next), bar.clone()));
                }
            }
            Self::Open { rate_per_s } => {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut at = begin;
                // The wait is until a time, not for a time. So delays of the sender do not lower the rate.
                for index in 0..requests.bodies.len() {
                    tokio::time::sleep_until(at.into()).await;
                    let (requests, bar) = (Arc::clone(&requests), bar.clone());
                    tasks.spawn(async move {
                        let answer = requests.send(index).await;
                        bar.inc(1);
                        vec![answer]
                    });
                    // Times between arrivals of a Poisson process have an exponential distribution.
                    at += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate_per_s);
                }
            }
        }
        let answers = tasks.join_all().await.into_iter().flatten().collect();
        Measured { duration: begin.elapsed(), answers }
    }
}

/// One of several clients that share the requests.
async fn client(
    requests: Arc<Requests>,
    next: Arc<AtomicUsize>,
    bar: ProgressBar,
) -> Vec<Result<Answer>> {
    let mut answers = Vec::new();
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= requests.bodies.len() {
            return answers;
        }
        answers.push(requests.send(index).await);
        bar.inc(1);
    }
}

impl Requests {
    async fn send(&self, index: usize) -> Result<Answer> {
        self.api.measure(self.path, self.bodies[index].clone()).await
    }
}
