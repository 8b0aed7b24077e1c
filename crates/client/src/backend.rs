//! Where servers run, and what can be done with a deployment wherever it runs.
//!
//! A backend deploys a [`Plan`](crate::check::Plan), finds what it has deployed by name, and lists it. What it finds is a
//! [`Handle`]; each arm has the same few operations.

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
    /// A process of this machine, with a supervisor of its own.
    #[default]
    Process,
    /// A container of Docker or Podman on this machine; in builds with the feature `docker`.
    Docker {
        /// The engine's socket, `unix:///path` [default: as `DOCKER_HOST` says, or the first that answers].
        host: Option<String>,
    },
    /// Pods of a cluster; in builds with the feature `kubernetes`.
    Kubernetes {
        /// The context of the kubeconfig [default: the current one, or the cluster that this process runs in].
        context: Option<String>,
        /// The namespace [default: the context's].
        namespace: Option<String>,
    },
}

/// The names of all backends.
pub(crate) const BACKENDS: [&str; 3] = [PROCESS, DOCKER, KUBERNETES];
pub(crate) const PROCESS: &str = "process";
pub(crate) const DOCKER: &str = "docker";
pub(crate) const KUBERNETES: &str = "kubernetes";

impl Backend {
    /// Its name.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Process => PROCESS,
            Self::Docker { .. } => DOCKER,
            Self::Kubernetes { .. } => KUBERNETES,
        }
    }

    /// The backend that words name; none where they name none. A namespace or a context is a cluster's.
    ///
    /// # Errors
    /// There is no such backend, or it has no namespaces and contexts.
    pub fn from_words(
        name: Option<&str>,
        namespace: Option<&str>,
        context: Option<&str>,
    ) -> Result<Option<Self>> {
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
                format!("the {} backend knows none", other.as_str()),
            )),
            (backend, None) => Ok(backend),
        }
    }

    /// A deployment of this name.
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

    /// All deployments here.
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
    /// This build does not have it, or its namespace can be none.
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
            "this build does not have it: the container image does, and what is built with \
             `cargo build --release --features full`",
        )
    }
}

fn check_namespace(namespace: Option<&str>) -> Result<()> {
    match namespace {
        Some(namespace) if !is_label(namespace) => Err(Error::validation(
            "namespace",
            namespace,
            "a namespace has at most 63 small letters, digits and hyphens, and no hyphen at its ends",
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
                format!("possible are {}", BACKENDS.join(", ")),
            )),
        }
    }
}

/// A deployment, where it is.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    Process(process::Supervised),
    #[cfg(feature = "docker")]
    Docker(docker::Container),
    #[cfg(feature = "kubernetes")]
    Kubernetes(kubernetes::Workload),
}

/// The same for each arm.
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
    /// A process is started again with this program.
    pub(crate) fn with_binary(self, binary: Option<PathBuf>) -> Self {
        match self {
            Self::Process(it) => Self::Process(it.with_binary(binary)),
            #[cfg(any(feature = "docker", feature = "kubernetes"))]
            other => other,
        }
    }

    /// Where it is, with the client's own settings if they are of that kind.
    pub(crate) fn backend(&self, own: Option<&Backend>) -> Backend {
        let here = match self {
            Self::Process(_) => Backend::Process,
            #[cfg(feature = "docker")]
            Self::Docker(_) => Backend::Docker { host: None },
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => Backend::Kubernetes { context: None, namespace: None },
        };
        own.filter(|own| own.as_str() == here.as_str()).cloned().unwrap_or(here)
    }

    /// The spec that it was made with.
    pub(crate) fn spec(&self) -> Result<Spec> {
        of_each!(self, it => it.spec())
    }

    /// How often a deployment that starts is looked at: a cluster is asked over the network, for everybody in it.
    pub(crate) fn pace(&self) -> Duration {
        Duration::from_millis(match self {
            Self::Process(_) => 50,
            #[cfg(feature = "docker")]
            Self::Docker(_) => 100,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => 1000,
        })
    }

    /// Looks at it.
    pub(crate) async fn read(&self) -> Result<Deployment> {
        of_each!(self, it => it.read().await)
    }

    /// How it is just now.
    pub(crate) async fn status(&self) -> Result<DeploymentStatus> {
        of_each!(self, it => it.status().await)
    }

    /// The newest `tail` lines of its log, or all, the oldest first.
    pub(crate) async fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        of_each!(self, it => it.logs(tail).await)
    }

    /// The newest `tail` lines of its log, or all, and those to come.
    pub(crate) async fn follow(&self, tail: Option<usize>) -> Result<LogStream> {
        of_each!(self, it => it.follow(tail).await)
    }

    /// What has happened to it, the oldest first.
    pub(crate) async fn events(&self) -> Result<Vec<Event>> {
        of_each!(self, it => it.events().await)
    }

    /// Ends it and removes all of it.
    pub(crate) async fn delete(&self) -> Result<()> {
        of_each!(self, it => it.delete().await)
    }

    /// Ends its server and starts it again.
    pub(crate) async fn restart(&self) -> Result<()> {
        of_each!(self, it => it.restart().await)
    }
}

/// A deployment that is there now.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) handle: Handle,
    /// Whether this call has made it; another client's is left alone if it fails.
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
        assert_eq!(error.to_string(), "backend `slurm`: possible are process, docker, kubernetes");
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
        assert_eq!(error.to_string(), "context `home`: the docker backend knows none");
    }
}
