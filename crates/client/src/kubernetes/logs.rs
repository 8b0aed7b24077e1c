//! Logs of a deployment's pods.

use std::time::Duration;

use futures::io::AsyncBufReadExt;
use futures::stream::{BoxStream, StreamExt, select_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;

use super::cluster::Cluster;
use crate::error::{Error, Result};
use crate::logs::Lines;

/// Interval of the search for new pods, after the followed ones have ended.
const LOOK: Duration = Duration::from_secs(1);

/// The newest `tail` lines, or all of them, oldest first. With several pods, each line begins with its pod's
/// name. For a server that waits for a restart, the log of its previous run is read.
pub(super) async fn tail(
    cluster: &Cluster,
    name: &str,
    tail: Option<usize>,
) -> Result<Vec<String>> {
    let pods = cluster.pods_of(name).await?;
    let mut lines = Vec::new();
    for pod in &pods {
        let Some(pod_name) = pod.metadata.name.as_deref().filter(|_| has_run(pod)) else {
            continue;
        };
        let asked = LogParams {
            tail_lines: tail.and_then(|tail| i64::try_from(tail).ok()),
            previous: waits_again(pod),
            ..LogParams::default()
        };
        let text = match cluster.pods().logs(pod_name, &asked).await {
            Ok(text) => text,
            // The pod is being started, or is gone.
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 404) => continue,
            Err(error) => return Err(cluster.wrong("read the log", error)),
        };
        let prefix = prefix(&pods, pod_name);
        lines.extend(text.lines().map(|line| format!("{prefix}{line}")));
    }
    // Each pod has given up to `tail` lines, and all of them together must not be more.
    let skip = tail.map_or(0, |tail| lines.len().saturating_sub(tail));
    Ok(lines.split_off(skip))
}

fn prefix(pods: &[Pod], pod: &str) -> String {
    if pods.len() > 1 { format!("{pod}: ") } else { String::new() }
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &k8s_openapi::api::core::v1::ContainerStatus> {
    pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten())
}

fn has_run(pod: &Pod) -> bool {
    statuses(pod).any(|server| {
        let state = server.state.as_ref();
        server.restart_count > 0
            || state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    })
}

/// Whether the server has ended and waits for a restart.
fn waits_again(pod: &Pod) -> bool {
    statuses(pod).any(|server| {
        let waits = server.state.as_ref().is_some_and(|state| state.waiting.is_some());
        waits && server.restart_count > 0
    })
}

/// Lines as they are written, across restarts, until the deployment is deleted.
pub(super) struct Followed {
    cluster: Cluster,
    name: String,
    lines: BoxStream<'static, String>,
    /// Time at which the last stream ended.
    ended_at: Option<Timestamp>,
}

impl Followed {
    pub(super) async fn new(cluster: Cluster, name: String, tail: Option<usize>) -> Result<Self> {
        let tail_lines = tail.and_then(|tail| i64::try_from(tail).ok());
        let asked = LogParams { follow: true, tail_lines, ..LogParams::default() };
        let lines = open(&cluster, &name, &asked).await?;
        Ok(Self { cluster, name, lines, ended_at: None })
    }

    /// Waits for running pods; false if the deployment is gone.
    async fn reopen(&mut self) -> bool {
        // The time stays until a line comes. A pod that needs several rounds to start loses no lines.
        let since_time = *self.ended_at.get_or_insert_with(Timestamp::now);
        tokio::time::sleep(LOOK).await;
        match self.cluster.find(&self.name).await {
            Err(Error::NotFound { .. }) => return false,
            // A failed request is repeated in the next round.
            Err(_) => return true,
            Ok(_) => {}
        }
        let asked =
            LogParams { follow: true, since_time: Some(since_time), ..LogParams::default() };
        if let Ok(lines) = open(&self.cluster, &self.name, &asked).await {
            self.lines = lines;
        }
        true
    }
}

impl Lines for Followed {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.lines.next().await {
                self.ended_at = None;
                return Some(line);
            }
            if !self.reopen().await {
                return None;
            }
        }
    }
}

async fn open(
    cluster: &Cluster,
    name: &str,
    asked: &LogParams,
) -> Result<BoxStream<'static, String>> {
    let pods = cluster.pods_of(name).await?;
    let mut streams: Vec<BoxStream<'static, String>> = Vec::new();
    for pod in pods.iter().filter(|pod| has_run(pod)) {
        let Some(pod_name) = &pod.metadata.name else { continue };
        let reader = match cluster.pods().log_stream(pod_name, asked).await {
            Ok(reader) => reader,
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 404) => continue,
            Err(error) => return Err(cluster.wrong("read the log", error)),
        };
        let prefix = prefix(&pods, pod_name);
        // An error ends the stream of this pod only. After the last one has ended, `reopen` opens all again.
        let lines = reader.lines().take_while(|line| std::future::ready(line.is_ok()));
        streams
            .push(lines.map(move |line| format!("{prefix}{}", line.unwrap_or_default())).boxed());
    }
    Ok(select_all(streams).boxed())
}
