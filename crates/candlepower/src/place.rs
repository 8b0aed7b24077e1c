//! Flags that choose a backend, and the namespace and context of a cluster.

use candlepower_client::{Backend, Client, Result};
use clap::Args;

/// The backend for deployments.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// Backend that runs the servers: process, docker or kubernetes [default: process; existing names are searched in process, then
    /// in docker]
    #[arg(long, env = "CANDLEPOWER_BACKEND")]
    backend: Option<String>,
    /// Kubernetes namespace; implies --backend kubernetes [default: the context's]
    #[arg(long)]
    namespace: Option<String>,
    /// Kubeconfig context; implies --backend kubernetes [default: the current one]
    #[arg(long)]
    context: Option<String>,
}

impl Place {
    /// A client for this backend.
    ///
    /// # Errors
    /// The backend does not exist, or it has no namespaces.
    pub(crate) fn client(&self) -> Result<Client> {
        let [backend, namespace, context] =
            [&self.backend, &self.namespace, &self.context].map(Option::as_deref);
        // An empty variable counts as unset.
        let backend = backend.filter(|name| !name.is_empty());
        Ok(match Backend::from_words(backend, namespace, context)? {
            Some(backend) => Client::new().backend(backend),
            None => Client::new(),
        })
    }
}
