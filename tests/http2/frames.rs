//! Which protocol is spoken, and requests that are not well-formed, frame by frame.

use super::plain;
use crate::support::{Frames, HeaderList, Kind, Server};

/// An error of resets and of GOAWAY. Source: RFC 9113, section 7.
const PROTOCOL_ERROR: u32 = 1;

#[test]
fn http2_is_spoken_where_it_is_asked_for() {
    let server = Server::demo();
    let mut frames = Frames::new(server.connect().unwrap()).unwrap();
    assert!(frames.to_end().iter().all(|frame| frame.kind != Kind::Settings));
    let server = plain("");
    let mut frames = Frames::new(server.connect().unwrap()).unwrap();
    frames.next_of(Kind::Settings, 0);
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
        (7, &[(":authority", "attacker.example")], 421),
    ] {
        frames.request(stream, &with(authority), b"").unwrap();
        let answer = frames.next_of(Kind::Headers, stream);
        assert_eq!(answer.status(), status, "{authority:?}");
    }
    // A request that is not well-formed is reset, and its connection goes on.
    let headers = with(&[(":authority", "localhost"), ("connection", "close")]);
    frames.request(9, &headers, b"").unwrap();
    assert_eq!(frames.next_of(Kind::Reset, 9).error_code(), PROTOCOL_ERROR);
    frames.request(11, &with(&[(":authority", "localhost")]), b"").unwrap();
    assert_eq!(frames.next_of(Kind::Headers, 11).status(), 200);
}
