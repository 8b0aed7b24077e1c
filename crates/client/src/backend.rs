//! Backends: where servers run, and what can be done with a deployment there.
//!
//! A backend deploys a [`Plan`](crate::check::Plan), finds deployments by name and lists them. A deployment
//! that was found is a [`Handle`], which has the same operations for every backend.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::check::is_label;
use crate::deployment::Deployment;
use crate::error::{Error, Result};
use crate::logs::LogStream;
use crate::process;
use crate::spec::Spec;
use crate::status::{DeploymentStatus, Event};

#[cfg(feature = "docker")]
use crate::docker::{self, Engine};
#[cfg(feature = "kubernetes")]
use crate::kubernetes::{self, Cluster};

/// Where servers run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// A process on this machine, with its own supervisor.
    #[default]
    Process,
    /// A container of Docker or Podman on this machine. Needs a build with the feature `docker`.
    Docker {
        /// Socket of the engine, `unix:///path` [default: `DOCKER_HOST`, or else the first socket that
        /// answers].
        host: Option<String>,
    },
    /// Pods of a cluster. Needs a build with the feature `kubernetes`.
    Kubernetes {
        /// Context of the kubeconfig [default: the current context, or the cluster that this process runs
        /// in].
        context: Option<String>,
        /// Namespace [default: the context's].
        namespace: Option<String>,
    },
}

/// The names of all backends.
pub(crate) const BACKENDS: [&str; 3] = [PROCESS, DOCKER, KUBERNETES];
pub(crate) const PROCESS: &str = "process";
pub(crate) const DOCKER: &str = "docker";
pub(crate) const KUBERNETES: &str = "kubernetes";

impl Backend {
    /// The backend's name: `process`, `docker` or `kubernetes`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Process => PROCESS,
            Self::Docker { .. } => DOCKER,
            Self::Kubernetes { .. } => KUBERNETES,
        }
    }

    /// The backend of this name, or `None` without a name. A namespace or a context implies `kubernetes`.
    ///
    /// # Errors
    /// There is no such backend, or the backend has no namespaces and contexts.
    pub fn from_words(
        name: Option<&str>,
        namespace: Option<&str>,
        context: Option<&str>,
    ) -> Result<Option<Self>> {
        // If both are given, the error names the namespace.
        let of_cluster = namespace.map(|value| ("namespace", value));
        let of_cluster = of_cluster.or(context.map(|value| ("context", value)));
        match (name.map(str::parse).transpose()?, of_cluster) {
            (None | Some(Self::Kubernetes { .. }), Some(_)) => {
                check_namespace(namespace)?;
                Ok(Some(Self::Kubernetes {
                    context: context.map(str::to_owned),
                    namespace: namespace.map(str::to_owned),
                }))
            }
            (Some(other), Some((field, value))) => Err(Error::validation(
                field,
                value,
                format!("the {} backend has none", other.as_str()),
            )),
            (backend, None) => Ok(backend),
        }
    }

    /// The deployment of this name.
    pub(crate) async fn find(&self, name: &str) -> Result<Handle> {
        match self {
            Self::Process => Ok(Handle::Process(process::find(name)?)),
            #[cfg(feature = "docker")]
            Self::Docker { host } => {
                Ok(Handle::Docker(Engine::connect(host.as_deref()).await?.find(name).await?))
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes { context, namespace } => {
                let cluster = Cluster::connect(context.as_deref(), namespace.as_deref()).await?;
                Ok(Handle::Kubernetes(cluster.find(name).await?))
            }
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            other => Err(other.not_built()),
        }
    }

    /// All deployments of this backend.
    pub(crate) async fn list(&self) -> Result<Vec<Handle>> {
        match self {
            Self::Process => Ok(process::list()?.into_iter().map(Handle::Process).collect()),
            #[cfg(feature = "docker")]
            Self::Docker { host } => {
                let found = Engine::connect(host.as_deref()).await?.list().await?;
                Ok(found.into_iter().map(Handle::Docker).collect())
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes { context, namespace } => {
                let cluster = Cluster::connect(context.as_deref(), namespace.as_deref()).await?;
                Ok(cluster.list().await?.into_iter().map(Handle::Kubernetes).collect())
            }
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            other => Err(other.not_built()),
        }
    }

    /// # Errors
    /// This build does not include the backend, or the namespace is not valid.
    pub(crate) fn check(&self) -> Result<()> {
        if let Self::Kubernetes { namespace, .. } = self {
            check_namespace(namespace.as_deref())?;
        }
        match self {
            Self::Process => Ok(()),
            #[cfg(feature = "docker")]
            Self::Docker { .. } => Ok(()),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes { .. } => Ok(()),
            #[allow(unreachable_patterns, reason = "with all features there is no other")]
            other => Err(other.not_built()),
        }
    }

    #[allow(dead_code, reason = "with all features every backend is there")]
    pub(crate) fn not_built(&self) -> Error {
        Error::validation(
            "backend",
            self.as_str(),
            "this build does not include it: use the container image, or build with \
             `cargo build --release --features full`",
        )
    }
}

fn check_namespace(namespace: Option<&str>) -> Result<()> {
    match namespace {
        Some(namespace) if !is_label(namespace) => Err(Error::validation(
            "namespace",
            namespace,
            "a namespace has at most 63 lowercase letters, digits and hyphens, and no hyphen at either end",
        )),
        _ => Ok(()),
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            PROCESS => Ok(Self::Process),
            DOCKER => Ok(Self::Docker { host: None }),
            KUBERNETES => Ok(Self::Kubernetes { context: None, namespace: None }),
            _ => Err(Error::validation(
                "backend",
                name,
                format!("choose one of {}", BACKENDS.join(", ")),
            )),
        }
    }
}

