//! Health probes, a plain stream and chats with a tool beside the traffic. They show the delays of other clients.

use std::fmt;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};

use crate::support::{Request, Response, Server, process};

const PROBE_INTERVAL: Duration = Duration::from_millis(100);
const CALL_INTERVAL: Duration = Duration::from_millis(250);
/// A server that leaves a probe or the plain stream waiting for longer hangs. Shorter times are not asserted.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The same for a chat with a tool, which is prepared beside other requests.
const LONGEST_CALL: Duration = Duration::from_secs(30);
/// A server with more memory would endanger other processes on this machine.
const MAX_MEMORY: usize = 4 << 30;

/// Durations of one kind of event.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(super) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    /// The quantile `part`; 0 without durations.
    pub(super) fn quantile(&self, part: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (part * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// The quantiles 50 %, 99 % and 100 %, in milliseconds.
impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |part| (self.quantile(part).as_secs_f64() * 1e3).round();
        f.pad(&format!("{}/{}/{}", ms(0.5), ms(0.99), ms(1.0)))
    }
}

/// Resources of a server's process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// Resident memory, in bytes.
    pub(super) memory: usize,
    pub(super) threads: usize,
    /// Number of open files and connections.
    pub(super) files: usize,
}

impl Usage {
    pub(super) fn of(server: &Server) -> Self {
        let pid = server.pid();
        let status = |field| process::status(pid, field);
        let files = process::open_files(pid);
        Self { memory: status("VmRSS"), threads: status("Threads"), files }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, threads, files } = self;
        write!(f, "{} MiB, {threads} threads, {files} files", memory >> 20)
    }
}

/// Observations beside the traffic.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) probes: Latencies,
    /// Times between the events of the plain stream, and from its requests to their first events.
    pub(super) gaps: Latencies,
    pub(super) calls: Latencies,
    /// Plain streams and tool calls that were answered with 429 or 503.
    pub(super) refused: usize,
    /// The largest memory that a probe has seen.
    pub(super) peak: usize,
    /// Resources of the server after a tenth of the time, but at most a minute.
    pub(super) early: Option<Usage>,
    /// The first failure.
    pub(super) failure: Option<String>,
}

/// A server under load, until the time is over or something fails.
pub(super) struct Watch<'a> {
    pub(super) server: &'a Server,
    began: Instant,
    length: Duration,
    seen: Mutex<Seen>,
}

