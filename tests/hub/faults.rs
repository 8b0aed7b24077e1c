//! Injected faults of the fake hub occur as often as asked for.

use std::net::TcpStream;

use super::{ID, content_of, get, hub, pattern};
use crate::support::{Fault, Request, Side, Spot, Times};

#[test]
fn connections_are_cut() {
    let (hub, _) = hub();
    let weights = || {
        let (address, request) = content_of(&hub, "model.safetensors");
        request.open(address).unwrap().finish_as_far_as_it_goes()
    };
    hub.inject(ID, Spot::content("model.safetensors"), Fault::CutAfter(100_000), Times::Next(2));
    for _ in 0..2 {
        let (bytes, error) = weights();
        assert_eq!(bytes, pattern(300_000)[..100_000]);
        assert!(error.is_some());
    }
    assert!(matches!(weights(), (bytes, None) if bytes == pattern(300_000)));
    hub.inject(ID, Spot::content("README.md"), Fault::CutAfter(0), Times::Always);
    for _ in 0..3 {
        let (address, request) = content_of(&hub, "README.md");
        assert!(request.send(address).is_err());
    }
    hub.heal(ID);
    let (address, request) = content_of(&hub, "README.md");
    assert_eq!(request.send(address).unwrap().text(), "hello\n");
}

#[test]
fn a_stalled_body_goes_on_when_released() {
    let (hub, _) = hub();
    hub.inject(ID, Spot::content("model.safetensors"), Fault::StallAfter(1000), Times::Next(1));
    let (address, request) = content_of(&hub, "model.safetensors");
    let mut response = request.open(address).unwrap();
    let mut bytes = vec![0; 1000];
    response.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, pattern(1000));
    hub.release();
    assert_eq!(response.finish().unwrap().bytes(), &pattern(300_000)[1000..]);
}

#[test]
fn wrong_bytes_have_the_right_length() {
    let (hub, _) = hub();
    hub.inject(ID, Spot::content("vocab.bin"), Fault::WrongBytes, Times::Next(1));
    let (address, request) = content_of(&hub, "vocab.bin");
    let response = request.send(address).unwrap();
    let right = pattern((1 << 20) + 1);
    assert_eq!(response.bytes().len(), right.len());
    assert!(response.bytes().iter().zip(&right).all(|(wrong, right)| wrong != right));
    assert_eq!(request.send(address).unwrap().bytes(), right);
}

#[test]
fn errors_come_in_place_of_answers() {
    let (hub, _) = hub();
    let api = format!("/api/models/{ID}");
    hub.inject(ID, Spot::Api, Fault::Status(500), Times::Next(1));
    hub.inject(ID, Spot::Api, Fault::RetryAfter(429, 7), Times::Next(2));
    assert_eq!(get(&hub, &api).status, 500);
    for _ in 0..2 {
        let response = get(&hub, &api);
        assert_eq!((response.status, response.header("retry-after")), (429, Some("7")));
    }
    assert_eq!(get(&hub, &api).status, 200);
    hub.inject(ID, Spot::resolve("README.md"), Fault::Status(503), Times::Next(1));
    let file = format!("/{ID}/resolve/main/README.md");
    assert_eq!(Request::new("HEAD", &file).send(hub.address()).unwrap().status, 503);
    assert_eq!(get(&hub, &file).status, 307);
    hub.inject(ID, Spot::content("vocab.bin"), Fault::Status(500), Times::Next(1));
    let (address, request) = content_of(&hub, "vocab.bin");
    assert_eq!(request.send(address).unwrap().status, 500);
    assert_eq!(request.send(address).unwrap().status, 200);
    let storage = hub.requests().into_iter().filter(|seen| seen.side == Side::Storage);
    assert_eq!(storage.map(|seen| seen.status).collect::<Vec<_>>(), [500, 200]);
}

#[test]
fn ports_close_and_open_again() {
    let (mut hub, commit) = hub();
    let endpoint = hub.endpoint();
    for _ in 0..2 {
        hub.refuse_connections();
        for address in [hub.address(), hub.storage_address()] {
            assert!(TcpStream::connect(address).is_err());
        }
        hub.accept_connections();
        assert_eq!(hub.endpoint(), endpoint);
        assert_eq!(get(&hub, &format!("/api/models/{ID}")).ok()["sha"], commit);
        let (address, request) = content_of(&hub, "vocab.bin");
        assert_eq!(request.send(address).unwrap().status, 200);
    }
}
