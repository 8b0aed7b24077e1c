//! Translates a cluster's objects into a deployment's state. This is a pure function, so that tests can pass
//! recorded objects.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use crate::health::Health;
use crate::logs::last_words;
use crate::status::{Phase, State};

/// State of a deployment at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) state: State,
    pub(super) phase: Phase,
    pub(super) message: String,
    pub(super) ready: u32,
    pub(super) desired: u32,
    pub(super) restarts: u32,
    pub(super) exit_code: Option<i32>,
}

/// State of one pod that is not ready.
#[derive(Clone, Debug, PartialEq)]
struct PodState {
    state: State,
    phase: Phase,
    message: String,
}

impl PodState {
    fn new(state: State, phase: Phase, message: impl Into<String>) -> Self {
        Self { state, phase, message: message.into() }
    }

    fn failed(message: impl Into<String>) -> Self {
        Self::new(State::Failed, Phase::Failed, message)
    }
}

/// The state of a deployment. Its pods come oldest first. `health` is the answer of the newest pod's server,
/// if it was asked. `hint` is the message of a deployment that is well.
pub(super) fn seen(
    deployment: &Deployment,
    pods: &[Pod],
    health: Option<&Health>,
    hint: &str,
) -> Seen {
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = ready_replicas(deployment);
    // The newest pods come last.
    let last = pods.iter().rev().find_map(last_end);
    let of = |pod: PodState| Seen {
        state: pod.state,
        phase: pod.phase,
        message: pod.message,
        ready: count(ready),
        desired: count(desired),
        restarts: pods.iter().filter_map(server).map(|server| count(server.restart_count)).sum(),
        exit_code: last.map(|end| end.exit_code),
    };
    if deployment.metadata.deletion_timestamp.is_some() {
        return of(PodState::new(State::Terminating, Phase::Terminating, ""));
    }
    if ready >= desired {
        return of(PodState::new(State::Running, Phase::Ready, hint));
    }
    // Among several pods, the one with the least progress names the problem.
    let states = pods.iter().map(|pod| pod_state(pod, health));
    let worst = states.max_by_key(|pod| badness(pod.state));
    if ready > 0 {
        let more = worst.filter(|pod| !pod.message.is_empty());
        let more = more.map_or(String::new(), |pod| format!(": {}", pod.message));
        let message = format!("{ready} of {desired} replicas are ready{more}");
        return of(PodState::new(State::Running, Phase::Degraded, message));
    }
    let trouble = condition_trouble(deployment);
    of(match (worst, trouble) {
        (Some(pod), Some(trouble)) if pod.state != State::Failed && pod.message.is_empty() => {
            trouble
        }
        // The cluster's own time limit has passed. The pod's message is the reason.
        (Some(pod), Some(trouble)) => PodState { message: pod.message, ..trouble },
        (Some(pod), None) => pod,
        (None, Some(trouble)) => trouble,
        (None, None) => PodState::new(State::Pending, Phase::Pending, ""),
    })
}

/// Number of ready replicas that run the newest description.
fn ready_replicas(deployment: &Deployment) -> i32 {
    let Some(status) = &deployment.status else { return 0 };
    // Until the cluster has read the newest description, the status is that of the previous one.
    if status.observed_generation < deployment.metadata.generation {
        return 0;
    }
    let (ready, updated) = (status.ready_replicas, status.updated_replicas);
    let old = status.replicas.unwrap_or(0) - updated.unwrap_or(0);
    // The count of ready replicas includes old pods that still answer.
    (ready.unwrap_or(0) - old).clamp(0, updated.unwrap_or(0).max(0))
}

fn condition_trouble(deployment: &Deployment) -> Option<PodState> {
    let conditions = deployment.status.as_ref()?.conditions.as_deref()?;
    let find = |kind: &str, status: &str| {
        conditions.iter().find(|found| found.type_ == kind && found.status == status)
    };
    let words = |found: &DeploymentCondition| found.message.clone().unwrap_or_default();
    if let Some(failure) = find("ReplicaFailure", "True") {
        return Some(PodState::failed(format!("no pod can be made: {}", words(failure))));
    }
    let progressing = find("Progressing", "False")?;
    let is_late = progressing.reason.as_deref() == Some("ProgressDeadlineExceeded");
    is_late.then(|| PodState::failed(format!("it was not ready in time: {}", words(progressing))))
}

