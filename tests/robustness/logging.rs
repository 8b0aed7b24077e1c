//! Standard error that fails, is full or has no reader. The server goes on without it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{
    DEADLINE, Metrics, Request, TempFolder, binary, heeding_hangup, program, wait_for,
    without_settings,
};

/// A server whose log is not read. It reports its address as to a supervisor.
struct Unheard {
    child: Child,
    address: SocketAddr,
    _folder: TempFolder,
}

impl Unheard {
    /// Runs `serve demo FLAGS` in a shell, after `setup`.
    #[track_caller]
    fn start(setup: &str, flags: &str, stderr: impl Into<Stdio>) -> Self {
        let folder = TempFolder::new();
        let report = folder.path().join("report.json");
        let serve = format!("{setup} exec \"$0\" serve demo --port 0 {flags}");
        let mut child = without_settings(heeding_hangup("sh"))
            .args(["-c", &serve])
            .arg(binary())
            .env("BLAZE_KV_CACHE_MEMORY", "64Mi")
            .env("CANDLEPOWER_REPORT", &report)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let address = wait_for("the server to report its address", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the server has ended: {status}");
            }
            let report: Value = serde_json::from_slice(&std::fs::read(&report).ok()?).ok()?;
            report["address"].as_str()?.parse().ok()
        });
        let this = Self { child, address, _folder: folder };
        wait_for("the server to be healthy", || (this.get("/health")? == 200).then_some(()));
        this
    }

    fn get(&self, path: &str) -> Option<u16> {
        Request::get(path).send(self.address).ok().map(|response| response.status)
    }

    fn dropped_lines(&self, reason: &str) -> f64 {
        let metrics = Request::get("/metrics").send(self.address).unwrap().text();
        let series = format!("log_lines_dropped_total{{reason=\"{reason}\"}}");
        Metrics::parse(&metrics).series(&series)
    }

    fn signal(&self, name: &str) {
        let command = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    }

    /// Sends these signals while a request runs. Returns its tokens, and the exit status.
    fn stop_with_a_request(mut self, signals: &[&str]) -> (Value, ExitStatus) {
        let body = json!({
            "model": "demo", "prompt": "a", "max_tokens": 1900, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let mut stream = Request::post("/v1/completions", &body).open(self.address).unwrap();
        stream.next_chunk().unwrap();
        for signal in signals {
            self.signal(signal);
            wait_for("the server to drain", || (self.get("/health")? == 503).then_some(()));
        }
        let chunks = stream.chunks();
        let status = wait_for("the server to exit", || self.child.try_wait().unwrap());
        (chunks.last().unwrap()["usage"]["completion_tokens"].clone(), status)
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_whose_log_lost_its_reader_accepts_connections_and_drains() {
    let (reader, writer) = std::io::pipe().unwrap();
    // 64 file descriptors are enough for a start, and fewer than the connections below.
    let server = Unheard::start("ulimit -n 64;", "--shutdown-timeout 600", writer);
    let mut lines = BufReader::new(reader).lines();
    // The server has written its first lines before the reader goes.
    (0..3).for_each(|_| assert!(!lines.next().unwrap().unwrap().is_empty()));
    drop(lines);
    // More connections than file descriptors, so the server must log that it cannot accept them.
    let many: Vec<_> = (0..100).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(300));
    drop(many);
    wait_for("a line to be dropped", || {
        (server.get("/health")? == 200 && server.dropped_lines("write_failed") > 0.0).then_some(())
    });
    let (tokens, status) = server.stop_with_a_request(&["TERM"]);
    assert_eq!((tokens, status.code()), (json!(1900), Some(0)));
}

#[test]
fn a_full_standard_error_does_not_keep_a_server_from_starting() {
    for format in ["text", "json"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut server = Unheard::start("", &format!("--log-format {format}"), full);
        assert!(server.dropped_lines("write_failed") > 0.0);
        // Lines that fail at once do not fill the queue.
        assert_eq!(server.dropped_lines("queue_full"), 0.0);
        server.signal("TERM");
        let status = wait_for("the server to exit", || server.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{format}");
    }
}

#[test]
fn a_log_that_nobody_reads_stops_no_request_and_no_exit() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut server = Unheard::start("", "--log-level debug", writer);
    // 1,200 lines are more than the 64 KiB that Linux keeps for a pipe.
    for _ in 0..1200 {
        assert_eq!(server.get("/version"), Some(200));
    }
    let asked = Instant::now();
    server.signal("TERM");
    let status = wait_for("the server to exit", || server.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    assert!(asked.elapsed() < DEADLINE / 4, "it waited for its log: {:?}", asked.elapsed());
    let mut log = String::new();
    reader.read_to_string(&mut log).unwrap();
    assert!(log.contains("listening on http") && log.len() > 4_000, "{} bytes", log.len());
}

#[test]
fn lines_are_written_in_order_to_the_last_one() {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut server = Unheard::start("", "--log-format json", writer);
    server.signal("TERM");
    assert_eq!(wait_for("its end", || server.child.try_wait().unwrap()).code(), Some(0));
    let lines: Vec<Value> = BufReader::new(reader)
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    assert_eq!(lines.last().unwrap()["message"], "stopped");
    let times: Vec<&str> = lines.iter().map(|line| line["timestamp"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn a_hangup_drains_and_a_second_one_hurts_nobody() {
    let server = Unheard::start("", "--shutdown-timeout 600", Stdio::null());
    let (tokens, status) = server.stop_with_a_request(&["HUP", "HUP"]);
    assert_eq!((tokens, status.code()), (json!(1900), Some(0)));
}

#[test]
fn a_hangup_that_nohup_has_ignored_is_ignored() {
    // `nohup` ignores SIGHUP in this way, and `exec` keeps that.
    let server = Unheard::start("trap '' HUP;", "--shutdown-timeout 600", Stdio::null());
    server.signal("HUP");
    // 300 ms are enough for a signal to have its effect.
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(server.get("/health"), Some(200));
    }
    let (tokens, status) = server.stop_with_a_request(&["TERM"]);
    assert_eq!((tokens, status.code()), (json!(1900), Some(0)));
}

/// A command whose `output` has lost its reader before it starts.
fn without_reader(args: &str, output: fn(&mut Command, Stdio)) -> (Option<i32>, String) {
    let mut command = program();
    command.args(args.split_whitespace()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let state = TempFolder::new();
    command.env("XDG_STATE_HOME", state.path()).env("HF_HUB_OFFLINE", "1");
    let (reader, writer) = std::io::pipe().unwrap();
    output(&mut command, writer.into());
    drop(reader);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn commands_whose_output_is_not_read_end_quietly_with_their_status() {
    for args in [
        "--help",
        "serve --help",
        "--version",
        "ls",
        "ls --json",
        "doctor",
        "doctor demo",
        "doctor demo --json",
        "config demo",
        "completions bash",
    ] {
        let quiet = without_reader(args, |command, gone| _ = command.stdout(gone));
        assert_eq!(quiet, (Some(0), String::new()), "{args}");
    }
    // The status must say that the model does not fit, although nobody reads why.
    let unfit = "doctor demo --max-model-len 1000000 --json";
    let quiet = without_reader(unfit, |command, gone| _ = command.stdout(gone));
    assert_eq!(quiet, (Some(1), String::new()));
}

#[test]
fn errors_that_nobody_reads_keep_their_status() {
    for (args, status) in [
        ("serve --no-such-flag", 2),
        ("serve demo --port 0 --max-num-seqs 0", 2),
        ("serve ./no-such-folder --port 0", 1),
        // No server listens at port 1.
        ("health --url 127.0.0.1:1", 1),
        ("status no-such-deployment", 3),
        ("doctor ./no-such-folder", 1),
        ("bench serve --url http://127.0.0.1:1", 1),
        ("__secrets /no-such-file serve", 1),
    ] {
        let quiet = without_reader(args, |command, gone| _ = command.stderr(gone));
        assert_eq!(quiet, (Some(status), String::new()), "{args}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    for args in ["doctor", "ls", "config demo", "completions bash"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let state = TempFolder::new();
        let mut command = program();
        command.args(args.split_whitespace()).env("XDG_STATE_HOME", state.path());
        let output = command.stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("error: standard output cannot be written: "), "{args}: {said}");
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{args}");
    }
}
