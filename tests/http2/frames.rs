//! The choice of protocol, and malformed requests, frame by frame.

use super::{plain, secure};
use crate::support::{
    Authority, END_HEADERS, Frames, HeaderList, Kind, Request, Server, ServerBuilder, Socket,
};

/// An error of resets and of GOAWAY. Source: RFC 9113, section 7.
const PROTOCOL_ERROR: u32 = 1;

#[test]
fn http2_is_spoken_where_it_is_asked_for() {
    // Without `--http2` the preface is a malformed request.
    let server = Server::demo();
    let mut frames = Frames::new(server.connect().unwrap()).unwrap();
    assert!(frames.read_to_end().iter().all(|frame| frame.kind != Kind::Settings));
    let server = plain("");
    let mut frames = Frames::new(server.connect().unwrap()).unwrap();
    frames.next_of(Kind::Settings, 0);
}

#[test]
fn tls_negotiates_what_the_server_speaks() {
    let (server, authority) = secure("");
    for protocol in ["h2", "http/1.1"] {
        let client = authority.client_of(protocol);
        let socket = Socket::connect(server.address, Some(&client)).unwrap();
        let answer = Request::get("/version").open_over(socket);
        if protocol == "h2" {
            assert!(answer.is_err(), "HTTP/1.1 is answered where HTTP/2 was negotiated");
            let socket = Socket::connect(server.address, Some(&client)).unwrap();
            Frames::new(socket).unwrap().next_of(Kind::Settings, 0);
        } else {
            assert_eq!(answer.unwrap().status, 200);
        }
    }
    let authority = Authority::new();
    let builder = ServerBuilder::new("demo").tls(&authority.sign("server"), authority.client(None));
    let server = builder.start();
    let socket = Socket::connect(server.address, Some(&authority.client_of("h2"))).unwrap();
    assert!(Request::get("/version").open_over(socket).is_err(), "HTTP/2 is not offered");
}

#[test]
fn a_tunnel_is_refused() {
    let server = plain("");
    let mut frames = Frames::new(server.connect().unwrap()).unwrap();
    let connect = HeaderList::default().with(":method", "CONNECT").with(":authority", "localhost");
    frames.send(Kind::Headers, END_HEADERS, 1, connect.bytes()).unwrap();
    let status = frames.next_of(Kind::Headers, 1).status();
    assert!((400..500).contains(&status), "{status}");
    server.get("/v1/models").ok();
}

#[test]
fn a_request_has_one_authority() {
    let server = plain("");
    let mut frames = Frames::new(server.connect().unwrap()).unwrap();
    let with = |authority: &[(&str, &str)]| {
        let list = HeaderList::default().with(":method", "GET").with(":scheme", "http");
        let list = list.with(":path", "/v1/models");
        authority.iter().fold(list, |list, (name, value)| list.with(name, value))
    };
    for (stream, authority, status) in [
        (1, &[(":authority", "localhost")][..], 200),
        (3, &[], 400),
        (5, &[("host", "localhost")], 200),
        // Without the check of hosts, DNS rebinding would let a website reach a local server.
        (7, &[(":authority", "attacker.example")], 421),
    ] {
        frames.request(stream, &with(authority), b"").unwrap();
        let answer = frames.next_of(Kind::Headers, stream);
        assert_eq!(answer.status(), status, "{authority:?}");
    }
    // A malformed request is reset, and its connection goes on.
    // HTTP/2 has no header `connection` (RFC 9113, section 8.2.2).
    let headers = with(&[(":authority", "localhost"), ("connection", "close")]);
    frames.request(9, &headers, b"").unwrap();
    assert_eq!(frames.next_of(Kind::Reset, 9).error_code(), PROTOCOL_ERROR);
    frames.request(11, &with(&[(":authority", "localhost")]), b"").unwrap();
    assert_eq!(frames.next_of(Kind::Headers, 11).status(), 200);
}
