//! The supervisor of one deployment. It runs and restarts the server, keeps the folder up to date, and serves
//! clients.

mod update;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, sleep_until};

use super::budget::{MAX_RESTARTS, RestartBudget, WINDOW};
use super::cgroup::Cgroup;
use super::control::{self, ControlRequest};
use super::folder::{Folder, Record};
use super::identity::Identity;
use super::launch::Answer;
use super::lease;
use super::server::{Ended, Server};
use crate::health::{Health, HealthClient};
use crate::spec::Launch;
use crate::status::{Event, Phase, State, now};
use update::Candidate;
pub(super) use update::TIMEOUT;

/// Interval of health checks while a server starts.
const LOOK_STARTING: Duration = Duration::from_millis(50);
/// Interval at which an unchanged record is written again. The time in it shows how long the supervisor was alive.
const WRITE_AGAIN_S: f64 = 60.0;
/// Interval of health checks of a ready server.
const LOOK_READY: Duration = Duration::from_secs(2);

/// Supervises the deployment that standard input describes, until it is deleted.
pub fn supervise() -> ExitCode {
    // A session of its own, so that the end of a terminal does not end it. This fails for a group leader, which has a
    // session.
    let _ = rustix::process::setsid();
    let result = std::env::set_current_dir("/")
        .and_then(|()| Ok(serde_json::from_reader::<_, Launch>(io::stdin().lock())?))
        .and_then(|launch| {
            // One thread only: the kernel ends the server when the thread that started it ends.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(begin(launch))
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&Answer::Failed(error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Sends the first message to the client, if it still waits.
fn say(answer: &Answer) {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
}

async fn begin(launch: Launch) -> io::Result<()> {
    let folder = Folder::new(&launch.root, &launch.spec.name);
    let Some(lock) = folder.claim()? else {
        say(&Answer::Taken);
        return Ok(());
    };
    if folder.spec()?.is_some_and(|spec| spec != launch.spec) {
        say(&Answer::Taken);
        return Ok(());
    }
    let mut leases = BTreeMap::new();
    for uuid in &launch.gpus {
        match lease::take(&launch.root, uuid).await? {
            Some(lease) => {
                leases.insert(uuid.clone(), lease);
            }
            None => {
                say(&Answer::NoGpu(uuid.clone()));
                // The spec of an older deployment stays.
                return if folder.spec()?.is_none() { folder.remove() } else { Ok(()) };
            }
        }
    }
    let held = Held { _lock: lock, gpus: leases };
    let mut supervisor = match Supervisor::new(launch, folder.clone(), held).await {
        Ok(supervisor) => supervisor,
        Err(error) => {
            // Nothing of a new deployment that failed is of use.
            if matches!(folder.spec(), Ok(None)) {
                let _ = folder.remove();
            }
            return Err(error);
        }
    };
    say(&Answer::Started(supervisor.record.created_at));
    supervisor.run().await
}

/// Locks that are held while this process lives. The kernel releases them at its end.
struct Held {
    /// The lock of the name.
    _lock: File,
    /// Locks of GPUs, by UUID.
    gpus: BTreeMap<String, File>,
}

struct Supervisor {
    launch: Launch,
    folder: Folder,
    held: Held,
    record: Record,
    /// The reason that the record could not be written at its last change.
    unwritten: Option<String>,
    listener: UnixListener,
    health: HealthClient,
    server: Option<Server>,
    /// Time of the next restart.
    restart_at: Option<Instant>,
    /// Time at which the deployment deletes itself.
    expires: Option<Instant>,
    /// The server that is to take over.
    candidate: Option<Candidate>,
    /// Number of updates that succeeded.
    num_updates: u32,
    budget: RestartBudget,
    cgroup: Option<Cgroup>,
}

/// The next task.
enum Task {
    Ended(Ended),
    CandidateEnded(Ended),
    Start,
    Look,
    Answer(UnixStream),
    Terminate,
    Expire,
}

/// Whether the supervisor continues.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

impl Supervisor {
    async fn new(mut launch: Launch, folder: Folder, held: Held) -> io::Result<Self> {
        let earlier = folder.record()?;
        if let Some(server) = earlier.as_ref().and_then(|record| record.server.as_ref()) {
            // The server of an earlier supervisor may still hold the port and the memory.
            server.end().await;
        }
        let health = HealthClient::new(&launch.spec)?;
        let cgroup = match Cgroup::new(&launch.spec.name, launch.spec.memory_bytes) {
            Ok(cgroup) => Some(cgroup),
            Err(error) => {
                launch.warnings.push(format!("the server's memory is not limited ({error})"));
                None
            }
        };
        let listener = control::listen(folder.path())?;
        let supervisor = Identity::of(std::process::id()).ok_or(io::ErrorKind::NotFound)?;
        let begin = now();
        let record = Record {
            state: State::Pending,
            phase: Phase::Pending,
            message: String::new(),
            // A deployment that starts again is still the same one to its clients.
            created_at: earlier.as_ref().map_or(begin, |record| record.created_at),
            url: earlier.map(|record| record.url).filter(|url| is_free(url)).unwrap_or_default(),
            updated_at: begin,
            started_at: begin,
            written_at: begin,
            bytes_done: 0,
            bytes_total: 0,
            restarts: 0,
            exit_code: None,
            num_gpus: launch.gpus.len() as u32,
            gpus: launch.gpus.clone(),
            gpu_seconds_before: 0.0,
            supervisor,
            server: None,
        };
        // The spec is written last: readers take a folder with a spec for complete.
        folder.write_record(&record)?;
        folder.write_spec(&launch.spec)?;
        let budget = RestartBudget::default();
        let restart_at = Some(Instant::now());
        let expires = launch.spec.ttl_seconds.map(|ttl| Instant::now() + Duration::from_secs(ttl));
        Ok(Self {
            launch,
            folder,
            held,
            record,
            unwritten: None,
            listener,
            health,
            server: None,
            restart_at,
            expires,
            candidate: None,
            num_updates: 0,
            budget,
            cgroup,
        })
    }

    async fn run(&mut self) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        loop {
            let is_calm = self.record.phase == Phase::Ready && self.candidate.is_none();
            let pace = if is_calm { LOOK_READY } else { LOOK_STARTING };
            let looks =
                self.server.is_some() || self.candidate.is_some() || self.unwritten.is_some();
            let Self { server, candidate, restart_at, expires, listener, .. } = self;
            let task = tokio::select! {
                ended = end_of(server.as_mut()) => Task::Ended(ended),
                ended = end_of(candidate.as_mut().map(Candidate::server)) => Task::CandidateEnded(ended),
                () = at(*restart_at) => Task::Start,
                () = at(*expires) => Task::Expire,
                Ok((stream, _)) = listener.accept() => Task::Answer(stream),
                _ = terminate.recv() => Task::Terminate,
                // A failed deployment without a server sleeps until a client or a signal wakes it.
                () = sleep(pace), if looks => Task::Look,
            };
            if self.perform(task).await == Next::End {
                return Ok(());
            }
        }
    }

    async fn perform(&mut self, task: Task) -> Next {
        match task {
            Task::Ended(ended) => self.server_ended(ended),
            Task::CandidateEnded(ended) => self.give_up(&ended.reason).await,
            Task::Start => self.start(),
            Task::Look => {
                self.look().await;
                self.look_at_candidate().await;
                if self.unwritten.is_some() || now() - self.record.written_at >= WRITE_AGAIN_S {
                    self.write();
                }
            }
            Task::Answer(stream) => return self.answer(stream).await,
            Task::Expire => {
                // No client waits for this, so an error cannot be reported.
                let _ = self.delete().await;
                return Next::End;
            }
            Task::Terminate => {
                self.drop_candidate("the supervisor was asked to end").await;
                self.stop_server().await;
                self.remove_cgroup();
                let message = format!(
                    "its supervisor was asked to end; {}",
                    restart_hint(&self.launch.spec.name)
                );
                self.set(State::Failed, Phase::Failed, message);
                return Next::End;
            }
        }
        Next::GoOn
    }

    fn start(&mut self) {
        self.restart_at = None;
        // A deployment that starts again keeps its address, since clients have it.
        let port = port_of(&self.record.url).or(self.launch.spec.port).unwrap_or(0);
        self.set(State::Provisioning, Phase::Scheduling, String::new());
        match Server::start(
            &self.launch,
            &self.folder,
            self.folder.report(),
            port,
            self.cgroup.as_ref(),
        ) {
            Ok(server) => {
                self.record.server = Some(server.identity.clone());
                self.server = Some(server);
                self.save();
            }
            Err(error) => self.fail(format!("the server cannot be started: {error}")),
        }
    }

    /// Checks the server's health, if it runs.
    async fn look(&mut self) {
        if self.server.is_none() {
            return;
        }
        if self.record.url.is_empty() {
            let Some(address) = self.server.as_ref().and_then(Server::address) else { return };
            self.record.url = format!("{}://{address}", self.launch.spec.scheme());
            self.save();
        }
        let health = self.health.ask(&self.record.url).await;
        let Some(server) = &mut self.server else { return };
        match health {
            Some(health) if health.is_healthy() => {
                server.was_ready = true;
                let trouble = server.log_trouble();
                let updating = self.candidate.as_ref().map(Candidate::describe);
                let warnings = self.launch.warnings.iter().cloned();
                let messages: Vec<String> = warnings.chain(trouble).chain(updating).collect();
                self.set(State::Running, Phase::Ready, messages.join("; "));
            }
            Some(health) => self.see(health),
            None if server.was_ready => {
                self.set(State::Running, Phase::Degraded, "the server does not answer".into());
            }
            // It will listen in a moment.
            None => {}
        }
    }

    /// Records the answer of a server that is not ready.
    fn see(&mut self, health: Health) {
        let was_ready = self.server.as_ref().is_some_and(|server| server.was_ready);
        let named = health.phase.as_deref().and_then(Phase::named).unwrap_or(Phase::HealthCheck);
        let phase = match named {
            // The end of the process comes next and has the better reason.
            Phase::Failed | Phase::Pending => Phase::Initializing,
            phase => phase,
        };
        if let Some(progress) = health.progress
            && (self.record.bytes_done, self.record.bytes_total)
                != (progress.bytes_done, progress.bytes_total)
        {
            (self.record.bytes_done, self.record.bytes_total) =
                (progress.bytes_done, progress.bytes_total);
            self.save();
        }
        let message = health.message.unwrap_or_default();
        match was_ready {
            true => self.set(State::Running, Phase::Degraded, message),
            false => self.set(State::Provisioning, phase, message),
        }
    }

    fn server_ended(&mut self, ended: Ended) {
        let was_ready = self.server.take().is_some_and(|server| server.was_ready);
        self.record.server = None;
        self.record.exit_code = ended.exit_code;
        let mut reason = ended.reason;
        if self.cgroup.as_ref().is_some_and(Cgroup::ran_out_of_memory) {
            reason += "; it ran out of the memory that it was given";
        }
        // A server that has never been ready would fail the same way again.
        if !was_ready && self.record.restarts == 0 {
            self.fail(reason);
            return;
        }
        let Some(pause) = self.budget.next_pause(Instant::now()) else {
            let minutes = WINDOW.as_secs() / 60;
            self.fail(format!(
                "{reason}; it was started again {MAX_RESTARTS} times within {minutes} min"
            ));
            return;
        };
        self.record.restarts += 1;
        self.restart_at = Some(Instant::now() + pause);
        let count = self.budget.spent();
        let message = format!("{reason}; starting it again ({count} of {MAX_RESTARTS})");
        self.set(State::Provisioning, Phase::Degraded, message);
    }

    async fn answer(&mut self, mut stream: UnixStream) -> Next {
        match control::read(&mut stream).await {
            None => Next::GoOn,
            Some(ControlRequest::Update(update)) => {
                self.update(stream, *update).await;
                Next::GoOn
            }
            Some(ControlRequest::Restart) if self.candidate.is_some() => {
                control::answer(stream, &Err(io::Error::other("it is being updated"))).await;
                Next::GoOn
            }
            Some(ControlRequest::Restart) => {
                self.set(State::Provisioning, Phase::Scheduling, "asked to start again".into());
                self.stop_server().await;
                self.budget = RestartBudget::default();
                self.record.restarts = 0;
                self.start();
                control::answer(stream, &Ok(())).await;
                Next::GoOn
            }
            Some(ControlRequest::Delete) => {
                let result = self.delete().await;
                control::answer(stream, &result).await;
                if result.is_ok() { Next::End } else { Next::GoOn }
            }
        }
    }

    async fn delete(&mut self) -> io::Result<()> {
        self.set(State::Terminating, Phase::Terminating, String::new());
        self.drop_candidate("the deployment was deleted").await;
        self.stop_server().await;
        self.remove_cgroup();
        self.folder.remove()
    }

    fn remove_cgroup(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    async fn stop_server(&mut self) {
        self.restart_at = None;
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        self.record.server = None;
    }

    fn fail(&mut self, reason: String) {
        self.set(State::Failed, Phase::Failed, reason);
    }

    /// Changes state, phase and message, and records an event if there is a change.
    fn set(&mut self, state: State, phase: Phase, message: String) {
        let record = &mut self.record;
        if (record.state, record.phase, &record.message) == (state, phase, &message) {
            return;
        }
        // Each phase counts its own bytes.
        if record.phase != phase {
            (record.bytes_done, record.bytes_total) = (0, 0);
        }
        (record.state, record.phase, record.message) = (state, phase, message.clone());
        // The deployment continues if the disk is full. Its files are out of date until there is room.
        let _ = self.folder.add_event(Event { time: now() as u64, state, phase, message });
        self.save();
    }

    fn save(&mut self) {
        self.record.updated_at = now();
        self.write();
    }

    /// Writes the record. After a failure each health check tries again.
    fn write(&mut self) {
        self.record.written_at = now();
        if let Err(error) = self.folder.write_record(&self.record) {
            self.unwritten = Some(error.to_string());
        } else if let Some(reason) = self.unwritten.take() {
            let Record { state, phase, .. } = self.record;
            let message = format!("until now its state could not be written: {reason}");
            let _ = self.folder.add_event(Event { time: now() as u64, state, phase, message });
        }
    }
}

/// The hint for a deployment whose supervisor is gone.
pub(crate) fn restart_hint(name: &str) -> String {
    format!("`candlepower restart {name}` starts it again, `candlepower delete {name}` removes it")
}

async fn end_of(server: Option<&mut Server>) -> Ended {
    match server {
        Some(server) => server.ended().await,
        None => std::future::pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Whether the address is still free. Another program may have taken it.
fn is_free(url: &str) -> bool {
    port_of(url).is_some_and(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
}

fn port_of(url: &str) -> Option<u16> {
    url.rsplit_once(':')?.1.parse().ok()
}
