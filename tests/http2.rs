//! HTTP/2 over TLS and with prior knowledge: Node's own client, and frames that no honest client sends.

mod bounds;
mod frames;

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::json;

use crate::support::{Authority, Request, Server, ServerBuilder, node, run_to_end};

/// A server with HTTP/2 but without TLS.
fn plain(flags: &str) -> Server {
    ServerBuilder::new("demo").flags("--http2").flags(flags).start()
}

/// A server with HTTP/2 over TLS, and its certificate authority.
fn secure(flags: &str) -> (Server, Authority) {
    let authority = Authority::new();
    let builder = ServerBuilder::new("demo").flags("--http2").flags(flags);
    let server = builder.tls(&authority.sign("server"), authority.client(None)).start();
    (server, authority)
}

/// Runs a case of Node's client, with prior knowledge and over TLS.
fn check(case: &str, flags: &str) {
    let server = plain(flags);
    run_to_end(node("node/http2_client.mjs").args([case, &server.url()]));
    let (server, authority) = secure(flags);
    let mut command = node("node/http2_client.mjs");
    run_to_end(command.args([case, &server.url()]).arg(&authority.certificate));
}

macro_rules! cases {
    ($($case:ident)+) => {
        $(
            #[test]
            fn $case() {
                check(stringify!($case), "");
            }
        )+
    };
}

cases! { chat events_are_not_held_back many_streams_at_once hosts cancel }

#[test]
fn early_answers() {
    check("early_answers", "--api-key secret");
}

#[test]
fn a_server_that_stops_says_goodbye_and_finishes_streams() {
    // The timeout is longer than a test may take, so only the end of the stream ends the server.
    let mut server = plain("--shutdown-timeout 600");
    let mut client = node("node/http2_client.mjs")
        .args(["drain", &server.url()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "streaming\n");
    server.terminate();
    let mut said = String::new();
    client.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(client.wait().unwrap().success(), "{said}");
    assert_eq!(server.wait_for_exit().code(), Some(0), "{}", server.log());
}

#[test]
fn http1_is_spoken_besides() {
    let (secure, _authority) = secure("");
    for server in [plain(""), secure] {
        let answer = server.get("/v1/models");
        assert_eq!(answer.status, 200);
        let request = Request::get("/v1/models").header("Connection", "keep-alive");
        assert_eq!(server.send(&request).status, 200);
        server.complete(json!({"prompt": "a", "max_tokens": 2}));
    }
}
