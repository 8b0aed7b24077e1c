//! Updates: another server takes over from the one that runs. It is ready first, if there is room for both.
//!
//! Until then the supervisor accepts only requests to delete. If the new server fails, the old one keeps running, or
//! is started again if it had to end first.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use tokio::net::UnixStream;

use super::super::cgroup::Cgroup;
use super::super::control::{self, Update};
use super::super::lease;
use super::super::server::Server;
use super::{Supervisor, port_of};
use crate::check::HUB_TOKEN;
use crate::health::{Health, HealthClient};
use crate::spec::Launch;
use crate::status::{Event, Phase, State, now};

/// A server that is to take over.
pub(super) struct Candidate {
    launch: Launch,
    server: Server,
    health: HealthClient,
    cgroup: Option<Cgroup>,
    /// GPUs that the old server does not have.
    gpus: BTreeMap<String, File>,
    phase: Phase,
    timeout: u64,
    until: Instant,
    /// The client that requested the update.
    stream: UnixStream,
}

impl Candidate {
    pub(super) fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// A sentence for the deployment's message.
    pub(super) fn describe(&self) -> String {
        format!("being updated: the new server is in the phase {}", self.phase)
    }
}

impl Supervisor {
    /// Starts the new server. The client gets its answer when that has taken over or failed.
    pub(super) async fn update(&mut self, stream: UnixStream, update: Update) {
        match self.prepare(update).await {
            Ok(Some((update, gpus))) => self.begin_update(stream, update, gpus).await,
            Ok(None) => control::answer(stream, &Ok(())).await,
            Err(error) => control::answer(stream, &Err(error)).await,
        }
    }

