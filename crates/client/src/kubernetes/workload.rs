//! A deployment in a cluster: its state for clients, and its operations.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::Deployment as KubeDeployment;
use k8s_openapi::api::core::v1::{Event as KubeEvent, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use super::cluster::Cluster;
use super::logs::{self, Followed};
use super::manifest::Description;
use super::seen::{Seen, seen};
use crate::backend::{Handle, KUBERNETES};
use crate::deployment::Deployment;
use crate::error::{Error, Result};
use crate::forward::Forward;
use crate::health::Health;
use crate::logs::LogStream;
use crate::spec::Spec;
use crate::status::{DeploymentStatus, Event, Phase, Progress, State, now};

/// Interval and time limit of the checks whether a deployment is gone.
const LOOK: Duration = Duration::from_millis(200);
const GONE_PATIENCE: Duration = Duration::from_secs(90);
/// The annotation that `kubectl rollout restart` sets.
pub(super) const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

/// A deployment in a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(super) cluster: Cluster,
    pub(super) description: Description,
}

/// All known facts about a deployment at one moment.
struct Look {
    deployment: KubeDeployment,
    pods: Vec<Pod>,
    health: Option<Health>,
    seen: Seen,
}

impl Workload {
    pub(crate) async fn read(&self) -> Result<Deployment> {
        let Look { deployment, seen, .. } = self.look().await?;
        let spec = &self.description.spec;
        let created_at = seconds(deployment.metadata.creation_timestamp.as_ref()).unwrap_or(0.0);
        let status = deployment.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let changes = conditions.filter_map(|found| seconds(found.last_transition_time.as_ref()));
        let template = deployment.spec.and_then(|found| found.template.spec);
        Ok(Deployment {
            name: spec.name.clone(),
            url: self.cluster.url(spec.scheme(), &spec.name, self.description.port()),
            state: seen.state,
            phase: seen.phase,
            message: seen.message,
            backend: KUBERNETES,
            framework: spec.framework,
            model: spec.model.clone(),
            image: template.and_then(|pod| pod.containers.into_iter().next()?.image),
            updated_at: changes.fold(created_at, f64::max),
            created_at,
            handle: Handle::Kubernetes(self.clone()),
        })
    }

    /// The spec that it was made with.
    pub(crate) fn spec(&self) -> Result<Spec> {
        Ok(self.description.spec.clone())
    }

    pub(crate) async fn status(&self) -> Result<DeploymentStatus> {
        let Look { deployment, pods, health, seen } = self.look().await?;
        let now = now();
        let created_at = seconds(deployment.metadata.creation_timestamp.as_ref()).unwrap_or(now);
        // Pods that were replaced are no longer listed, so their time is missing.
        let starts = pods.iter().filter_map(|pod| pod.status.as_ref()?.start_time.as_ref());
        let run_s: f64 = starts.filter_map(|start| Some(now - seconds(Some(start))?)).sum();
        let bytes = health.and_then(|health| health.progress);
        Ok(DeploymentStatus {
            state: seen.state,
            phase: seen.phase,
            is_ready: seen.state == State::Running && seen.ready >= seen.desired,
            message: seen.message,
            progress: Progress {
                step: seen.phase,
                bytes_done: bytes.map_or(0, |bytes| bytes.bytes_done),
                bytes_total: bytes.map_or(0, |bytes| bytes.bytes_total),
                elapsed_s: now - created_at,
            },
            replicas_ready: seen.ready,
            replicas_desired: seen.desired,
            restarts: seen.restarts,
            exit_code: seen.exit_code,
            gpu_seconds: f64::from(self.description.gpus) * run_s,
        })
    }

    pub(crate) async fn logs(&self, tail: Option<usize>) -> Result<Vec<String>> {
        logs::tail(&self.cluster, self.name(), tail).await
    }

    pub(crate) async fn follow(&self, tail: Option<usize>) -> Result<LogStream> {
        let followed = Followed::new(self.cluster.clone(), self.name().to_owned(), tail).await?;
        Ok(LogStream::new(followed))
    }

    pub(crate) async fn events(&self) -> Result<Vec<Event>> {
        let found = self.cluster.events().list(&ListParams::default()).await;
        let found = found.map_err(|error| self.cluster.wrong("list events", error))?.items;
        let ours = found.iter().filter(|event| is_about(event, self.name()));
        let mut events: Vec<Event> = ours.map(event).collect();
        events.sort_by_key(|event| event.time);
        Ok(events)
    }

