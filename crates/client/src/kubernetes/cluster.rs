//! A cluster: the connection to its API server, and readable errors.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret, Service};
use kube::api::{Api, ListParams};
use kube::config::KubeConfigOptions;
use kube::{Client, Config};

use super::manifest::{Description, selector};
use super::workload::Workload;
use crate::error::{Error, Result};
use crate::health::Health;

/// Time limit for a connection to the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// The environment variable by which a pod knows that it runs in a cluster.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// A namespace of a cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    /// A client without retries. A server that starts answers 503 to health checks, which must not be
    /// retried.
    direct: Client,
    pub(super) namespace: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster({})", self.namespace)
    }
}

impl Cluster {
    /// The cluster of a context, else of the current context, else the one that this process runs in. No
    /// request is made yet.
    ///
    /// # Errors
    /// No cluster is configured, or its configuration cannot be used.
    pub(crate) async fn connect(context: Option<&str>, namespace: Option<&str>) -> Result<Self> {
        let wrong = |cause: &dyn std::fmt::Display| {
            Error::backend(
                "no cluster can be used",
                format!("{cause}; name a kubeconfig in KUBECONFIG, or a context of it"),
            )
        };
        let mut config = match context {
            None => Config::infer().await.map_err(|error| wrong(&error))?,
            Some(context) => {
                let options =
                    KubeConfigOptions { context: Some(context.into()), ..Default::default() };
                Config::from_kubeconfig(&options).await.map_err(|error| wrong(&error))?
            }
        };
        config.connect_timeout = Some(PATIENCE);
        // Both the kubeconfig and a pod's own service account name a namespace.
        let namespace = namespace.unwrap_or(&config.default_namespace).to_owned();
        let mut direct = config.clone();
        direct.default_retry = false;
        let direct = Client::try_from(direct).map_err(|error| wrong(&error))?;
        let client = Client::try_from(config).map_err(|error| wrong(&error))?;
        Ok(Self { client, direct, namespace })
    }

    pub(super) fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(super) fn events(&self) -> Api<Event> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The deployment of this name.
    ///
    /// # Errors
    /// There is none that this backend has made.
    pub(crate) async fn find(&self, name: &str) -> Result<Workload> {
        let found = self.deployments().get_opt(name).await;
        let found = found.map_err(|error| self.wrong("be asked", error))?;
        // A Deployment of another program counts as none: this backend must not touch it.
        let description = found.as_ref().and_then(Description::of);
        match description {
            Some(description) => Ok(Workload { cluster: self.clone(), description }),
            None => Err(Error::NotFound { name: name.to_owned() }),
        }
    }

    /// All deployments of this namespace.
    pub(crate) async fn list(&self) -> Result<Vec<Workload>> {
        let ours = ListParams::default().labels(&selector(None));
        let found = self.deployments().list(&ours).await;
        let found = found.map_err(|error| self.wrong("be asked", error))?;
        let descriptions = found.iter().filter_map(Description::of);
        Ok(descriptions
            .map(|description| Workload { cluster: self.clone(), description })
            .collect())
    }

    /// The pods of a deployment, oldest first.
    pub(super) async fn pods_of(&self, name: &str) -> Result<Vec<Pod>> {
        let theirs = ListParams::default().labels(&selector(Some(name)));
        let found = self.pods().list(&theirs).await;
        let mut pods = found.map_err(|error| self.wrong("list pods", error))?.items;
        pods.sort_by(|a, b| a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp));
        Ok(pods)
    }

    /// The cluster's nodes; `None` if this user has no permission to list them.
    pub(super) async fn nodes(&self) -> Result<Option<Vec<Node>>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        match nodes.list(&ListParams::default()).await {
            Ok(found) => Ok(Some(found.items)),
            // Nodes belong to the whole cluster, and users are often confined to a namespace.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
            Err(error) => Err(self.wrong("be asked", error)),
        }
    }

    /// The health of the server in a pod, through the API server; `None` if it does not answer.
    pub(super) async fn health(&self, pod: &str, scheme: &str, port: u16) -> Option<Health> {
        let pods = format!("/api/v1/namespaces/{}/pods", self.namespace);
        let request = kube::core::Request::new(pods);
        // Pods usually have no address that this machine can reach, so the API server passes the request on.
        let request = request.get_subresource("proxy/health", &format!("{scheme}:{pod}:{port}"));
        let request = request.ok()?;
        let answer = tokio::time::timeout(PATIENCE, async {
            let response = self.direct.send(request.map(Into::into)).await.ok()?;
            response.into_body().collect_bytes().await.ok()
        });
        Health::read(&answer.await.ok()??)
    }

    /// The address of a service. Its name can be resolved by the cluster's pods only.
    pub(super) fn url(&self, scheme: &str, service: &str, port: u16) -> String {
        format!("{scheme}://{service}.{}.svc:{port}", self.namespace)
    }

    /// The hint for reaching that address from here; empty within the cluster.
    pub(super) fn hint(&self, name: &str) -> String {
        if std::env::var_os(IN_CLUSTER).is_some() {
            return String::new();
        }
        let namespace = &self.namespace;
        format!(
            "the address is known within the cluster; `candlepower forward {name} --namespace {namespace}` opens it here"
        )
    }

    /// The error for a request that the API server did not fulfil.
    pub(super) fn wrong(&self, what: &str, error: kube::Error) -> Error {
        let doing = format!("the cluster cannot {what}, in the namespace {}", self.namespace);
        match error {
            kube::Error::Api(status) if status.message.contains("exceeded quota") => {
                Error::ResourceUnavailable {
                    asked: "more than the namespace's quota was".into(),
                    available: status.message,
                }
            }
            kube::Error::Api(status) => {
                let hint = match status.code {
                    401 => "; sign in to the cluster again",
                    403 => "; ask the cluster's administrator for a role that allows it",
                    _ => "",
                };
                Error::backend(doing, format!("{}{hint}", status.message))
            }
            error => Error::backend(doing, innermost(&error)),
        }
    }
}

/// The message of the innermost error, without those of the layers around it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
