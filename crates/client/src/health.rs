//! Asks a server for its health.

use std::time::Duration;

use serde::Deserialize;

/// Longest wait for the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks servers that this machine can reach.
#[derive(Clone, Debug)]
pub(crate) struct HealthClient(reqwest::Client);

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
    pub(crate) fn new() -> reqwest::Result<Self> {
        // A proxy is not for servers of this machine, which have no certificate either.
        let client = reqwest::Client::builder()
            .no_proxy()
            .tls_built_in_root_certs(false)
            .timeout(PATIENCE)
            .pool_max_idle_per_host(0);
        Ok(Self(client.build()?))
    }

    /// What the server at this address says; `None` if it says nothing that can be understood.
    pub(crate) async fn ask(&self, url: &str) -> Option<Health> {
        let response = self.0.get(format!("{url}/health")).send().await.ok()?;
        Health::read(&response.bytes().await.ok()?)
    }
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