    pub(crate) async fn delete(&self) -> Result<()> {
        let (cluster, name) = (&self.cluster, self.name());
        let found = cluster.deployments().get_opt(name).await;
        let found = found.map_err(|error| cluster.wrong("be asked", error))?;
        if found.is_some_and(|found| !self.is_meant(&found)) {
            return Err(Error::NotFound { name: name.to_owned() });
        }
        // With `Foreground` the Deployment stays until its pods have ended. So its absence means that all is gone.
        let propagation_policy = Some(PropagationPolicy::Foreground);
        let cascade = DeleteParams { propagation_policy, ..DeleteParams::default() };
        gone(cluster.deployments().delete(name, &cascade).await)
            .map_err(|error| cluster.wrong("delete the Deployment", error))?;
        // Objects made by `kubectl apply` have no owner reference, so the cluster does not delete them with
        // the Deployment.
        let plain = DeleteParams::default();
        gone(cluster.services().delete(name, &plain).await)
            .map_err(|error| cluster.wrong("delete the Service", error))?;
        // A user without secrets may have no permission to delete any, so the request is made only if there is one.
        if !self.description.spec.secret_names.is_empty() || self.has_secret().await {
            gone(cluster.secrets().delete(name, &plain).await)
                .map_err(|error| cluster.wrong("delete the Secret", error))?;
        }
        let begin = Instant::now();
        let patience = GONE_PATIENCE + Duration::from_secs(self.description.spec.stop_seconds(0));
        while begin.elapsed() < patience {
            let found = cluster.deployments().get_opt(name).await;
            if found.map_err(|error| cluster.wrong("be asked", error))?.is_none() {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(Error::backend(
            format!("`{name}` is not gone after {} s", patience.as_secs()),
            "its pods are still ending",
        ))
    }

    pub(crate) async fn restart(&self) -> Result<()> {
        let (cluster, name) = (&self.cluster, self.name());
        let time = jiff::Timestamp::now().to_string();
        // A changed template makes the cluster replace the pods, by the Deployment's own strategy.
        let patch = json!({ "spec": { "template": { "metadata": { "annotations": { RESTARTED: time } } } } });
        let patched =
            cluster.deployments().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map(|_| ()).map_err(|error| cluster.wrong("restart the Deployment", error))
    }

    /// Opens a port of this machine that leads to the server, until the result is dropped.
    pub(crate) async fn forward(&self, port: u16) -> Result<Forward> {
        let this = self.clone();
        let scheme = self.description.spec.scheme();
        Forward::open(scheme, port, move |stream| this.clone().lead(stream)).await
    }

    /// Connects a stream to a ready pod. On failure the stream is closed, as the server would close it.
    async fn lead(self, mut stream: TcpStream) {
        let Ok(pods) = self.cluster.pods_of(self.name()).await else { return };
        // Before any pod is ready, the newest one gives the reason.
        let Some(pod) = pods.iter().find(|pod| is_ready(pod)).or(pods.last()) else { return };
        let (name, port) =
            (pod.metadata.name.as_deref().unwrap_or_default(), self.description.port());
        let Ok(mut forwarder) = self.cluster.pods().portforward(name, &[port]).await else {
            return;
        };
        if let Some(mut upstream) = forwarder.take_stream(port) {
            let _ = copy_bidirectional(&mut stream, &mut upstream).await;
        }
    }

    /// Whether the cluster has a Secret for it. The parameters do not say so: the hub's token comes from the
    /// environment.
    async fn has_secret(&self) -> bool {
        let found = self.cluster.deployments().get_opt(self.name()).await.ok().flatten();
        let pod = found.and_then(|found| found.spec?.template.spec);
        let containers = pod.map(|pod| pod.containers).unwrap_or_default();
        containers.iter().flat_map(|container| container.env.iter().flatten()).any(|variable| {
            variable.value_from.as_ref().is_some_and(|from| from.secret_key_ref.is_some())
        })
    }

    async fn look(&self) -> Result<Look> {
        let (cluster, name) = (&self.cluster, self.name());
        let deployment = cluster.deployments().get_opt(name).await;
        let deployment = deployment.map_err(|error| cluster.wrong("be asked", error))?;
        let deployment = deployment.filter(|found| self.is_meant(found));
        let deployment = deployment.ok_or_else(|| Error::NotFound { name: name.to_owned() })?;
        let pods = cluster.pods_of(name).await?;
        let warnings = self.description.warnings.iter().cloned();
        let hint = Some(cluster.hint(name)).filter(|hint| !hint.is_empty());
        let hint: Vec<String> = warnings.chain(hint).collect();
        let hint = hint.join("; ");
        let first = seen(&deployment, &pods, None, &hint);
        // While a server starts, its own message says more than the cluster's.
        let starts = matches!(first.phase, Phase::Initializing | Phase::Degraded);
        let pod = pods.last().and_then(|pod| pod.metadata.name.as_deref());
        let health = match pod {
            Some(pod) if starts => {
                let Description { spec, .. } = &self.description;
                cluster.health(pod, spec.scheme(), self.description.port()).await
            }
            _ => None,
        };
        let seen = match &health {
            Some(_) => seen(&deployment, &pods, health.as_ref(), &hint),
            None => first,
        };
        Ok(Look { deployment, pods, health, seen })
    }

    /// Whether this is still the deployment that was found or made, and not a newer one of the same name.
    fn is_meant(&self, deployment: &KubeDeployment) -> bool {
        Description::of(deployment).is_some_and(|found| found.spec == self.description.spec)
    }

    fn name(&self) -> &str {
        &self.description.spec.name
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|found| found.type_ == "Ready" && found.status == "True")
}

/// Treats an object that is gone already as deleted.
fn gone<T>(deleted: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(|_| ()),
    }
}

fn seconds(time: Option<&Time>) -> Option<f64> {
    time.map(|time| time.0.as_duration().as_secs_f64())
}

/// Whether an event is about a deployment, one of its ReplicaSets or one of its pods. Their names consist of
/// the deployment's name, a hash and five letters.
fn is_about(event: &KubeEvent, name: &str) -> bool {
    let about = &event.involved_object;
    let found = about.name.as_deref().unwrap_or_default();
    let parts: Option<Vec<&str>> = found
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('-'))
        .map(|rest| rest.split('-').collect());
    match (about.kind.as_deref(), parts.as_deref()) {
        (Some("Deployment"), _) => found == name,
        (Some("ReplicaSet"), Some([_])) => true,
        (Some("Pod"), Some([_, pod])) => pod.len() == 5,
        _ => false,
    }
}

