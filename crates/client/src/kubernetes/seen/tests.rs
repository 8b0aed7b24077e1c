//! Tests with objects of a cluster: `recorded` has one file for each case. Fields and reasons are those of
//! the API server and the kubelet of Kubernetes 1.33. The files are written by hand from the API's reference, not
//! captured.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Recorded {
    deployment: Deployment,
    pods: Vec<Pod>,
}

macro_rules! recorded {
    ($name:literal) => {
        serde_json::from_str::<Recorded>(include_str!(concat!("../recorded/", $name, ".json")))
            .unwrap()
    };
}

fn see(recorded: &Recorded, health: Option<&str>) -> Seen {
    let health: Option<Health> = health.map(|text| serde_json::from_str(text).unwrap());
    seen(&recorded.deployment, &recorded.pods, health.as_ref(), "all is well")
}

/// Checks state and phase, and returns the message.
#[track_caller]
fn message(recorded: &Recorded, state: State, phase: Phase) -> String {
    let seen = see(recorded, None);
    assert_eq!((seen.state, seen.phase), (state, phase), "{}", seen.message);
    seen.message
}

#[test]
fn a_pod_that_no_node_can_take_waits_and_says_for_what() {
    let words = message(&recorded!("unschedulable"), State::Pending, Phase::Scheduling);
    assert!(
        words.starts_with(
            "no node can take it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
        ),
        "{words}"
    );
}

#[test]
fn what_is_on_its_way_is_no_failure() {
    assert_eq!(message(&recorded!("new"), State::Pending, Phase::Pending), "");
    assert_eq!(message(&recorded!("creating"), State::Provisioning, Phase::Scheduling), "");
    assert_eq!(message(&recorded!("starting"), State::Provisioning, Phase::Initializing), "");
    assert_eq!(
        message(&recorded!("no_secret"), State::Provisioning, Phase::Scheduling),
        "CreateContainerConfigError: secret \"chat\" not found"
    );
}

#[test]
fn a_server_that_starts_is_where_it_says() {
    let recorded = recorded!("starting");
    let seen =
        see(&recorded, Some(r#"{"status":"starting","phase":"pulling","message":"1 of 2 files"}"#));
    assert_eq!((seen.state, seen.phase), (State::Provisioning, Phase::Pulling));
    assert_eq!(seen.message, "1 of 2 files");
}

#[test]
fn images_and_programs_that_are_not_there_are_failures() {
    let words = message(&recorded!("image_pull"), State::Failed, Phase::Failed);
    assert!(
        words.starts_with("the image candlepower:0.1.0-cpu cannot be had: ImagePullBackOff: "),
        "{words}"
    );
    let words = message(&recorded!("no_program"), State::Failed, Phase::Failed);
    assert!(words.contains("executable file not found in $PATH"), "{words}");
}

#[test]
fn a_lack_of_memory_is_named() {
    let first = recorded!("oom_killed");
    assert_eq!(
        message(&first, State::Provisioning, Phase::Degraded),
        "it ran out of the memory that it was given (OOMKilled); starting it again"
    );
    assert_eq!(see(&first, None).exit_code, Some(137));
    let again = recorded!("oom_crash_loop");
    assert_eq!(
        message(&again, State::Failed, Phase::Failed),
        "it ran out of the memory that it was given (OOMKilled); it was started again 3 times"
    );
    assert_eq!(see(&again, None).restarts, 3);
}

#[test]
fn a_crash_loop_has_the_servers_last_words() {
    let recorded = recorded!("crash_loop");
    assert_eq!(
        message(&recorded, State::Failed, Phase::Failed),
        "the server ended with status 2: the environment variable BLAZE_NONSENSE is not known; did you mean \
         BLAZE_NO_PREFIX_CACHING?; it was started again 2 times"
    );
    assert_eq!(see(&recorded, None).exit_code, Some(2));
}

#[test]
fn what_the_cluster_refuses_or_gives_up_is_a_failure() {
    let words = message(&recorded!("evicted"), State::Failed, Phase::Failed);
    assert!(words.starts_with("The node was low on resource: ephemeral-storage"), "{words}");
    let words = message(&recorded!("quota"), State::Failed, Phase::Failed);
    assert!(words.contains("exceeded quota: gpus"), "{words}");
    let words = message(&recorded!("too_late"), State::Failed, Phase::Failed);
    assert!(words.starts_with("it was not ready in time"), "{words}");
}

#[test]
fn ready_counts_replicas_of_the_newest_description_only() {
    let ready = see(&recorded!("ready"), None);
    assert_eq!((ready.state, ready.phase, ready.ready), (State::Running, Phase::Ready, 1));
    assert_eq!((ready.message.as_str(), ready.exit_code), ("all is well", None));
    let partly = recorded!("partly_ready");
    assert_eq!(
        message(&partly, State::Running, Phase::Degraded),
        "2 of 3 replicas are ready: no node can take it: 0/2 nodes are available: 2 Insufficient memory."
    );
    assert_eq!((see(&partly, None).ready, see(&partly, None).desired), (2, 3));
    assert_eq!(see(&recorded!("restarting"), None).ready, 0);
}

#[test]
fn a_server_that_was_ready_is_degraded_and_says_what_happened() {
    assert_eq!(
        message(&recorded!("unhealthy"), State::Running, Phase::Degraded),
        "the server ended with status 1: the engine has failed; it was started again"
    );
    message(&recorded!("deleting"), State::Terminating, Phase::Terminating);
}
