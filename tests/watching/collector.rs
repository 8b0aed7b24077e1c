//! A collector of traces on this machine. Requests are decoded with the classes of the package `opentelemetry-proto`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::support::{TempFolder, python, wait_for};

/// How a collector answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// It accepts everything.
    Accepts,
    /// It answers with this status.
    Refuses(u16),
    /// It reads requests and never answers.
    Hangs,
}

/// Listens on a port of its own until the test ends.
pub(super) struct Collector {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    manner: Manner,
    bodies: Vec<Vec<u8>>,
    num_requests: usize,
}

impl Collector {
    pub(super) fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared { manner, bodies: Vec::new(), num_requests: 0 }));
        let this = Self { address, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || answer(client, &shared));
            }
        });
        this
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn set(&self, manner: Manner) {
        self.shared.lock().unwrap().manner = manner;
    }

    /// Number of requests, answered or not.
    pub(super) fn num_requests(&self) -> usize {
        self.shared.lock().unwrap().num_requests
    }

    /// The spans that were accepted so far, in order of arrival.
    pub(super) fn spans(&self) -> Vec<Value> {
        let bodies = self.shared.lock().unwrap().bodies.clone();
        let folder = TempFolder::new();
        let files = bodies.iter().enumerate();
        let files: Vec<_> =
            files.map(|(index, body)| folder.write(&index.to_string(), body)).collect();
        let output = python("clients/traces.py").args(files).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The accepted spans, once there are at least `count`.
    pub(super) fn wait_for_spans(&self, count: usize) -> Vec<Value> {
        wait_for("spans to arrive", || Some(self.spans()).filter(|spans| spans.len() >= count))
    }
}

/// Reads requests of one connection until its end.
fn answer(client: TcpStream, shared: &Mutex<Shared>) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let mut client = client;
    loop {
        let (mut first, mut length, mut kind) = (String::new(), 0, String::new());
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "content-type" => kind = value.trim().to_owned(),
                _ if line == "\r\n" => break,
                _ => {}
            }
        }
        assert!(first.starts_with("POST /v1/traces HTTP/1.1"), "{first}");
        assert_eq!(kind, "application/x-protobuf");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mut shared = shared.lock().unwrap();
        shared.num_requests += 1;
        let status = match shared.manner {
            Manner::Accepts => {
                shared.bodies.push(body);
                200
            }
            Manner::Refuses(status) => status,
            Manner::Hangs => continue,
        };
        let head = format!(
            "HTTP/1.1 {status} Said\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
        );
        // The server may have given up.
        if client.write_all(head.as_bytes()).is_err() {
            return;
        }
    }
}
