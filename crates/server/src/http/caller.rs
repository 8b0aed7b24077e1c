//! Identifies the caller: by its API key, or without keys by a trusted proxy's header, or by its address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use candlepower_engine::Caller;

use crate::config::ServeConfig;
use crate::model::keys::ApiKey;
use crate::model::state::AppState;

/// Length of the IPv6 prefix that a provider gives one customer. All addresses in it are one caller.
const IPV6_PREFIX: u32 = 64;

/// The caller's name in the log, attached to a response.
#[derive(Clone, Debug)]
pub(crate) struct CallerName(pub(crate) String);

/// Adds the [`Caller`] to the request, and the [`CallerName`] to its response.
pub(crate) async fn identify(
    State(state): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let name = name(&request, state.config());
    let id = state.caller_id(&name);
    let key = request.extensions().get::<Arc<ApiKey>>();
    let weight = key.map_or(NonZeroU32::MIN, |key| key.limits.weight);
    request.extensions_mut().insert(Caller { id, weight });
    let mut response = next.run(request).await;
    response.extensions_mut().insert(CallerName(name));
    response
}

/// The caller's name. Each kind of name has its own prefix, so that a header cannot imitate a key or an address.
fn name(request: &Request, config: &ServeConfig) -> String {
    if let Some(key) = request.extensions().get::<Arc<ApiKey>>() {
        return format!("key {}", key.name);
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    // Only requests that came through no connection, such as those of unit tests, have no address.
    let Some(peer) = peer.map(|ConnectInfo(peer)| peer.ip().to_canonical()) else {
        return "nobody".to_owned();
    };
    let given = config.caller_header.as_ref().and_then(|name| request.headers().get(name));
    match given {
        // Anyone could send the header, so it counts only from a proxy that the operator trusts.
        Some(value) if config.trusted_proxies.iter().any(|proxies| proxies.contains(&peer)) => {
            format!("header {}", String::from_utf8_lossy(value.as_bytes()))
        }
        _ => format!("address {}", without_host(peer)),
    }
}

/// The network of an IPv6 address; an IPv4 address unchanged.
fn without_host(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - IPV6_PREFIX))).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use clap::{Args, Command, FromArgMatches};

    use super::*;
    use crate::model::keys::ApiKeys;

    fn config(argv: &[&str]) -> ServeConfig {
        let command = ServeConfig::augment_args(Command::new("serve").no_binary_name(true));
        let argv = ["demo"].iter().chain(argv);
        ServeConfig::from_arg_matches(&command.try_get_matches_from(argv).unwrap()).unwrap()
    }

    fn asked(peer: &str, user: &str) -> Request {
        let mut request = Request::get("/").header("x-user", user).body(Body::empty()).unwrap();
        let peer = SocketAddr::new(peer.parse().unwrap(), 1);
        request.extensions_mut().insert(ConnectInfo(peer));
        request
    }

    #[test]
    fn callers_are_told_apart_by_address() {
        let name = |peer| name(&asked(peer, "a"), &config(&["--caller-header=x-user"]));
        assert_ne!(name("10.0.0.1"), name("10.0.0.2"));
        // A socket of IPv6 shows IPv4 clients by such addresses.
        assert_eq!(name("::ffff:10.0.0.1"), name("10.0.0.1"));
        assert_eq!(name("2001:db8::1"), name("2001:db8::2:3"));
        // The last two differ within the first 64 bits.
        assert_ne!(name("2001:db8::1"), name("2001:db8:0:1::1"));
    }

    #[test]
    fn a_header_counts_from_trusted_proxies_alone() {
        let config = config(&["--caller-header=X-User", "--trusted-proxies=10.0.0.0/8,::1"]);
        let name = |peer, user| name(&asked(peer, user), &config);
        for proxy in ["10.1.2.3", "::1", "::ffff:10.0.0.1"] {
            assert_eq!(name(proxy, "ann"), "header ann");
        }
        assert_eq!(name("11.0.0.1", "ann"), name("11.0.0.1", "bob"));
        // A name never equals an address.
        assert_ne!(name("10.0.0.1", "address 11.0.0.1"), name("11.0.0.1", ""));
    }

    #[test]
    fn all_who_have_the_key_are_one_caller() {
        let config = config(&["--api-key=secret", "--api-key=other"]);
        let keys = ApiKeys::load(&config).unwrap();
        let name = |peer: &str, key: &str| {
            let mut request = asked(peer, "");
            request.extensions_mut().insert(keys.find(key.as_bytes()).unwrap());
            name(&request, &config)
        };
        assert_eq!(name("10.0.0.1", "secret"), name("10.0.0.2", "secret"));
        assert_ne!(name("10.0.0.1", "secret"), name("10.0.0.1", "other"));
    }
}
