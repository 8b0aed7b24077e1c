//! Starts the built binary on a free port and stops it with the test.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use rustls::ClientConfig;
use serde_json::{Value, json};

use super::{
    DEADLINE, Metrics, Pair, Request, Response, ResponseStream, Socket, wait_for, wait_for_or,
};

/// The binary under test: the one named by `CANDLEPOWER_BIN`, or else the one built beside this test.
pub(crate) fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CANDLEPOWER_BIN") {
        return path.into();
    }
    let this = std::env::current_exe().unwrap();
    // The test lies in `deps`, below the folder of the binaries.
    let path = this.ancestors().nth(2).unwrap().join("candlepower");
    assert!(path.exists(), "{} is not built: run `cargo xtask test`", path.display());
    path
}

/// The program without settings from the machine's environment.
pub(crate) fn program() -> Command {
    without_settings(heeding_hangup(binary()))
}

/// A command that SIGHUP ends, although `nohup` may run the tests: processes inherit that a signal is ignored.
pub(crate) fn heeding_hangup(program: impl AsRef<OsStr>) -> Command {
    if !is_hangup_ignored() {
        return Command::new(program);
    }
    // `env` becomes the program, so that the process id stays.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(program);
    command
}

fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit 0 is signal 1, SIGHUP.
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// A command without settings from the machine's environment.
pub(crate) fn without_settings(mut command: Command) -> Command {
    // The last one is that of `HUGGING_FACE_HUB_TOKEN`.
    const PREFIXES: [&str; 4] = ["BLAZE_", "PRISM_", "HF_", "HUGGING"];
    let is_setting = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_setting)) {
        command.env_remove(name);
    }
    command
}

/// The arguments of a server's start.
pub(crate) struct ServerBuilder {
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    input: Option<PathBuf>,
    client: Option<Arc<ClientConfig>>,
    /// The port to listen on; 0 chooses a free one.
    port: u16,
}

impl ServerBuilder {
    /// `serve MODEL` with little memory, since tests run in parallel, and with the number of ranks in
    /// CANDLEPOWER_TEST_RANKS.
    pub(crate) fn new(model: impl AsRef<Path>) -> Self {
        let args = vec!["serve".into(), model.as_ref().into()];
        let builder = Self { args, env: Vec::new(), input: None, client: None, port: 0 };
        let builder =
            builder.env("BLAZE_KV_CACHE_MEMORY", "64Mi").env("PRISM_KV_CACHE_MEMORY", "64Mi");
        match std::env::var("CANDLEPOWER_TEST_RANKS") {
            Ok(ranks) => builder
                .env("BLAZE_TENSOR_PARALLEL_SIZE", &ranks)
                .env("PRISM_TENSOR_PARALLEL_SIZE", &ranks),
            Err(_) => builder,
        }
    }

    /// Adds flags, separated by spaces.
    pub(crate) fn flags(mut self, flags: &str) -> Self {
        self.args.extend(flags.split_whitespace().map(OsString::from));
        self
    }

    pub(crate) fn flag(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.args.extend([name.into(), value.as_ref().to_owned()]);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Makes the server use TLS, with this client for requests.
    pub(crate) fn tls(self, pair: &Pair, client: Arc<ClientConfig>) -> Self {
        let with = self.flag("--ssl-certfile", &pair.certificate).flag("--ssl-keyfile", &pair.key);
        Self { client: Some(client), ..with }
    }

    /// Makes the server listen on this port.
    pub(crate) fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// Gives the server a file as its standard input.
    pub(crate) fn input(mut self, file: impl Into<PathBuf>) -> Self {
        self.input = Some(file.into());
        self
    }

    fn command(&self) -> Command {
        let mut command = program();
        let input = self.input.as_ref().map(|file| std::fs::File::open(file).unwrap());
        command.args(&self.args).envs(self.env.iter().cloned());
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the server and waits until it is healthy.
    #[track_caller]
    pub(crate) fn start(self) -> Server {
        let server = self.listen();
        server.wait_until_healthy();
        server
    }

    /// Starts the server and waits until it listens. It does so before its model is loaded.
    #[track_caller]
    pub(crate) fn listen(mut self) -> Server {
        let client = self.client.take();
        let port = format!("--port={}", self.port);
        let mut child = self.flags(&port).command().spawn().unwrap();
        let log = Log::default();
        let (found, addresses) = channel();
        for output in outputs(&mut child) {
            let (log, found) = (log.clone(), found.clone());
            std::thread::spawn(move || {
                for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).into_owned();
                    if let Some(address) = address_in(&line) {
                        // No receiver waits for a second address.
                        let _ = found.send(address);
                    }
                    log.push(line);
                }
            });
        }
        // The channel closes when both readers end, so that a start that fails is noticed at once.
        drop(found);
        Server { address: first_address(&addresses, &mut child, &log), client, child, log }
    }

    /// Starts a server that must refuse to start with a message.
    #[track_caller]
    pub(crate) fn refused(self) -> Refused {
        self.flags("--port 0").refused_on_its_port()
    }

    /// Like [`refused`](Self::refused), with the port in the flags.
    #[track_caller]
    pub(crate) fn refused_on_its_port(self) -> Refused {
        let mut child = self.command().spawn().unwrap();
        let log = Log::default();
        let readers: Vec<_> = outputs(&mut child)
            .into_iter()
            .map(|mut output| {
                let log = log.clone();
                std::thread::spawn(move || {
                    let mut text = String::new();
                    output.read_to_string(&mut text).unwrap();
                    log.push(text);
                })
            })
            .collect();
        let status = wait_for("a refused start to end", || child.try_wait().unwrap());
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(!status.success(), "the server was to refuse its start:\n{}", log.text());
        Refused { message: log.text(), code: status.code() }
    }
}

