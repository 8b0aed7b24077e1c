//! Servers that are restarted in turn under load, with clients that learn of it late. No request is lost.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Request, Server, ServerBuilder, wait_for};

/// Requests per second, of all clients.
const RATE: usize = 20;
const CLIENTS: usize = 4;
/// Time for which clients still send requests to a server that was asked to stop.
const LATE: Duration = Duration::from_secs(1);

/// Seconds of restarts; `CANDLEPOWER_ROLLING_SECONDS` can increase them.
const SECONDS: u64 = 10;

#[test]
fn restarts_lose_no_request() {
    let given = std::env::var("CANDLEPOWER_ROLLING_SECONDS").ok();
    let seconds = given.map_or(SECONDS, |seconds| seconds.parse().unwrap());
    let (asked, restarts) = roll(Duration::from_secs(seconds));
    println!("{asked} requests over {restarts} restarts in {seconds} s, none lost");
    // 12 of 20 requests a second leave room for slow machines.
    assert!(asked as u64 > 12 * seconds && restarts >= 2, "{asked} requests, {restarts} restarts");
}

/// Restarts two servers in turn while clients send requests. Returns the numbers of requests and of restarts.
fn roll(time: Duration) -> (usize, usize) {
    let start = |port| {
        // Two seconds of delay, one more than clients go on for.
        ServerBuilder::new("demo").flags("--drain-delay 2 --max-num-seqs 16").port(port).start()
    };
    let mut servers = [start(0), start(0)];
    let addresses = Mutex::new(servers.each_ref().map(|server| server.address).to_vec());
    let (ended, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let lost = Mutex::new(Vec::new());
    let begin = Instant::now();
    let mut restarts = 0;
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::default();
                while !ended.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let i = asked.fetch_add(1, Ordering::Relaxed);
                    let address = {
                        let addresses = addresses.lock().unwrap_or_else(PoisonError::into_inner);
                        addresses[i % addresses.len()]
                    };
                    match client.ask(address, i % 3 == 0) {
                        Ok(200) => {}
                        other => {
                            lost.lock().unwrap().push(format!("{:?}: {other:?}", begin.elapsed()))
                        }
                    }
                    // Each client has its share of the rate.
                    let pause = Duration::from_secs(CLIENTS as u64) / RATE as u32;
                    std::thread::sleep(pause.saturating_sub(began.elapsed()));
                }
            });
        }
        while begin.elapsed() < time {
            // Only one of the two servers is down at a time.
            let server = &mut servers[restarts % 2];
            let address = server.address;
            server.terminate();
            std::thread::sleep(LATE);
            is_draining(server);
            // Clients learn of it only now, so the server has answered for a second after the signal.
            addresses.lock().unwrap().retain(|known| *known != address);
            assert_eq!(server.wait_for_exit().code(), Some(0), "{}", server.log());
            *server = start(address.port());
            addresses.lock().unwrap().push(address);
            restarts += 1;
        }
        ended.store(true, Ordering::Relaxed);
    });
    let lost = lost.into_inner().unwrap();
    let asked = asked.into_inner();
    assert!(lost.is_empty(), "{} of {asked} requests were lost: {lost:?}", lost.len());
    (asked, restarts)
}

/// The server reports that it stops, and still answers.
#[track_caller]
fn is_draining(server: &Server) {
    let health = server.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("draining")));
}

/// Kept connections, one to each address.
#[derive(Default)]
struct Client(Vec<(SocketAddr, BufReader<TcpStream>)>);

impl Client {
    /// The status of a completion. There are no retries.
    fn ask(&mut self, address: SocketAddr, streams: bool) -> io::Result<u16> {
        let body = json!({"model": "demo", "prompt": "a", "max_tokens": 2, "stream": streams});
        let message = Request::post("/v1/completions", &body).message(address, "keep-alive");
        let kept = self.0.iter().position(|(known, _)| *known == address);
        let mut stream = match kept.map(|i| self.0.swap_remove(i).1).filter(is_open) {
            Some(stream) => stream,
            None => BufReader::new(TcpStream::connect(address)?),
        };
        // A server that neither answers nor closes must not stop the test.
        stream.get_mut().set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.get_mut().write_all(&message)?;
        let (status, closes) = read_answer(&mut stream)?;
        if !closes {
            self.0.push((address, stream));
        }
        Ok(status)
    }
}

/// Whether the server has left a kept connection open. Clients check this before they reuse one.
fn is_open(stream: &BufReader<TcpStream>) -> bool {
    let stream = stream.get_ref();
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    // A read would block where nothing has arrived: neither bytes nor an end.
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// Reads a complete answer. Returns its status, and whether the connection is closed after it.
fn read_answer(stream: &mut BufReader<TcpStream>) -> io::Result<(u16, bool)> {
    let line = |stream: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        match stream.read_line(&mut line)? {
            0 => Err(io::Error::from(ErrorKind::UnexpectedEof)),
            _ => Ok(line.trim_end().to_ascii_lowercase()),
        }
    };
    let wrong = || io::Error::from(ErrorKind::InvalidData);
    let first = line(stream)?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(wrong)?;
    let (mut length, mut closes) = (None, false);
    loop {
        let header = line(stream)?;
        match header.split_once(": ") {
            None => break,
            Some(("content-length", value)) => length = Some(value.parse().map_err(|_| wrong())?),
            Some(("connection", value)) => closes = value == "close",
            Some(_) => {}
        }
    }
    let skip = |stream: &mut BufReader<TcpStream>, bytes: u64| {
        io::copy(&mut stream.take(bytes), &mut io::sink()).map(|_| ())
    };
    match length {
        Some(length) => skip(stream, length)?,
        // Each chunk ends with an empty line of two bytes; that of length 0 is the last.
        None => loop {
            let size = u64::from_str_radix(&line(stream)?, 16).map_err(|_| wrong())?;
            skip(stream, size + 2)?;
            if size == 0 {
                break;
            }
        },
    }
    Ok((status, closes))
}

#[test]
fn a_second_signal_ends_a_server_that_answers_on() {
    let mut server = ServerBuilder::new("demo").flags("--drain-delay 600").start();
    server.terminate();
    wait_for("the server to say that it stops", || {
        (server.get("/health").status == 503).then_some(())
    });
    let answer =
        server.post("/v1/completions", &json!({"model": "demo", "prompt": "a", "max_tokens": 2}));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("connection"), Some("close"));
    let begin = Instant::now();
    server.terminate();
    assert_eq!(server.wait_for_exit().code(), Some(1), "{}", server.log());
    assert!(begin.elapsed() < Duration::from_secs(10));
}
