//! Checks the host and the framing of a request, so that neither a browser nor a proxy in front can be misled.
//!
//! A web page can point its own name at a loopback address (DNS rebinding). Its requests then have the page's origin, and only their
//! `Host` shows it. A server without a key on a loopback address therefore accepts loopback names only.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, EXPECT, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Version, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::config::ServeConfig;
use crate::model::api_error::{ApiError, ApiResult};
use crate::model::state::AppState;

/// Refuses requests for another host, with two hosts, or with an unknown transfer coding or expectation.
pub(crate) async fn check_host(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let checked = check_framing(request.headers())
        .and_then(|()| hosts(&request))
        .and_then(|hosts| check_hosts(&hosts, state.config()));
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => {
            let mut response = error.into_response();
            // If the framing is ambiguous, so is the start of the next request.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response
        }
    }
}

/// Source: RFC 9112, section 6.1, and RFC 9110, section 10.1.1.
fn check_framing(headers: &HeaderMap) -> ApiResult<()> {
    let is = |name: HeaderName, known: &str| {
        let mut values = headers.get_all(name).iter();
        // All values are compared: a second, unknown coding would change where the body ends.
        values.all(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(known.as_bytes()))
    };
    if !is(TRANSFER_ENCODING, "chunked") {
        return Err(ApiError::unknown_transfer_encoding());
    }
    if !is(EXPECT, "100-continue") {
        return Err(ApiError::unknown_expectation());
    }
    Ok(())
}

/// The hosts that a request names: in its target (`:authority` in HTTP/2), and in `Host`.
fn hosts(request: &Request) -> ApiResult<Vec<Authority>> {
    let is_http2 = request.version() == Version::HTTP_2;
    let mut hosts: Vec<Authority> = request.uri().authority().cloned().into_iter().collect();
    let mut headers = request.headers().get_all(HOST).iter();
    match (headers.next(), headers.next()) {
        (Some(host), None) => {
            let host = Authority::try_from(host.as_bytes());
            hosts.push(host.map_err(|_| ApiError::bad_host("The `Host` header is malformed."))?);
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_host("There is more than one `Host` header."));
        }
        // HTTP/1.0 clients, such as simple probes, need not send a host.
        (None, _) if hosts.is_empty() && request.version() >= Version::HTTP_11 => {
            let name = if is_http2 { ":authority" } else { "Host" };
            return Err(ApiError::bad_host(&format!("The `{name}` header is missing.")));
        }
        (None, _) => {}
    }
    // Source: RFC 9113, section 8.3.1. In HTTP/1.1 the target counts, and `Host` is ignored.
    if is_http2 && hosts.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(ApiError::bad_host("`:authority` and `Host` name different hosts."));
    }
    Ok(hosts)
}

/// # Errors
/// 421 with the host that this server does not accept.
fn check_hosts(hosts: &[Authority], config: &ServeConfig) -> ApiResult<()> {
    // No web page can reach a Unix socket, and a proxy in front passes its own host on.
    if config.needs_key() || !is_loopback(&config.host) || config.uds.is_some() {
        return Ok(());
    }
    let is_served = |host: &&Authority| {
        let host = host.host();
        // With another host than these the request is a web page's that has the loopback address as its own.
        is_loopback(host) || config.allowed_hosts.iter().any(|name| name.eq_ignore_ascii_case(host))
    };
    match hosts.iter().find(|host| !is_served(host)) {
        None => Ok(()),
        Some(host) => Err(ApiError::misdirected(host.host())),
    }
}

/// Whether a name or address is loopback. Source: RFC 6761, section 6.3, for `localhost`.
fn is_loopback(host: &str) -> bool {
    // A name with a dot at its end is the same name, RFC 1034.
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.ends_with(".localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn names_and_addresses_of_this_machine_are_loopback() {
        for host in
            ["localhost", "LocalHost.", "a.localhost", "127.0.0.1", "127.1.2.3", "[::1]", "::1"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "localhost.example",
            "xlocalhost",
            "0.0.0.0",
            "10.0.0.1",
            "[::2]",
            "127.0.0.1.example",
            "",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn each_request_has_one_host() {
        let request = |lines: &[&str], version| {
            let mut request = Request::get("/health").version(version);
            for line in lines {
                request = request.header(HOST, *line);
            }
            hosts(&request.body(Body::empty()).unwrap()).map(|hosts| hosts.len())
        };
        assert_eq!(request(&["a:1"], Version::HTTP_11), Ok(1));
        assert_eq!(request(&[], Version::HTTP_10), Ok(0));
        for wrong in [&["a", "a"][..], &[], &["a b"], &[""]] {
            assert!(request(wrong, Version::HTTP_11).is_err(), "{wrong:?}");
        }
        for wrong in [&["a", "a"][..], &[]] {
            assert!(request(wrong, Version::HTTP_2).is_err(), "{wrong:?}");
        }
        let both = |host: &str| {
            let request = Request::get("https://a:1/health").version(Version::HTTP_2);
            hosts(&request.header(HOST, host).body(Body::empty()).unwrap()).map(|hosts| hosts.len())
        };
        assert_eq!(both("A:1"), Ok(2));
        assert!(both("b:1").is_err());
        let absolute = Request::get("http://b/health").header(HOST, "a").body(Body::empty());
        assert_eq!(hosts(&absolute.unwrap()).unwrap(), ["b", "a"]);
    }

    #[test]
    fn only_known_framing_is_taken() {
        let check = |name: HeaderName, value: &str| {
            check_framing(&HeaderMap::from_iter([(name, value.parse().unwrap())])).is_ok()
        };
        assert!(check(TRANSFER_ENCODING, "Chunked") && check(EXPECT, "100-Continue"));
        for value in ["gzip, chunked", "chunked, chunked", "identity", "xchunked", ""] {
            assert!(!check(TRANSFER_ENCODING, value), "{value}");
        }
        assert!(!check(EXPECT, "200-ok"));
    }
}