/// Runs some clients for `length`, with observers beside them.
pub(super) fn watch(
    server: &Server,
    length: Duration,
    num_clients: u64,
    client: impl Fn(&Watch<'_>, u64) + Sync,
) -> Seen {
    let watch = Watch { server, began: Instant::now(), length, seen: Mutex::default() };
    std::thread::scope(|scope| {
        scope.spawn(|| watch.probe());
        scope.spawn(|| watch.stream());
        scope.spawn(|| watch.call());
        for index in 0..num_clients {
            let (watch, client) = (&watch, &client);
            scope.spawn(move || client(watch, index));
        }
    });
    watch.seen.into_inner().unwrap()
}

impl Watch<'_> {
    pub(super) fn is_over(&self) -> bool {
        self.began.elapsed() >= self.length || self.seen.lock().unwrap().failure.is_some()
    }

    /// Ends everything. The first failure is kept.
    pub(super) fn fail(&self, failure: impl fmt::Display) {
        let is_gone = process::ticks(self.server.pid()).is_none();
        let end = if is_gone { ", and the server has ended" } else { "" };
        // The first failure is the cause of later ones.
        self.seen.lock().unwrap().failure.get_or_insert(format!("{failure}{end}"));
    }

    fn probe(&self) {
        while !self.is_over() {
            let began = Instant::now();
            match ask(self.server, &Request::get("/health"), LONGEST_WAIT) {
                Ok(health) if health.status == 200 => {}
                Ok(health) => self.fail(format!("/health: {} {}", health.status, health.text())),
                Err(error) => self.fail(format!("/health: {error}")),
            }
            let took = began.elapsed();
            let mut seen = self.seen.lock().unwrap();
            // Probes that should have started meanwhile would have waited, too.
            let mut late = Duration::ZERO;
            // A probe is due every 100 ms, whether or not the one before it has an answer.
            while late <= took {
                seen.probes.push(took - late);
                late += PROBE_INTERVAL;
            }
            let usage = Usage::of(self.server);
            seen.peak = seen.peak.max(usage.memory);
            // By then all is warm, and nothing has leaked yet.
            let tenth = (self.length / 10).min(Duration::from_secs(60));
            if seen.early.is_none() && self.began.elapsed() >= tenth {
                seen.early = Some(usage);
            }
            drop(seen);
            if usage.memory > MAX_MEMORY {
                self.fail(format!("the server has {} MiB", usage.memory >> 20));
            }
            std::thread::sleep(PROBE_INTERVAL.saturating_sub(took));
        }
    }

    fn stream(&self) {
        let body = json!({
            "model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}],
            "max_tokens": 1500, "ignore_eos": true, "stream": true,
        });
        let request = Request::post("/v1/chat/completions", &body);
        let mut last = Instant::now();
        while !self.is_over() {
            if let Err(error) = self.follow(&request, &mut last) {
                self.fail(format!("the plain stream: {error}"));
            }
        }
    }

    /// Reads a stream to its end. A refused one extends the current gap.
    fn follow(&self, request: &Request, last: &mut Instant) -> io::Result<()> {
        let socket = self.server.connect()?;
        socket.stream().set_read_timeout(Some(LONGEST_WAIT))?;
        let mut stream = request.open_over(socket)?;
        if stream.status != 200 {
            return self.refused(&stream.finish()?);
        }
        loop {
            let event = stream.next_event()?.ok_or_else(|| io::Error::other("no [DONE]"))?;
            self.seen.lock().unwrap().gaps.push(last.elapsed());
            *last = Instant::now();
            if event == "[DONE]" || self.is_over() {
                return Ok(());
            }
        }
    }

    fn call(&self) {
        while !self.is_over() {
            let began = Instant::now();
            match ask(self.server, &Request::post("/v1/chat/completions", &call()), LONGEST_CALL) {
                Ok(answer) if answer.status == 200 => {
                    self.seen.lock().unwrap().calls.push(began.elapsed());
                }
                Ok(answer) => {
                    if let Err(error) = self.refused(&answer) {
                        self.fail(format!("a chat with a function: {error}"));
                    }
                }
                Err(error) => self.fail(format!("a chat with a function: {error}")),
            }
            std::thread::sleep(CALL_INTERVAL);
        }
    }

    fn refused(&self, answer: &Response) -> io::Result<()> {
        self.seen.lock().unwrap().refused += 1;
        std::thread::sleep(PROBE_INTERVAL);
        match answer.status {
            429 | 503 => Ok(()),
            status => Err(io::Error::other(format!("{status} {}", answer.text()))),
        }
    }
}

/// A short chat whose tool needs a grammar.
pub(super) fn call() -> Value {
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({
        "model": "demo", "messages": [{"role": "user", "content": "What is the weather in Rome?"}], "max_tokens": 4,
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": parameters}}], "tool_choice": "required",
    })
}

/// Makes a new server allocate the memory that any use needs: fills its cache, and compiles a grammar.
pub(super) fn warm_up(server: &Server) {
    let mut random = Rng::with_seed(0);
    for _ in 0..20 {
        // 20 prompts of 2,000 tokens fill 64 MiB with 2 KiB a token.
        let ids: Vec<u32> = (0..2000).map(|_| random.u32(0..1270)).collect();
        server.complete(json!({"prompt": ids, "max_tokens": 1}));
    }
    server.chat(call());
}

/// Sends a request, and disconnects if nothing arrives for `patience`.
pub(super) fn ask(server: &Server, request: &Request, patience: Duration) -> io::Result<Response> {
    let socket = server.connect()?;
    socket.stream().set_read_timeout(Some(patience))?;
    socket.stream().set_write_timeout(Some(patience))?;
    request.open_over(socket)?.finish()
}

/// Whether the error is a timeout.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    // Linux reports a read that timed out as `WouldBlock`.
    [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind())
}
