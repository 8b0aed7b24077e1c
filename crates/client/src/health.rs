//! Health checks of a server.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::spec::Spec;
use crate::tls::{Identity, Trust, client_config};

/// Time limit of the request.
const PATIENCE: Duration = Duration::from_secs(2);

/// Checks a server of this machine at a loopback address.
#[derive(Clone, Debug)]
pub(crate) struct HealthClient {
    client: reqwest::Client,
    /// Client certificate and key, if the server requires them.
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

/// Progress of the server's loading.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Bytes {
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
}

impl HealthClient {
    /// # Errors
    /// The HTTP or TLS library cannot be set up.
    pub(crate) fn new(spec: &Spec) -> io::Result<Self> {
        let owned = |(certificate, key): (&Path, &Path)| (certificate.into(), key.into());
        Ok(Self { client: client(None)?, identity: spec.identity().map(owned) })
    }

    /// The answer of the server at this URL; `None` without an answer that can be parsed.
    pub(crate) async fn ask(&self, url: &str) -> Option<Health> {
        let client = match &self.identity {
            // The certificate files may have been replaced since the start, so they are read again.
            Some((certificate, key)) => &client(Some(Identity { certificate, key })).ok()?,
            None => &self.client,
        };
        let response = client.get(format!("{url}/health")).send().await.ok()?;
        Health::read(&response.bytes().await.ok()?)
    }
}

fn client(identity: Option<Identity<'_>>) -> io::Result<reqwest::Client> {
    // A server at a loopback address is on this machine. Its certificate, made for public names, need not
    // match.
    let tls = client_config(Trust::Anything, identity).map_err(io::Error::other)?;
    // Requests to this machine must not go through a proxy from the environment.
    let client = reqwest::Client::builder()
        .no_proxy()
        .use_preconfigured_tls(tls)
        .timeout(PATIENCE)
        .pool_max_idle_per_host(0);
    client.build().map_err(io::Error::other)
}

impl Health {
    /// Parses an answer of `/health`; `None` for the answer of another server, or of a proxy that did not
    /// reach the server. A server that is not healthy reports its phase.
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
        // The answer of a cluster's API server if it cannot reach the pod.
        let proxy = r#"{"kind": "Status", "status": "Failure", "message": "address not allowed", "code": 403}"#;
        assert!(Health::read(proxy.as_bytes()).is_none());
        assert!(Health::read(b"<html>").is_none());
    }
}
