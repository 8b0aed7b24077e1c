//! Translates an engine's description of a container into a deployment's state.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::health::Health;
use crate::status::{Event, Phase, State};

/// The fields that are read of `GET /containers/ID/json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Inspect {
    #[serde(default)]
    pub(super) restart_count: u32,
    pub(super) state: Run,
    pub(super) config: Config,
    #[serde(default)]
    pub(super) host_config: HostConfig,
}

/// State of the container's process.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Run {
    pub(super) status: String,
    #[serde(default)]
    pub(super) exit_code: i32,
    #[serde(default, rename = "OOMKilled")]
    pub(super) oom_killed: bool,
    #[serde(default)]
    started_at: String,
    #[serde(default)]
    finished_at: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Config {
    pub(super) image: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostConfig {
    device_requests: Option<Vec<Value>>,
    devices: Option<Vec<Value>>,
}

/// Seconds that a server that was just started may be silent before a message says so.
const QUIET_START_S: f64 = 10.0;
/// Exit statuses of a process that was ended by SIGKILL or by SIGTERM.
const KILLED: i32 = 137;
const TERMINATED: i32 = 143;

impl Inspect {
    pub(super) fn is_running(&self) -> bool {
        self.state.status == "running"
    }

    /// Time of the last start, in seconds since 1970; `None` if it never started.
    pub(super) fn started_at(&self) -> Option<f64> {
        seconds(&self.state.started_at)
    }

    /// Time of the last start or end.
    pub(super) fn changed_at(&self) -> Option<f64> {
        let times = [self.started_at(), seconds(&self.state.finished_at)];
        times.into_iter().flatten().reduce(f64::max)
    }

    /// Whether the engine has kept the GPU request.
    pub(super) fn has_gpus(&self) -> bool {
        let is_some =
            |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|list| !list.is_empty());
        is_some(&self.host_config.device_requests) || is_some(&self.host_config.devices)
    }

    /// State, phase and message. `health` is the server's current answer, `last_words` is the end of its log,
    /// and `hint` is the message of a deployment that is well.
    pub(super) fn seen(
        &self,
        health: Option<&Health>,
        last_words: Option<&str>,
        hint: &str,
        now: f64,
    ) -> (State, Phase, String) {
        match self.state.status.as_str() {
            "created" | "configured" | "initialized" => {
                (State::Pending, Phase::Scheduling, String::new())
            }
            "running" => self.running(health, hint, now),
            "restarting" => {
                let message = format!("{}; starting it again", self.how_it_ended(last_words));
                (State::Provisioning, Phase::Degraded, message)
            }
            "paused" => {
                (State::Running, Phase::Degraded, "the container is paused: unpause it".into())
            }
            "removing" | "stopping" => (State::Terminating, Phase::Terminating, String::new()),
            "exited" | "stopped" | "dead" => {
                (State::Failed, Phase::Failed, self.how_it_ended(last_words))
            }
            other => {
                (State::Unknown, Phase::Pending, format!("the engine says that it is `{other}`"))
            }
        }
    }

    fn running(&self, health: Option<&Health>, hint: &str, now: f64) -> (State, Phase, String) {
        match health {
            Some(health) if health.is_healthy() => (State::Running, Phase::Ready, hint.to_owned()),
            Some(health) => {
                let message = health.message.clone().unwrap_or_default();
                match health.phase.as_deref().and_then(Phase::named) {
                    Some(Phase::Failed | Phase::Pending) => {
                        (State::Provisioning, Phase::Initializing, message)
                    }
                    Some(phase) => (State::Provisioning, phase, message),
                    // The server was ready before, so it is either draining or stuck.
                    None => (State::Running, Phase::Degraded, message),
                }
            }
            // The server listens only some time after its start.
            None if self.started_at().is_none_or(|start| now - start < QUIET_START_S) => {
                (State::Provisioning, Phase::Initializing, String::new())
            }
            None => (State::Running, Phase::Degraded, "the server does not answer".into()),
        }
    }

    fn how_it_ended(&self, last_words: Option<&str>) -> String {
        let code = self.state.exit_code;
        let again = match self.restart_count {
            0 => String::new(),
            count => format!("; it was started again {count} times"),
        };
        let how = match code {
            _ if self.state.oom_killed => "it ran out of the memory that it was given".to_owned(),
            // Only Docker sets `oom_killed`. With Podman, the out-of-memory killer looks like any other SIGKILL, so the
            // message can only suggest it.
            KILLED => "the server was killed (SIGKILL), for a lack of memory perhaps".to_owned(),
            0 | TERMINATED => "the server was stopped".to_owned(),
            code => match last_words {
                Some(words) => format!("the server ended with status {code}: {words}"),
                None => format!("the server ended with status {code}"),
            },
        };
        how + &again
    }
}

/// One line of `GET /events`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct EngineEvent {
    #[serde(rename = "Action", default)]
    action: String,
    #[serde(rename = "Actor", default)]
    actor: Actor,
    #[serde(default)]
    time: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Actor {
    #[serde(rename = "Attributes", default)]
    attributes: BTreeMap<String, String>,
}