    /// Adds the secrets that stay and locks the GPUs; `None` if the server runs with the same spec and secrets already.
    async fn prepare(
        &self,
        mut update: Update,
    ) -> io::Result<Option<(Update, BTreeMap<String, File>)>> {
        if self.candidate.is_some() {
            return Err(io::Error::other("it is being updated"));
        }
        let launch = &mut update.launch;
        for (name, value) in &self.launch.secrets.0 {
            if name == HUB_TOKEN || launch.spec.secret_names.contains(name) {
                launch.secrets.0.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        let secrets = &launch.secrets.0;
        if let Some(name) =
            launch.spec.secret_names.iter().find(|name| !secrets.contains_key(*name))
        {
            return Err(io::Error::other(format!(
                "the value of {name} is not known; give it again"
            )));
        }
        // Only the supervisor knows the values of the secrets, so the comparison is made here.
        let is_same = launch.spec == self.launch.spec && launch.secrets == self.launch.secrets;
        if is_same && self.server.is_some() {
            return Ok(None);
        }
        let mut gpus = BTreeMap::new();
        for uuid in launch.gpus.iter().filter(|uuid| !self.held.gpus.contains_key(*uuid)) {
            // An error drops the locks that were taken before it.
            let lease = lease::take(&launch.root, uuid).await?;
            let lease = lease.ok_or_else(|| {
                io::Error::other(format!("another deployment has just taken {uuid}; try again"))
            })?;
            gpus.insert(uuid.clone(), lease);
        }
        Ok(Some((update, gpus)))
    }

    async fn begin_update(
        &mut self,
        stream: UnixStream,
        update: Update,
        gpus: BTreeMap<String, File>,
    ) {
        let Update { mut launch, in_place, timeout } = update;
        let mut port = launch.spec.port;
        if in_place {
            self.set(State::Provisioning, Phase::Scheduling, "being updated".into());
            self.stop_server().await;
            port = port.or_else(|| port_of(&self.record.url));
        }
        // The old server still has its group, so the new one needs another name.
        let name = format!("{}.{}", launch.spec.name, self.num_updates + 1);
        let cgroup = match Cgroup::new(&name, launch.spec.memory_bytes) {
            Ok(cgroup) => Some(cgroup),
            Err(error) => {
                launch.warnings.push(format!("the server's memory is not limited ({error})"));
                None
            }
        };
        let (report, next) = (self.folder.report(), self.folder.next_report());
        let is_taken = self.server.as_ref().is_some_and(|server| server.report() == report);
        // The two servers alternate between two files, since both report at the same time.
        let report = if is_taken { next } else { report };
        let started = HealthClient::new(&launch.spec).and_then(|health| {
            let port = port.unwrap_or(0);
            let server = Server::start(&launch, &self.folder, report, port, cgroup.as_ref())?;
            Ok((health, server))
        });
        match started {
            Ok((health, server)) => {
                let until = Instant::now() + Duration::from_secs(timeout);
                let phase = Phase::Scheduling;
                self.candidate = Some(Candidate {
                    launch,
                    server,
                    health,
                    cgroup,
                    gpus,
                    phase,
                    timeout,
                    until,
                    stream,
                });
            }
            Err(error) => {
                self.run_on();
                control::answer(stream, &Err(error)).await;
            }
        }
    }

    /// Checks the health of the new server, and lets it take over once it is ready.
    pub(super) async fn look_at_candidate(&mut self) {
        let Some(candidate) = &mut self.candidate else { return };
        let url = candidate.server.address();
        let url = url.map(|address| format!("{}://{address}", candidate.launch.spec.scheme()));
        let health = match &url {
            Some(url) => candidate.health.ask(url).await,
            None => None,
        };
        let found = health.as_ref().and_then(|health| Phase::named(health.phase.as_deref()?));
        // The end of the process comes next and has the better reason.
        candidate.phase = found.filter(|found| *found != Phase::Failed).unwrap_or(candidate.phase);
        let (phase, is_late) = (candidate.phase, Instant::now() >= candidate.until);
        let is_ready = health.as_ref().is_some_and(Health::is_healthy);
        let late = format!("{TIMEOUT}{} {phase}", candidate.timeout);
        if self.server.is_none() && !is_ready {
            self.set(State::Provisioning, phase, "being updated".into());
        }
        match url {
            Some(url) if is_ready => self.take_over(url).await,
            _ if is_late => self.give_up(&late).await,
            _ => {}
        }
    }

    /// Replaces the old server, which ends after its running requests.
    async fn take_over(&mut self, url: String) {
        let Some(candidate) = self.candidate.take() else { return };
        // The spec comes first: without it a restart would start the old server again, and now the update can still
        // be given up.
        if let Err(error) = self.folder.write_spec(&candidate.launch.spec) {
            self.candidate = Some(candidate);
            self.give_up(&format!("the spec cannot be written: {error}")).await;
            return;
        }
        let Candidate { launch, mut server, health, cgroup, gpus, stream, .. } = candidate;
        let now_s = now();
        let record = &mut self.record;
        record.gpu_seconds_before += f64::from(record.num_gpus) * (now_s - record.started_at);
        (record.started_at, record.url) = (now_s, url);
        (record.num_gpus, record.gpus) = (launch.gpus.len() as u32, launch.gpus.clone());
        (record.server, record.restarts) = (Some(server.identity.clone()), 0);
        record.exit_code = None;
        server.was_ready = true;
        // The old server's locks stay until it has ended, so that no other deployment takes a GPU that is still in
        // use.
        self.held.gpus.extend(gpus);
        let kept: BTreeMap<_, _> = std::mem::take(&mut self.held.gpus);
        let (held, given_back): (BTreeMap<_, _>, BTreeMap<_, _>) =
            kept.into_iter().partition(|(uuid, _)| launch.gpus.contains(uuid));
        self.held.gpus = held;
        let (old, old_cgroup) =
            (self.server.replace(server), std::mem::replace(&mut self.cgroup, cgroup));
        self.expires = launch.spec.ttl_seconds.map(|ttl| Instant::now() + Duration::from_secs(ttl));
        let message = format!("updated: {}", self.launch.spec.difference(&launch.spec));
        (self.launch, self.health, self.restart_at) = (launch, health, None);
        self.budget = Default::default();
        self.num_updates += 1;
        let (state, phase) = (State::Running, Phase::Ready);
        let _ = self.folder.add_event(Event { time: now_s as u64, state, phase, message });
        self.set(state, phase, self.launch.warnings.join("; "));
        self.save();
        control::answer(stream, &Ok(())).await;
        // The old server may need long for its running requests. The supervisor meanwhile serves clients and watches
        // the new one.
        tokio::spawn(async move {
            if let Some(old) = old {
                old.stop().await;
            }
            drop(given_back);
            if let Some(cgroup) = old_cgroup {
                cgroup.remove();
            }
        });
    }

    /// Stops the new server and reports the reason to the client that requested it.
    pub(super) async fn give_up(&mut self, reason: &str) {
        self.drop_candidate(reason).await;
        self.run_on();
    }

    /// Stops the new server, if there is one.
    pub(super) async fn drop_candidate(&mut self, reason: &str) {
        let Some(Candidate { server, cgroup, stream, .. }) = self.candidate.take() else { return };
        server.stop().await;
        if let Some(cgroup) = cgroup {
            cgroup.remove();
        }
        control::answer(stream, &Err(io::Error::other(reason.to_owned()))).await;
    }

    /// Starts the old server again, if it had to end.
    fn run_on(&mut self) {
        if self.server.is_none() && self.restart_at.is_none() {
            self.start();
        }
    }
}

/// The prefix of an answer after a timeout; seconds and phase follow. Clients of other versions parse it.
pub(crate) const TIMEOUT: &str = "timeout: ";