/// A deployment in its backend.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    Process(process::Supervised),
    #[cfg(feature = "docker")]
    Docker(docker::Container),
    #[cfg(feature = "kubernetes")]
    Kubernetes(kubernetes::Workload),
}

/// Calls the same method on each variant.
macro_rules! of_each {
    ($handle:expr, $it:ident => $result:expr) => {
        match $handle {
            Handle::Process($it) => $result,
            #[cfg(feature = "docker")]
            Handle::Docker($it) => $result,
            #[cfg(feature = "kubernetes")]
            Handle::Kubernetes($it) => $result,
        }
    };
}

impl Handle {
    /// Makes restarts of a process use this program.
    pub(crate) fn with_binary(self, binary: Option<PathBuf>) -> Self {
        match self {
            Self::Process(it) => Self::Process(it.with_binary(binary)),
            #[cfg(any(feature = "docker", feature = "kubernetes"))]
            other => other,
        }
    }

    /// The backend of the deployment. The client's own settings are used if they are for the same backend.
    pub(crate) fn backend(&self, own: Option<&Backend>) -> Backend {
        let here = match self {
            Self::Process(_) => Backend::Process,
            #[cfg(feature = "docker")]
            Self::Docker(_) => Backend::Docker { host: None },
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => Backend::Kubernetes { context: None, namespace: None },
        };
        // A handle does not keep the socket or the context that it was found through. Only the client has those.
        own.filter(|own| own.as_str() == here.as_str()).cloned().unwrap_or(here)
    }

    /// The spec that the deployment was made with.
    pub(crate) fn spec(&self) -> Result<Spec> {
        of_each!(self, it => it.spec())
    }

    /// Interval between two looks at a deployment that starts. It is longer for a cluster, whose API server
    /// is reached over the network and has many users.
    pub(crate) fn pace(&self) -> Duration {
        Duration::from_millis(match self {
            Self::Process(_) => 50,
            #[cfg(feature = "docker")]
            Self::Docker(_) => 100,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => 1000,
        })
    }

    /// Reads the deployment's current description.
    pub(crate) async fn read(&self) -> Result<Deployment> {
        of_each!(self, it => it.read().await)
    }

    /// The current status.
    pub(crate) async fn status(&self) -> Result<DeploymentStatus> {
        of_each!(self, it => it.status().await)
    }

    /// The newest `tail` lines of the log, or all of them, oldest first.
    pub(crate) async fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        of_each!(self, it => it.logs(tail).await)
    }

    /// The newest `tail` lines of the log, or all of them, followed by new lines as they come.
    pub(crate) async fn follow(&self, tail: Option<usize>) -> Result<LogStream> {
        of_each!(self, it => it.follow(tail).await)
    }

    /// Events of the deployment, oldest first.
    pub(crate) async fn events(&self) -> Result<Vec<Event>> {
        of_each!(self, it => it.events().await)
    }

    /// Stops the deployment and removes all of it.
    pub(crate) async fn delete(&self) -> Result<()> {
        of_each!(self, it => it.delete().await)
    }

    /// Stops the server and starts it again.
    pub(crate) async fn restart(&self) -> Result<()> {
        of_each!(self, it => it.restart().await)
    }
}

/// A deployment that exists now.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) handle: Handle,
    /// Whether this call has made it. After a failure another client's deployment is left alone.
    pub(crate) is_own: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_known_by_their_names() {
        for name in BACKENDS {
            assert_eq!(name.parse::<Backend>().unwrap().as_str(), name);
        }
        let error = "slurm".parse::<Backend>().unwrap_err();
        assert_eq!(error.to_string(), "backend `slurm`: choose one of process, docker, kubernetes");
    }

    #[test]
    fn namespaces_and_contexts_are_a_clusters() {
        let of = |name, namespace, context| Backend::from_words(name, namespace, context);
        assert_eq!(of(None, None, None).unwrap(), None);
        assert_eq!(of(Some("process"), None, None).unwrap(), Some(Backend::Process));
        for name in [None, Some("kubernetes")] {
            let context = Some("home".to_owned());
            let expected = Backend::Kubernetes { context, namespace: Some("models".to_owned()) };
            assert_eq!(of(name, Some("models"), Some("home")).unwrap(), Some(expected));
        }
        for namespace in ["", "A b"] {
            let error = of(None, Some(namespace), None).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("namespace `{namespace}`: a namespace has")),
                "{error}"
            );
        }
        let error = of(Some("docker"), None, Some("home")).unwrap_err();
        assert_eq!(error.to_string(), "context `home`: the docker backend has none");
    }
}
