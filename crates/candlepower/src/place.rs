//! Where the deployment commands look: a backend, and where in a cluster.

use candlepower_client::{Backend, Client, Result};
use clap::Args;

/// Where deployments are made and looked for.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// Where servers run: process, docker or kubernetes [default: process; a name is looked for among processes, then among
    /// containers, and in a cluster only where this says so]
    #[arg(long, env = "CANDLEPOWER_BACKEND")]
    backend: Option<String>,
    /// Namespace of the cluster; implies --backend kubernetes [default: the context's]
    #[arg(long)]
    namespace: Option<String>,
    /// Context of the kubeconfig; implies --backend kubernetes [default: the current one]
    #[arg(long)]
    context: Option<String>,
}

impl Place {
    /// A client that looks there.
    ///
    /// # Errors
    /// There is no such backend, or it has no namespaces.
    pub(crate) fn client(&self) -> Result<Client> {
        let [backend, namespace, context] =
            [&self.backend, &self.namespace, &self.context].map(Option::as_deref);
        // A variable that is empty says as little as one that is not set.
        let backend = backend.filter(|name| !name.is_empty());
        Ok(match Backend::from_words(backend, namespace, context)? {
            Some(backend) => Client::new().backend(backend),
            None => Client::new(),
        })
    }
}
