//! Where the deployment commands look: a backend, and where in a cluster.

use candlepower_client::{Backend, Client, Error, Result};
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
        let cluster = [("namespace", &self.namespace), ("context", &self.context)];
        let cluster = cluster.into_iter().find_map(|(field, value)| Some((field, value.clone()?)));
        let backend = match (self.backend.as_deref().map(str::parse).transpose()?, cluster) {
            (None | Some(Backend::Kubernetes { .. }), Some(_)) => Some(Backend::Kubernetes {
                context: self.context.clone(),
                namespace: self.namespace.clone(),
            }),
            (Some(other), Some((field, value))) => {
                let reason = format!("the {} backend knows none", other.as_str());
                return Err(Error::Validation { field, value, reason });
            }
            (backend, None) => backend,
        };
        Ok(match backend {
            Some(backend) => Client::new().backend(backend),
            None => Client::new(),
        })
    }
}
