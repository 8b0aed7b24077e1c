//! Asks a server for its health.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::spec::Spec;
use crate::tls::{Identity, Trust, client_config};

/// Longest wait for the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks a server of this machine, which it reaches at a loopback address.
#[derive(Clone, Debug)]
pub(crate) struct HealthClient {
    client: reqwest::Client,
    /// Certificate and key that the server wants to see.
    identity: Option<(PathBuf, PathBuf)>,
}

/// The answer of `/health`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Health {
    pub(crate) status: String,
    pub(crate) phase: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) progress: Option<Bytes>,
}

/// How far the server's loading is.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Bytes {
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
}

impl HealthClient {
    /// # Errors
    /// The library cannot be set up.
    pub(crate) fn new(spec: &Spec) -> io::Result<Self> {
        let owned = |(certificate, key): (&Path, &Path)| (certificate.into(), key.into());
        Ok(Self { client: client(None)?, identity: spec.identity().map(owned) })
    }

    /// What the server at this address says; `None` if it says nothing that can be understood.
    pub(crate) async fn ask(&self, url: &str) -> Option<Health> {
        let client = match &self.identity {
            // The files may have been replaced.
            Some((certificate, key)) => &client(Some(Identity { certificate, key })).ok()?,
            None => &self.client,
        };
        let response = client.get(format!("{url}/health")).send().await.ok()?;
        Health::read(&response.bytes().await.ok()?)
    }
}

fn client(identity: Option<Identity<'_>>) -> io::Result<reqwest::Client> {
    // A server at a loopback address is of this machine, whatever its certificate.
    let tls = client_config(Trust::Anything, identity).map_err(io::Error::other)?;
    // A proxy is not for servers of this machine.
    let client = reqwest::Client::builder()
        .no_proxy()
        .use_preconfigured_tls(tls)
        .timeout(PATIENCE)
        .pool_max_idle_per_host(0);
    client.build().map_err(io::Error::other)
}

impl Health {
    /// An answer of `/health`; `None` for that of another server, or of a proxy that did not reach it. Whoever is not healthy
    /// names a phase.
    pub(crate) fn read(answer: &[u8]) -> Option<Self> {
        let health: Self = serde_json::from_slice(answer).ok()?;
        (health.is_healthy() || health.phase.is_some()).then_some(health)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.status == "healthy"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answers_of_a_server_of_ours_count() {
        let loading = r#"{"status": "starting", "phase": "initializing"}"#;
        assert!(Health::read(loading.as_bytes()).is_some());
        assert!(Health::read(br#"{"status": "healthy"}"#).is_some());
        // What the API server of a cluster says when it cannot reach the pod.
        let proxy = r#"{"kind": "Status", "status": "Failure", "message": "address not allowed", "code": 403}"#;
        assert!(Health::read(proxy.as_bytes()).is_none());
        assert!(Health::read(b"<html>").is_none());
    }
}