fn event(event: &KubeEvent) -> Event {
    // The field depends on the component that reports the event.
    let time = seconds(event.last_timestamp.as_ref())
        .or_else(|| event.event_time.as_ref().map(|time| time.0.as_duration().as_secs_f64()))
        .or_else(|| seconds(event.metadata.creation_timestamp.as_ref()));
    let reason = event.reason.as_deref().unwrap_or_default();
    let (state, phase) = match reason {
        "FailedScheduling" | "Scheduled" => (State::Pending, Phase::Scheduling),
        "ScalingReplicaSet" | "SuccessfulCreate" | "Pulling" | "Pulled" => {
            (State::Provisioning, Phase::Scheduling)
        }
        "Created" | "Started" => (State::Provisioning, Phase::Initializing),
        "Unhealthy" => (State::Provisioning, Phase::HealthCheck),
        "Killing" | "SuccessfulDelete" => (State::Terminating, Phase::Terminating),
        "BackOff" | "Failed" | "FailedMount" | "FailedCreate" | "Evicted" => {
            (State::Provisioning, Phase::Degraded)
        }
        _ => (State::Unknown, Phase::Pending),
    };
    let message = format!("{reason}: {}", event.message.as_deref().unwrap_or_default());
    Event { time: time.unwrap_or(0.0) as u64, state, phase, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_the_deployments_own_objects_are_told() {
        let told = |kind: &str, name: &str| {
            let event = json!({
                "metadata": {"creationTimestamp": "2026-11-21T20:00:00Z"}, "reason": "Started", "message": "x",
                "involvedObject": {"kind": kind, "name": name},
            });
            let found: KubeEvent = serde_json::from_value(event).unwrap();
            is_about(&found, "chat").then(|| super::event(&found))
        };
        for (kind, name) in
            [("Deployment", "chat"), ("ReplicaSet", "chat-5d4f"), ("Pod", "chat-5d4f-abcde")]
        {
            let event = told(kind, name).unwrap();
            assert_eq!((event.phase, event.message.as_str()), (Phase::Initializing, "Started: x"));
        }
        for (kind, name) in
            [("Deployment", "chat-2"), ("Pod", "chat-2-5d4f-abcde"), ("Node", "chat")]
        {
            assert!(told(kind, name).is_none(), "{kind} {name}");
        }
    }
}
