//! A recording proxy in front of a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A request, and the beginning of its answer.
#[derive(Clone, Debug)]
pub(crate) struct Passed {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
    /// The raw answer.
    pub(crate) answer: String,
}

/// Listens on a port of its own until the test ends.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    passed: Arc<Mutex<Vec<Passed>>>,
}

impl Recorder {
    pub(crate) fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let recorder = Self { address: listener.local_addr().unwrap(), passed: Arc::default() };
        let passed = Arc::clone(&recorder.passed);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let passed = Arc::clone(&passed);
                std::thread::spawn(move || pass(client, server, &passed));
            }
        });
        recorder
    }

    /// The requests so far, in order of arrival.
    pub(crate) fn passed(&self) -> Vec<Passed> {
        self.passed.lock().unwrap().clone()
    }
}

/// One request of a connection, which is closed after its answer.
fn pass(client: TcpStream, server: SocketAddr, passed: &Mutex<Vec<Passed>>) {
    let mut reader = BufReader::new(client.try_clone().unwrap());
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        // A client may open a connection and send nothing.
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "transfer-encoding" => panic!("a body in chunks is not recorded: {line}"),
            // The connection must end with the answer, so the client's own wish is left out.
            "connection" => continue,
            _ if line == "\r\n" => break,
            _ => {}
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let place = {
        let mut passed = passed.lock().unwrap();
        passed.push(Passed { method, path, body: body.clone(), answer: String::new() });
        passed.len() - 1
    };
    let mut server = TcpStream::connect(server).unwrap();
    server.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
    server.write_all(&body).unwrap();
    let (mut client, mut buffer, mut answer) = (client, vec![0; 1 << 16], Vec::new());
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..count]);
        passed.lock().unwrap()[place].answer = String::from_utf8_lossy(&answer).into_owned();
        // The client may have disconnected.
        if client.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}
