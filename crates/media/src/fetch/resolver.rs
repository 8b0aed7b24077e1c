//! Host names become addresses, of which only the checked ones reach the HTTP client.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::FetchPolicy;
use super::address::address_refusal;

/// Finds the addresses of a host name. Tests map names to loopback by one of their own.
pub trait Resolver: fmt::Debug + Send + Sync + 'static {
    /// The addresses of `host`, which is a name and never an address.
    fn addresses(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn addresses(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// An address that is not allowed, as the HTTP client passes it on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused(pub(super) &'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an address that is {}", self.0)
    }
}

impl StdError for Refused {}

impl FetchPolicy {
    /// The reason why nothing is fetched from an address.
    pub(super) fn address_refusal(&self, address: IpAddr) -> Option<&'static str> {
        if self.trusted_addresses.contains(&address) { None } else { address_refusal(address) }
    }
}

/// A resolver that gives only allowed addresses. The HTTP client connects to what it gives and to nothing else, so that a
/// name cannot have one address when it is checked and another when it is used.
pub(super) struct CheckedResolver {
    pub(super) policy: Arc<FetchPolicy>,
    pub(super) inner: Arc<dyn Resolver>,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = Arc::clone(&self.policy);
        let addresses = self.inner.addresses(name.as_str().to_owned());
        Box::pin(async move {
            let addresses = addresses.await?;
            // One bad address refuses the name, or an attacker would hide it among good ones.
            let refusal = addresses.iter().find_map(|&address| policy.address_refusal(address));
            match refusal {
                Some(reason) => Err(Refused(reason).into()),
                None => {
                    let addresses =
                        addresses.into_iter().map(|address| SocketAddr::new(address, 0));
                    Ok(Box::new(addresses) as Addrs)
                }
            }
        })
    }
}