fn pod_state(pod: &Pod, health: Option<&Health>) -> PodState {
    let Some(status) = &pod.status else {
        return PodState::new(State::Pending, Phase::Pending, "");
    };
    if pod.metadata.deletion_timestamp.is_some() {
        return PodState::new(State::Provisioning, Phase::Scheduling, "the pod before is ending");
    }
    if status.phase.as_deref() == Some("Failed") {
        let words = status.message.as_ref().or(status.reason.as_ref()).cloned();
        return PodState::failed(words.unwrap_or_else(|| "the pod has failed".into()));
    }
    let conditions = status.conditions.iter().flatten();
    let unscheduled =
        conditions.clone().find(|found| found.type_ == "PodScheduled" && found.status == "False");
    if let Some(unscheduled) = unscheduled {
        let words = unscheduled.message.clone().unwrap_or_default();
        return PodState::new(
            State::Pending,
            Phase::Scheduling,
            format!("no node can take it: {words}"),
        );
    }
    let Some(server) = server(pod) else {
        return PodState::new(State::Pending, Phase::Scheduling, "");
    };
    let Some(current) = &server.state else {
        return PodState::new(State::Provisioning, Phase::Scheduling, "");
    };
    if let Some(waiting) = &current.waiting {
        return waiting_state(
            server,
            waiting.reason.as_deref().unwrap_or_default(),
            waiting.message.as_deref().unwrap_or_default(),
        );
    }
    if let Some(end) = &current.terminated {
        return PodState::new(
            State::Provisioning,
            Phase::Degraded,
            format!("{}; starting it again", how_it_ended(end)),
        );
    }
    running_state(server, health)
}

/// The reason that a container does not run. Source: the reasons that the kubelet gives,
/// kubernetes/pkg/kubelet.
fn waiting_state(server: &ContainerStatus, reason: &str, message: &str) -> PodState {
    let said = if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") };
    match reason {
        // The cluster would try for ever. The deployment counts as failed now, with the reason of the last end.
        "CrashLoopBackOff" => {
            let end = server.last_state.as_ref().and_then(|last| last.terminated.as_ref());
            let why = end.map_or(message.to_owned(), how_it_ended);
            PodState::failed(format!("{why}; it was started again {} times", server.restart_count))
        }
        "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" | "RegistryUnavailable" => {
            PodState::failed(format!("the image {} cannot be had: {said}", server.image))
        }
        "CreateContainerError" | "RunContainerError" => {
            PodState::failed(format!("the container cannot be started: {said}"))
        }
        // The image is being fetched, or the Secret does not exist yet.
        "ContainerCreating" | "PodInitializing" => {
            PodState::new(State::Provisioning, Phase::Scheduling, "")
        }
        _ => PodState::new(State::Provisioning, Phase::Scheduling, said),
    }
}

fn running_state(server: &ContainerStatus, health: Option<&Health>) -> PodState {
    let before = server.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let before = before.map(|end| format!("{}; it was started again", how_it_ended(end)));
    let message = health.and_then(|health| health.message.clone()).or(before).unwrap_or_default();
    // `started` becomes true once the startup probe has succeeded. So this server has been healthy.
    if server.started == Some(true) {
        let message = if message.is_empty() { "the server is not healthy".into() } else { message };
        return PodState::new(State::Running, Phase::Degraded, message);
    }
    let phase = match health.and_then(|health| health.phase.as_deref()).and_then(Phase::named) {
        // The end of the process comes next and has the better reason.
        None | Some(Phase::Failed | Phase::Pending) => Phase::Initializing,
        Some(phase) => phase,
    };
    PodState::new(State::Provisioning, phase, message)
}

fn how_it_ended(end: &ContainerStateTerminated) -> String {
    let lines: Vec<String> =
        end.message.iter().flat_map(|text| text.lines()).map(str::to_owned).collect();
    match (end.reason.as_deref(), last_words(&lines)) {
        (Some("OOMKilled"), _) => "it ran out of the memory that it was given (OOMKilled)".into(),
        (_, Some(words)) => format!("the server ended with status {}: {words}", end.exit_code),
        (_, None) => format!("the server ended with status {}", end.exit_code),
    }
}

fn server(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|found| found.name == "server")
}

/// The last end of a pod's server.
fn last_end(pod: &Pod) -> Option<&ContainerStateTerminated> {
    let server = server(pod)?;
    let now = server.state.as_ref().and_then(|state| state.terminated.as_ref());
    now.or(server.last_state.as_ref().and_then(|state| state.terminated.as_ref()))
}

fn badness(state: State) -> u32 {
    match state {
        State::Failed => 3,
        State::Pending => 2,
        State::Provisioning => 1,
        _ => 0,
    }
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests;