impl EngineEvent {
    /// The meaning of an event for the deployment; `None` if it has none.
    pub(super) fn event(&self) -> Option<Event> {
        let code = ["exitCode", "containerExitCode"]
            .iter()
            .find_map(|name| self.actor.attributes.get(*name))
            .map_or(String::new(), |code| format!(" with status {code}"));
        let (state, phase, message) = match self.action.as_str() {
            "create" => (State::Pending, Phase::Scheduling, "the container is made".to_owned()),
            "start" => (State::Provisioning, Phase::Initializing, "the server is started".into()),
            // Docker says `die` and `exitCode`, Podman `died` and `containerExitCode`.
            "die" | "died" => {
                (State::Provisioning, Phase::Degraded, format!("the server ended{code}"))
            }
            "oom" => (State::Provisioning, Phase::Degraded, "it ran out of memory".into()),
            "stop" => (State::Provisioning, Phase::Degraded, "the server was stopped".into()),
            "destroy" | "remove" => {
                (State::Deleted, Phase::Terminating, "the container is removed".into())
            }
            _ => return None,
        };
        Some(Event { time: self.time, state, phase, message })
    }
}

/// Seconds since 1970 of an engine's timestamp; `None` for the year 1, which means never.
fn seconds(text: &str) -> Option<f64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    (time.as_second() > 0).then(|| time.as_duration().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn inspect(status: &str, more: Value) -> Inspect {
        let mut state = json!({
            "Status": status, "ExitCode": 0, "OOMKilled": false,
            "StartedAt": "2026-11-21T20:00:00.123456789Z", "FinishedAt": "0001-01-01T00:00:00Z",
        });
        state.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "State": state, "RestartCount": 0, "Config": {"Image": "a"},
            "HostConfig": {"DeviceRequests": null, "Devices": []},
        }))
        .unwrap()
    }

    fn health(text: &str) -> Health {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_running_container_is_what_its_server_says() {
        let running = inspect("running", json!({}));
        let start = running.started_at().unwrap();
        let seen = |health: Option<Health>, after| {
            running.seen(health.as_ref(), None, "CPU", start + after)
        };
        let told = |text: &str| seen(Some(health(text)), 1.0);
        assert_eq!(told(r#"{"status":"healthy"}"#), (State::Running, Phase::Ready, "CPU".into()));
        let pulling = r#"{"status":"starting","phase":"pulling","message":"a"}"#;
        assert_eq!(told(pulling), (State::Provisioning, Phase::Pulling, "a".into()));
        let draining = r#"{"status":"draining","phase":"draining"}"#;
        assert_eq!(told(draining).1, Phase::Degraded);
        assert_eq!(seen(None, 1.0).0, State::Provisioning);
        assert_eq!(
            seen(None, 60.0),
            (State::Running, Phase::Degraded, "the server does not answer".into())
        );
        assert_eq!(running.changed_at(), Some(start));
    }

    #[test]
    fn a_container_that_ended_says_why() {
        let failed = |more, words| {
            let (state, phase, message) = inspect("exited", more).seen(None, words, "", 0.0);
            assert_eq!((state, phase), (State::Failed, Phase::Failed));
            message
        };
        assert_eq!(
            failed(json!({"ExitCode": 2}), Some("the file is damaged")),
            "the server ended with status 2: the file is damaged"
        );
        assert_eq!(
            failed(json!({"ExitCode": 137, "OOMKilled": true}), Some("x")),
            "it ran out of the memory that it was given"
        );
        assert!(failed(json!({"ExitCode": 137}), None).contains("SIGKILL"));
        assert_eq!(failed(json!({"ExitCode": 143}), None), "the server was stopped");
        let mut again = inspect("restarting", json!({"ExitCode": 1}));
        again.restart_count = 2;
        let (state, _, message) = again.seen(None, None, "", 0.0);
        assert_eq!(state, State::Provisioning);
        assert_eq!(
            message,
            "the server ended with status 1; it was started again 2 times; starting it again"
        );
    }

    #[test]
    fn a_gpu_request_can_vanish() {
        assert!(!inspect("created", json!({})).has_gpus());
        let mut kept = inspect("created", json!({}));
        kept.host_config.device_requests = Some(vec![json!({"DeviceIDs": ["GPU-1"]})]);
        assert!(kept.has_gpus());
    }

    #[test]
    fn events_of_both_engines_are_understood() {
        let event = |text: &str| serde_json::from_str::<EngineEvent>(text).unwrap().event();
        let docker = r#"{"Type":"container","Action":"die","Actor":{"Attributes":{"exitCode":"1"}},"time":7}"#;
        let died = event(docker).unwrap();
        assert_eq!((died.time, died.message.as_str()), (7, "the server ended with status 1"));
        let podman = r#"{"Type":"container","Action":"died","Actor":{"Attributes":{"containerExitCode":"0"}},"time":8}"#;
        assert_eq!(event(podman).unwrap().message, "the server ended with status 0");
        assert!(event(r#"{"Action":"exec_start: candlepower health","time":8}"#).is_none());
    }
}
