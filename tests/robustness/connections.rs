//! Misbehaving connections: incomplete requests, garbage, and heads that never end.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::json;

use crate::support::{DEADLINE, Server, read_response};

fn connect(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// Reads until the server closes the connection, as it must. A reset counts as closed.
fn read_to_close(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(
            error.kind(),
            ErrorKind::ConnectionReset,
            "the connection stays open: {error}"
        ),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn still_serves(server: &Server) {
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
    server.wait_until_all_blocks_are_free();
}

#[test]
fn heads_that_never_end_do_not_keep_others_out_and_are_given_up() {
    let server = Server::demo();
    let mut slow: Vec<TcpStream> = (0..100).map(|_| connect(&server)).collect();
    for (i, socket) in slow.iter_mut().enumerate() {
        // Cut at each length, so that some end within the method, a name or a value.
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: aaaaaaaaaaaaaaaa";
        socket.write_all(&head.as_bytes()[..1 + i % head.len()]).unwrap();
    }
    still_serves(&server);
    for socket in &mut slow {
        let answer = read_to_close(socket);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    still_serves(&server);
}

#[test]
fn half_a_body_is_no_request() {
    let server = Server::demo();
    let body = r#"{"model": "demo", "prompt": "a"}"#;
    for sent in [0, 1, 10, body.len() - 1] {
        let mut socket = connect(&server);
        let length = body.len();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(&body.as_bytes()[..sent]).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let answer = read_to_close(&mut socket);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    still_serves(&server);
    assert_eq!(server.metrics().value("request_success_total"), 1.0, "half a body was answered");
}

#[test]
fn garbage_is_refused() {
    let server = Server::demo();
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(1 << 20));
    let many_headers =
        format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X-A: b\r\n".repeat(10_000));
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        // The beginning of a TLS handshake.
        "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET /health HTTP/1.1\r\nNo colon\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        &long_path,
        &many_headers,
    ] {
        let mut socket = connect(&server);
        // The server may close the connection before it has read everything.
        let _ = socket.write_all(garbage.as_bytes());
        let _ = socket.shutdown(Shutdown::Write);
        let answer = read_to_close(&mut socket);
        let start: String = garbage.chars().take(40).collect();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{start:?}: {answer}");
    }
    still_serves(&server);
}

#[test]
fn pipelined_requests_are_answered_in_order_and_garbage_after_them_ends_the_connection() {
    let server = Server::demo();
    let mut socket = connect(&server);
    let body =
        json!({"model": "demo", "prompt": "a", "max_tokens": 2, "temperature": 0}).to_string();
    let length = body.len();
    let post = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let requests = format!(
        "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n{post}GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\nGARBAGE\r\n\r\n"
    );
    socket.write_all(requests.as_bytes()).unwrap();
    let mut reader = BufReader::new(socket);
    assert!(read_response(&mut reader).unwrap().ok()["version"].is_string());
    assert_eq!(read_response(&mut reader).unwrap().ok()["object"], "text_completion");
    read_response(&mut reader).unwrap().error(404);
    let mut rest = Vec::new();
    // A reset closes the connection, too.
    let _ = reader.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest).into_owned();
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 400"), "{rest}");
    still_serves(&server);
}

#[test]
fn a_connection_serves_many_requests() {
    let server = Server::demo();
    let mut reader = BufReader::new(connect(&server));
    for _ in 0..20 {
        reader.get_mut().write_all(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(read_response(&mut reader).unwrap().ok()["data"][0]["id"], "demo");
    }
}
