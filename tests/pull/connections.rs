//! Connections that break, stall or send wrong bytes. A download continues, or fails with one line, and never accepts
//! a part as whole.

use super::{ID, Place, files_ending};
use crate::support::{Fault, Files, Seen, Spot, Times, wait_for};

const WEIGHTS: &str = "model.safetensors";

fn content() -> Spot {
    Spot::content(WEIGHTS)
}

/// A golden model whose weight file has `padding` more bytes in its header.
fn padded(padding: usize) -> Files {
    let files = Files::golden("llama");
    let bytes = files.contents(WEIGHTS);
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let (header, data) = (&bytes[8..8 + header_len], &bytes[8 + header_len..]);
    let mut padded = Vec::with_capacity(bytes.len() + padding);
    padded.extend(((header_len + padding) as u64).to_le_bytes());
    padded.extend(header);
    // The format allows spaces behind the JSON of the header.
    padded.extend(std::iter::repeat_n(b' ', padding));
    padded.extend(data);
    files.with(WEIGHTS, padded)
}

#[test]
fn a_connection_that_breaks_is_continued_where_it_broke() {
    let place = Place::with(&Files::golden("llama"));
    place.hub.inject(ID, content(), Fault::CutAfter(100_000), Times::Next(3));
    place.hub.inject(ID, Spot::content("config.json"), Fault::CutAfter(10), Times::Next(1));
    drop(place.check_served());
    let ranges: Vec<Option<String>> =
        place.requests_for_large_files().into_iter().map(|seen| seen.range).collect();
    // The first request, and one after each of three cuts.
    assert_eq!(ranges.len(), 4, "{ranges:?}");
    assert!(ranges[0].is_none() && ranges[1..].iter().all(Option::is_some), "{ranges:?}");
}

#[test]
fn a_connection_that_stays_broken_is_one_line_and_what_has_arrived_is_kept() {
    // Two segments and a bit.
    let place = Place::with(&padded(40 << 20));
    place.hub.inject(ID, content(), Fault::CutAfter(3 << 20), Times::Next(6));
    place.hub.inject(ID, content(), Fault::CutAfter(0), Times::Always);
    place.check_refused(
        place.serve(ID),
        "the connection was lost at <any>iB of 40.5 MiB of model.safetensors (<any>), and 5 attempts to go on failed: start again, what has arrived is kept",
    );
    assert_eq!(files_ending(&place.cached(ID).join("snapshots"), WEIGHTS).len(), 0);
    place.hub.heal(ID);
    place.check_served();
}

#[test]
fn a_later_start_goes_on_with_what_an_earlier_one_has_left() {
    let files = padded(40 << 20);
    let place = Place::with(&files);
    // Only the first segment arrives: a stall behind the end is none.
    place.hub.inject(ID, content(), Fault::StallAfter(usize::MAX), Times::Next(1));
    place.hub.inject(ID, content(), Fault::StallAfter(0), Times::Always);
    let mut server = place.serve(ID).listen();
    let left = wait_for("a segment to be written", || {
        let left = files_ending(&place.cached(ID).join("blobs"), ".incomplete").pop()?;
        // A small file may be complete, and renamed, by now.
        let len = std::fs::metadata(&left).ok()?.len();
        // A segment has 16 MiB.
        (len >= 16 << 20).then_some(left)
    });
    server.terminate();
    assert!(server.wait_for_exit().success());
    let len = std::fs::metadata(left).unwrap().len();
    place.hub.heal(ID);
    place.hub.release();
    place.hub.forget_requests();
    drop(place.check_served());
    let first = |range: Option<String>| -> Option<u64> {
        range?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
    };
    let starts: Vec<_> =
        place.requests_for_large_files().into_iter().map(|seen| first(seen.range)).collect();
    assert!(
        !starts.is_empty() && starts.iter().all(|start| *start >= Some(len)),
        "{starts:?} {len}"
    );
    assert_eq!(files_ending(place.home.path(), ".incomplete").len(), 0);
}

#[test]
fn damaged_bytes_never_get_a_name() {
    let place = Place::with(&Files::golden("llama"));
    place.hub.inject(ID, content(), Fault::WrongBytes, Times::Always);
    place.check_refused(
        place.serve(ID),
        "model.safetensors arrived damaged 2 times, its SHA-256 is not what the hub says: start again later, or use another HF_ENDPOINT",
    );
    place.hub.heal(ID);
    // A small file has no SHA-256 on the hub, so its git hash is compared.
    place.hub.inject(ID, Spot::content("generation_config.json"), Fault::WrongBytes, Times::Always);
    place.hub.publish(ID, &Files::golden("llama").with("generation_config.json", "{}"));
    place.check_refused(
        place.serve(ID),
        "generation_config.json arrived damaged 2 times, its git SHA-1 is not what the hub says: start again later, or use another HF_ENDPOINT",
    );
    place.hub.heal(ID);
    place.hub.inject(ID, content(), Fault::WrongBytes, Times::Next(1));
    let server = place.check_served();
    server.log_with("arrived damaged (attempt 1)");
}

#[test]
fn what_an_earlier_download_has_left_is_verified_too() {
    let files = padded(20 << 20);
    let place = Place::with(&files);
    place.hub.inject(ID, content(), Fault::Status(404), Times::Next(1));
    place.serve(ID).refused();
    let left = files_ending(&place.cached(ID).join("blobs"), ".incomplete").remove(0);
    // The bytes look like those of an earlier download, but are not the file's.
    std::fs::write(&left, vec![7; 18 << 20]).unwrap();
    place.hub.heal(ID);
    let server = place.check_served();
    server.log_with("arrived damaged (attempt 1)");
}

#[test]
fn errors_that_pass_are_waited_for() {
    let place = Place::with(&Files::golden("llama"));
    place.hub.inject(ID, Spot::Api, Fault::Status(503), Times::Next(2));
    place.hub.inject(ID, Spot::resolve(WEIGHTS), Fault::RetryAfter(429, 1), Times::Next(1));
    place.hub.inject(ID, Spot::resolve("config.json"), Fault::Status(500), Times::Next(2));
    place.hub.inject(ID, content(), Fault::Status(503), Times::Next(1));
    place.check_served();
}

#[test]
fn an_address_that_has_expired_is_asked_for_again() {
    // Five segments. The last is requested after the first has arrived, at the redirect target that all of them
    // share.
    let place = Place::with(&padded(70 << 20));
    place.hub.inject(ID, content(), Fault::StallAfter(1 << 20), Times::Next(1));
    let server = place.serve(ID).listen();
    wait_for("the download to begin", || {
        (place.requests_for_large_files().len() >= 4).then_some(())
    });
    place.hub.expire_signatures();
    place.hub.release();
    server.wait_until_healthy();
    super::check_answers(&server, ID);
    let is_resolve = |seen: &&Seen| seen.path.contains("/resolve/") && seen.path.ends_with(WEIGHTS);
    // One at the start, and one after the signature has expired.
    assert_eq!(place.hub.requests().iter().filter(is_resolve).count(), 2);
}

#[test]
fn an_answer_that_is_none_of_a_hub_is_told() {
    let place = Place::with(&Files::golden("llama"));
    place.hub.inject(ID, Spot::Api, Fault::Status(418), Times::Always);
    place.check_refused(
        place.serve(ID),
        "the hub answered 418 to the request for its files of `acme/tiny`: I'm a teapot",
    );
    place.hub.heal(ID);
    place.check_served();
}
