//! Answers before a request has arrived in full, and requests for other hosts.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::json;

use crate::support::{DEADLINE, Request, Server, ServerBuilder, python, read_response, run_to_end};

/// More than the limit of 32 MiB, and less than twice that.
const LARGE: usize = 40 << 20;

/// Sends the whole request before it reads, as simple clients do.
fn send_all(server: &Server, head: &str, body: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.set_write_timeout(Some(DEADLINE)).unwrap();
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body).unwrap();
    let mut reader = std::io::BufReader::new(socket);
    let response = read_response(&mut reader).unwrap();
    (response.status, response.text())
}

fn head(request: &str, headers: &str, length: usize) -> String {
    format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\nContent-Type: application/json\r\n\r\n"
    )
}

#[test]
fn early_answers_arrive_however_large_the_body_is() {
    let server = ServerBuilder::new("demo").flags("--api-key secret").start();
    let key = "Authorization: Bearer secret\r\n";
    let body = vec![b' '; LARGE];
    for (request, headers, status) in [
        ("POST /v1/completions", "", 401),
        ("POST /v1/completions", key, 413),
        // A path and a method have their answers before the body is read. 960x: x
        ("POST /v1/nothing", key, 404),
        ("PUT /v1/completions", key, 405),
        ("POST /v1/completions", "Authorization: Bearer secret\r\nContent-Encoding: gzip\r\n", 415),
    ] {
        let (answered, text) = send_all(&server, &head(request, headers, LARGE), &body);
        assert_eq!(answered, status, "{request}: {text}");
        assert!(text.contains("\"error\""), "{text}");
    }
    // The same request without a length.
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{key}Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n{LARGE:x}\r\n"
    );
    let mut chunk = body;
    chunk.extend_from_slice(b"\r\n0\r\n\r\n");
    assert_eq!(send_all(&server, &chunked, &chunk).0, 413);
    let models = Request::get("/v1/models").header("Authorization", "Bearer secret");
    server.send(&models).ok();
}

#[test]
fn pythons_own_client_sees_that_a_body_is_too_large() {
    let server = Server::demo();
    let mut command = python("clients/large_body.py");
    run_to_end(command.arg(server.address.to_string()));
}

#[test]
fn a_server_without_a_key_on_loopback_serves_local_names_alone() {
    let status = |server: &Server, lines: &str| {
        let head = format!("GET /v1/models HTTP/1.1\r\n{lines}\r\n");
        send_all(server, &head, b"")
    };
    let server = ServerBuilder::new("demo").flags("--allowed-hosts api.example.com").start();
    for host in
        ["localhost", "localhost:80", "a.localhost", "127.0.0.1", "[::1]:9", "API.example.com"]
    {
        assert_eq!(status(&server, &format!("Host: {host}\r\n")).0, 200, "{host}");
    }
    let (refused, text) = status(&server, "Host: attacker.example\r\n");
    assert_eq!(refused, 421);
    assert!(text.contains("attacker.example") && text.contains("--allowed-hosts"), "{text}");
    // RFC 9112, section 3.2, demands 400 for a missing, repeated or invalid host.
    for lines in ["", "Host: localhost\r\nHost: localhost\r\n", "Host: a b\r\n"] {
        assert_eq!(status(&server, lines).0, 400, "{lines:?}");
    }
    for path in ["/health", "/metrics", "/v1/nothing"] {
        // An absolute address takes precedence over the header `Host`.
        let head = format!("GET http://attacker.example{path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(send_all(&server, &head, b"").0, 421, "{path}");
    }
    for (headers, expected) in [
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
        ("Transfer-Encoding: xyz, chunked\r\n", 501),
        ("Expect: 200-ok\r\n", 417),
    ] {
        assert_eq!(status(&server, &format!("Host: localhost\r\n{headers}")).0, expected);
    }
    // With a key, a page of another origin gets nothing anyway.
    let guarded = ServerBuilder::new("demo").flags("--api-key secret").start();
    let lines = "Host: attacker.example\r\nAuthorization: Bearer secret\r\n";
    assert_eq!(status(&guarded, lines).0, 200);
}

#[test]
fn connections_beyond_the_limit_are_told_and_closed() {
    let server = ServerBuilder::new("demo").flags("--max-connections 4").start();
    // An answered connection has been accepted. Connections that waited for the server may still be closing.
    let accepted = || {
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut reader = std::io::BufReader::new(socket.try_clone().unwrap());
        let answer = read_response(&mut reader).ok().filter(|answer| answer.status == 200);
        answer.map(|_| socket)
    };
    let open: Vec<TcpStream> =
        (0..4).map(|_| crate::support::wait_for("a connection", accepted)).collect();
    let mut refused = String::new();
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    // The server answers before it has read anything.
    socket.read_to_string(&mut refused).unwrap();
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("max_connections"),
        "{refused}"
    );
    for socket in open {
        socket.shutdown(Shutdown::Both).unwrap();
    }
    crate::support::wait_for("a place", || {
        Request::get("/version").send(server.address).ok().filter(|answer| answer.status == 200)
    });
}

#[test]
fn bodies_that_fill_their_memory_are_refused_until_others_are_done() {
    let server = ServerBuilder::new("demo").flags("--max-body-memory 8Mi").start();
    // Each takes 6 MiB, because a body that arrives in several pieces counts twice. The second one is refused.
    let large = json!({"model": "demo", "prompt": " ".repeat(3 << 20)});
    let (held, refused) = crate::support::wait_for("the memory to be full", || {
        let mut held = TcpStream::connect(server.address).unwrap();
        held.write_all(head("POST /v1/completions", "", 4 << 20).as_bytes()).unwrap();
        held.write_all(&vec![b' '; 3 << 20]).unwrap();
        let answer = server.post("/v1/completions", &large);
        (answer.status == 503).then_some((held, answer))
    });
    assert!(refused.text().contains("max_body_memory"), "{}", refused.text());
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
    drop(held);
    crate::support::wait_for("the memory to be free", || {
        Some(server.post("/v1/completions", &large)).filter(|answer| answer.status == 400)
    });
}
