//! TLS: accepted clients, certificates, and their replacement.

mod files;
mod programs;
mod reload;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::json;

use crate::support::{Authority, DEADLINE, Request, Server, ServerBuilder, Socket};

/// A server with a certificate, and its authority.
fn server(flags: &str) -> (Server, Authority) {
    let authority = Authority::new();
    let builder = ServerBuilder::new("demo").flags(flags);
    let server = builder.tls(&authority.sign("server"), authority.client(None)).start();
    (server, authority)
}

/// The status of an answer to this client; an error if the handshake fails.
fn asked(server: &Server, client: &Arc<ClientConfig>) -> std::io::Result<u16> {
    let socket = Socket::connect(server.address, Some(client))?;
    Ok(Request::get("/v1/models").open_over(socket)?.finish()?.status)
}

#[test]
fn answers_are_the_same_streamed_or_not() {
    let (server, _authority) = server("");
    let body = json!({"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0});
    let expected = Server::demo().complete(body.clone())["choices"][0]["text"].clone();
    assert_eq!(server.complete(body.clone())["choices"][0]["text"], expected);
    let mut streamed = body;
    streamed["model"] = json!("demo");
    streamed["stream"] = json!(true);
    let chunks = server.open("/v1/completions", &streamed).chunks();
    let texts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
    assert_eq!(json!(texts.collect::<String>()), expected);
}

#[test]
fn events_are_not_held_back() {
    let (server, _authority) = server("");
    let body = json!({
        // 1900 tokens take far longer than the client waits, so the end must come from the client.
        "model": "demo", "prompt": "a", "max_tokens": 1900, "temperature": 0, "ignore_eos": true, "stream": true,
    });
    let mut stream = server.open("/v1/completions", &body);
    stream.next_chunk().unwrap();
    assert_eq!(server.metrics().value("num_requests_running"), 1.0);
    drop(stream);
    server.wait_until_all_blocks_are_free();
    assert!(server.metrics().value("generation_tokens_total") < 1900.0);
}

#[test]
fn a_client_that_leaves_ends_a_request_that_is_not_streamed() {
    let (secure, _authority) = server("");
    for server in [Server::demo(), secure] {
        let body = json!({
            "model": "demo", "prompt": "a", "max_tokens": 1900, "temperature": 0, "ignore_eos": true,
        });
        let body = body.to_string();
        let mut socket = server.connect().unwrap();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        crate::support::wait_for("the request to run", || {
            (server.metrics().value("num_requests_running") == 1.0).then_some(())
        });
        drop(socket);
        server.wait_until_all_blocks_are_free();
        assert!(server.metrics().value("generation_tokens_total") < 1900.0);
    }
}

#[test]
fn early_answers_arrive_however_large_the_body_is() {
    let (server, _authority) = server("--api-key secret");
    // 40 MiB are more than the 32 MiB that a body may have.
    let body = vec![b' '; 40 << 20];
    let key = |request: Request| request.header("Authorization", "Bearer secret");
    let json = |request: Request| request.header("Content-Type", "application/json");
    for (request, status) in [
        (json(Request::new("POST", "/v1/completions")), 401),
        (json(key(Request::new("POST", "/v1/completions"))), 413),
        (json(key(Request::new("POST", "/v1/nothing"))), 404),
        (json(key(Request::new("PUT", "/v1/completions"))), 405),
        (key(Request::new("POST", "/v1/completions")), 415),
    ] {
        // The whole body is sent before anything is read.
        server.send(&request.body(body.clone())).error(status);
    }
}

#[test]
fn nobody_but_the_authoritys_server_is_trusted() {
    let (server, authority) = server("");
    assert_eq!(asked(&server, &authority.client(None)).unwrap(), 200);
    let error = asked(&server, &Authority::new().client(None)).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    // A client without TLS gets no answer, and does no harm.
    assert!(Request::get("/v1/models").send(server.address).is_err());
    assert_eq!(asked(&server, &authority.client(None)).unwrap(), 200);
}

#[test]
fn clients_need_a_certificate_where_their_authorities_are_named() {
    // The client's authority is another one than the server's.
    let (authority, of_clients) = (Authority::new(), Authority::new());
    let pair = authority.sign("server");
    let client = of_clients.sign("client");
    let server = ServerBuilder::new("demo")
        .flag("--ssl-ca-certs", &of_clients.certificate)
        .tls(&pair, authority.client(Some(&client)))
        .start();
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
    // A client with the server's own key is its operator.
    assert_eq!(asked(&server, &authority.client(Some(&pair))).unwrap(), 200);
    let others = Authority::new();
    for shows in [None, Some(&others.sign("client")), Some(&authority.sign("other"))] {
        assert!(asked(&server, &authority.client(shows)).is_err(), "{shows:?}");
    }
}

#[test]
fn handshakes_that_do_not_go_on_hold_up_nobody_and_are_given_up() {
    let (server, _authority) = server("--max-connections 64");
    let connect = || {
        let socket = TcpStream::connect(server.address).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket
    };
    let mut silent: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
    // Only the beginning of a handshake.
    for socket in &mut silent[..10] {
        // A record of a handshake, its version, a length of 512 bytes, and the first byte of a ClientHello.
        socket.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
    }
    // 50 of 64 connections are taken, and others must still be served.
    for _ in 0..5 {
        server.complete(json!({"prompt": "a", "max_tokens": 2}));
    }
    for mut socket in silent {
        // A reset closes the connection, too.
        let read = socket.read(&mut [0]);
        assert!(
            read.as_ref()
                .map_or_else(|e| e.kind() == std::io::ErrorKind::ConnectionReset, |n| *n == 0),
            "{read:?}"
        );
    }
    server.complete(json!({"prompt": "a", "max_tokens": 2}));
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let (server, _authority) = server("--max-connections 2");
    let full = crate::support::wait_for("a full server", || {
        // These connections count, although they make no handshake.
        let held: Vec<_> = (0..2).map(|_| TcpStream::connect(server.address).unwrap()).collect();
        let answer = server.try_send(&Request::get("/health")).ok()?;
        (answer.status == 503).then_some((answer, held))
    });
    assert!(full.0.text().contains("max_connections"), "{}", full.0.text());
}