fn outputs(child: &mut Child) -> [Box<dyn Read + Send>; 2] {
    [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())]
}

#[track_caller]
fn first_address(addresses: &Receiver<SocketAddr>, child: &mut Child, log: &Log) -> SocketAddr {
    addresses.recv_timeout(DEADLINE).unwrap_or_else(|_| {
        // It may have ended by itself.
        let _ = child.kill();
        panic!("the server did not say where it listens ({:?}):\n{}", child.wait(), log.text())
    })
}

/// The address in `.. listening on http://127.0.0.1:8000 ..`, or with https.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("listening on http")?;
    let (_, rest) = rest.split_once("://")?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || ".:".contains(c))).unwrap_or(rest.len());
    rest[..end].parse().ok().filter(|address: &SocketAddr| address.port() != 0)
}

/// A refused start.
pub(crate) struct Refused {
    pub(crate) message: String,
    /// Its exit status.
    pub(crate) code: Option<i32>,
}

/// The output of a server.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn push(&self, line: String) {
        let mut text = self.0.lock().unwrap();
        text.push_str(&line);
        text.push('\n');
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

/// A running server. It is killed when dropped, and its log is shown if the test failed.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The client of a server with TLS.
    client: Option<Arc<ClientConfig>>,
    child: Child,
    log: Log,
}

impl Server {
    /// The demo model with the default settings.
    #[track_caller]
    pub(crate) fn demo() -> Self {
        ServerBuilder::new("demo").start()
    }

    pub(crate) fn url(&self) -> String {
        let scheme = if self.client.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> std::io::Result<Socket> {
        Socket::connect(self.address, self.client.as_ref())
    }

    #[track_caller]
    pub(crate) fn wait_until_healthy(&self) {
        wait_for("the server to be healthy", || {
            let health = self.send(&Request::get("/health"));
            assert_ne!(health.json()["status"], "failed", "{}", health.text());
            (health.status == 200).then_some(())
        });
    }

    #[track_caller]
    pub(crate) fn send(&self, request: &Request) -> Response {
        let answer = self.try_send(request);
        answer.unwrap_or_else(|error| panic!("{error}: {request:?}"))
    }

    /// Sends a request that may fail.
    pub(crate) fn try_send(&self, request: &Request) -> std::io::Result<Response> {
        request.open_over(self.connect()?)?.finish()
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Response {
        self.send(&Request::get(path))
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.send(&Request::post(path, body))
    }

    /// Opens a streamed answer.
    #[track_caller]
    pub(crate) fn open(&self, path: &str, body: &Value) -> ResponseStream {
        Request::post(path, body).open_over(self.connect().unwrap()).unwrap()
    }

    /// Completes a prompt. `body` needs no model.
    #[track_caller]
    pub(crate) fn complete(&self, body: Value) -> Value {
        self.post("/v1/completions", &with_model(body)).ok()
    }

    /// Continues a conversation. `body` needs no model.
    #[track_caller]
    pub(crate) fn chat(&self, body: Value) -> Value {
        self.post("/v1/chat/completions", &with_model(body)).ok()
    }

    /// The `error` of a refused completion.
    #[track_caller]
    pub(crate) fn complete_refused(&self, body: Value) -> Value {
        self.post("/v1/completions", &with_model(body)).error(400)
    }

    #[track_caller]
    pub(crate) fn metrics(&self) -> Metrics {
        let response = self.get("/metrics");
        assert_eq!(response.status, 200);
        Metrics::parse(&response.text())
    }

    /// Waits until no sequence runs or waits and no sequence holds a KV block.
    #[track_caller]
    pub(crate) fn wait_until_all_blocks_are_free(&self) {
        wait_for("all KV blocks to be free", || {
            let metrics = self.metrics();
            let gauge = |name| metrics.value(name);
            let idle = gauge("num_requests_running") == 0.0 && gauge("num_requests_waiting") == 0.0;
            (idle && gauge("kv_blocks_free") == gauge("kv_blocks_total")).then_some(())
        });
        assert!(self.metrics().value("kv_blocks_total") > 0.0);
    }

    /// The server's pid.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks the server to stop, as a supervisor does.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    }

    /// Waits until the process has ended.
    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        wait_for("the server to exit", || self.child.try_wait().unwrap())
    }

    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    /// The log once it contains `part`. The server writes the log in parallel to its answers, so a line may come
    /// later.
    pub(crate) fn log_with(&self, part: &str) -> String {
        let has_part = |log: &String| log.contains(part);
        wait_for_or(
            || Some(self.log()).filter(has_part),
            || format!("`{part}` in the log:\n{}", self.log()),
        )
    }

    /// The log up to the line for readiness, which may come later than a healthy answer of `/health`.
    pub(crate) fn log_when_ready(&self) -> String {
        self.log_with("ready: http")
    }
}

/// Adds the demo's name if a body names no model.
fn with_model(mut body: Value) -> Value {
    body.as_object_mut().unwrap().entry("model").or_insert(json!("demo"));
    body
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the server at {}\n{}", self.address, self.log.text());
        }
    }
}

/// A folder that is removed with the test.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            // Tests of one process run side by side, so each folder has a number.
            std::env::temp_dir().join(format!("candlepower-tests-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The files of the demo model, each changed by `change`.
    pub(crate) fn of_demo(change: impl Fn(&str, Vec<u8>) -> Vec<u8>) -> Self {
        let folder = Self::new();
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/server/demo");
        for entry in demo.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            folder.write(name, change(name, std::fs::read(&path).unwrap()));
        }
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into the folder.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        // Remains in the system's temporary folder do no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
