//! `candlepower health`, the health check of container engines.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Output};

use crate::support::{Hub, Server, ServerBuilder, program};

/// Exit status and complete output.
fn asked(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = [stdout, stderr].concat();
    (status.code(), String::from_utf8(said).unwrap())
}

fn asked_at(url: &str) -> (Option<i32>, String) {
    asked(program().args(["health", "--url", url]))
}

#[test]
fn a_healthy_server_is_said_to_be_so() {
    let healthy = (Some(0), "{\"status\":\"healthy\"}\n".to_owned());
    let server = Server::demo();
    assert_eq!(asked_at(&server.url()), healthy);
    assert_eq!(asked_at(&format!("{}/", server.address)), healthy);
    // Without a URL, the address comes from the settings.
    let port = server.address.port().to_string();
    assert_eq!(asked(program().arg("health").env("BLAZE_PORT", &port)), healthy);
    // Each framework has its own prefix of variables, and the other's must
    // not be read. The check replaces `0.0.0.0` by the local address.
    let server = ServerBuilder::new("demo").flags("--framework prism --host 0.0.0.0").start();
    let port = server.address.port().to_string();
    let nobody = nobody();
    let mut command = program();
    command.arg("health").env("BLAZE_PORT", nobody.address().port().to_string());
    command.env("PRISM_PORT", &port).env("PRISM_HOST", "0.0.0.0");
    assert_eq!(asked(&mut command), healthy);
}

#[test]
fn a_server_that_is_not_there_is_not_healthy() {
    let nobody = nobody();
    let address = nobody.address().to_string();
    let (status, said) = asked_at(&format!("http://{address}"));
    assert_eq!(status, Some(1));
    assert!(said.contains(&address) && said.contains("--url"), "{said}");
    let (status, said) = asked_at("https://127.0.0.1");
    assert_eq!(status, Some(1));
    assert!(said.contains("http://"), "{said}");
}

#[test]
fn a_server_that_is_not_ready_is_not_healthy() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut connection = BufReader::new(listener.accept().unwrap().0);
        let mut line = String::new();
        // An empty line of two bytes ends the head.
        while connection.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        connection
            .into_inner()
            .write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n{\"status\":\"starting\"}")
            .unwrap();
    });
    assert_eq!(asked_at(&url), (Some(1), "{\"status\":\"starting\"}\n".to_owned()));
    server.join().unwrap();
}

/// An address that refuses connections while the value exists.
fn nobody() -> Hub {
    let mut hub = Hub::start();
    hub.refuse_connections();
    hub
}
