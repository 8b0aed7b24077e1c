//! A web server on all loopback addresses, with honest and dishonest answers.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::bytes;

/// The server; its threads end with the process.
pub(super) struct Server {
    port: u16,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    requests: AtomicUsize,
    last_head: Mutex<String>,
}

impl Server {
    pub(super) fn start() -> Self {
        // Every address of this machine, so that a name with another address would reach it, too.
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&shared);
                // A client that has gone wants no answer.
                std::thread::spawn(move || answer(stream, &seen).ok());
            }
        });
        Self { port, seen }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn forget(&self) {
        self.seen.requests.store(0, Ordering::SeqCst);
    }

    /// Number of connections since [`Self::forget`].
    pub(super) fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    /// The request line and headers of the newest request.
    pub(super) fn last_head(&self) -> String {
        self.seen.last_head.lock().unwrap().clone()
    }
}

fn answer(mut stream: TcpStream, seen: &Seen) -> Result<()> {
    seen.requests.fetch_add(1, Ordering::SeqCst);
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head.split(' ').nth(1).unwrap_or("/").to_owned();
    *seen.last_head.lock().unwrap() = head;
    let picture = bytes("png/rgb8.png");
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    match path {
        "/picture" => respond(&mut stream, "200 OK", "Content-Type: image/png", &picture),
        "/mislabelled" => respond(&mut stream, "200 OK", "Content-Type: text/html", &picture),
        "/to" => respond(&mut stream, "302 Found", &format!("Location: {query}"), b""),
        "/loop" => respond(&mut stream, "308 Permanent Redirect", "Location: /loop", b""),
        "/no-location" => respond(&mut stream, "301 Moved Permanently", "X-A: b", b""),
        "/hops/0" => respond(&mut stream, "200 OK", "X-A: b", &picture),
        "/page" => respond(&mut stream, "200 OK", "Content-Type: image/png", b"<html>"),
        "/empty" => respond(&mut stream, "200 OK", "X-A: b", b""),
        "/gzip" => respond(&mut stream, "200 OK", "Content-Encoding: gzip", b"\x1f\x8b\x08\0\0\0"),
        "/missing" => respond(&mut stream, "404 Not Found", "X-A: b", &picture),
        "/partial" => respond(&mut stream, "206 Partial Content", "X-A: b", &picture),
        "/garbage" => stream.write_all(b"no HTTP at all\r\n\r\n"),
        "/declared-huge" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
        }
        "/cut" => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n\x89PNG"),
        "/endless" => endless(&mut stream),
        "/silent" => {
            std::thread::sleep(Duration::from_secs(4));
            Ok(())
        }
        "/drips" => drips(&mut stream),
        _ => {
            let hops = path.strip_prefix("/hops/").and_then(|hops| hops.parse::<u32>().ok());
            let next = format!("Location: /hops/{}", hops.unwrap_or(1) - 1);
            respond(&mut stream, "307 Temporary Redirect", &next, b"")
        }
    }
}

fn respond(stream: &mut TcpStream, status: &str, header: &str, body: &[u8]) -> Result<()> {
    let len = body.len();
    let close = "Connection: close";
    write!(stream, "HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {len}\r\n{close}\r\n\r\n")?;
    stream.write_all(body)
}

/// A body in chunks that never ends, as far as the client reads it.
fn endless(stream: &mut TcpStream) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    loop {
        stream.write_all(b"100000\r\n")?;
        stream.write_all(&vec![7; 1 << 20])?;
        stream.write_all(b"\r\n")?;
    }
}

/// A byte now and then, so that no single read takes long.
fn drips(stream: &mut TcpStream) -> Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")?;
    loop {
        stream.write_all(b"x")?;
        std::thread::sleep(Duration::from_millis(100));
    }
}
