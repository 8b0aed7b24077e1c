//! `http:` and `https:` URLs, from allowed hosts and public addresses alone.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use reqwest::header::{ACCEPT, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use url::{Host, Url};

use super::FetchPolicy;
use super::resolver::{CheckedResolver, Refused, Resolver};
use crate::{Error, Result};

/// Redirects on one host that are followed.
const MAX_REDIRECTS: usize = 3;

/// An HTTP client that goes only where a policy allows.
pub(super) struct HttpClient {
    policy: Arc<FetchPolicy>,
    /// None where no host is allowed. Such a server needs no root certificates.
    client: Option<Client>,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

impl HttpClient {
    pub(super) fn new(policy: Arc<FetchPolicy>, resolver: Arc<dyn Resolver>) -> Result<Self> {
        let client = match policy.domains.is_empty() {
            true => None,
            false => Some(client(&policy, resolver).map_err(|_| Error::Client)?),
        };
        Ok(Self { policy, client })
    }

    /// The body of a URL.
    pub(super) async fn get(&self, mut url: Url) -> Result<Bytes> {
        for _ in 0..=MAX_REDIRECTS {
            self.check(&url)?;
            let response = self.send(&url).await?;
            match self.redirect(&url, &response)? {
                Some(next) => url = next,
                None => return self.body(&url, response).await,
            }
        }
        Err(Error::Redirect("more than three times"))
    }

    /// Checks all of a URL that is known before its name is resolved.
    fn check(&self, url: &Url) -> Result<()> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Error::Redirect("to another scheme"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Error::BadUrl("has a user or a password, which are not sent"));
        }
        let host = host(url);
        let port = url.port_or_known_default().unwrap_or_default();
        let mut with_host =
            self.policy.domains.iter().filter(|domain| domain.has_host(&host)).peekable();
        if with_host.peek().is_none() {
            return Err(Error::HostNotAllowed { host, port: None });
        }
        if !with_host.any(|domain| domain.has_port(port)) {
            return Err(Error::HostNotAllowed { host, port: Some(port) });
        }
        // The client does not resolve addresses, so they are checked here.
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(address.into()),
            Some(Host::Ipv6(address)) => Some(address.into()),
            _ => None,
        };
        match address.and_then(|address| self.policy.address_refusal(address)) {
            Some(reason) => Err(Error::AddressNotAllowed { host, reason }),
            None => Ok(()),
        }
    }

    async fn send(&self, url: &Url) -> Result<Response> {
        let accept = "image/png, image/jpeg, image/webp, image/gif";
        let client = self.client.as_ref().ok_or(Error::Client)?;
        let request = client.get(url.clone()).header(ACCEPT, accept);
        request.send().await.map_err(|error| failed(url, &error))
    }

    /// Where a response sends us, if it does.
    fn redirect(&self, url: &Url, response: &Response) -> Result<Option<Url>> {
        let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
        if !is_redirect {
            return Ok(None);
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let next = location.and_then(|location| url.join(location).ok());
        let next = next.ok_or(Error::Redirect("to nowhere"))?;
        if next.host() != url.host() {
            return Err(Error::Redirect("to another host"));
        }
        if url.scheme() == "https" && next.scheme() != "https" {
            return Err(Error::Redirect("away from https"));
        }
        Ok(Some(next))
    }

    /// The body, as far as the limit allows.
    async fn body(&self, url: &Url, response: Response) -> Result<Bytes> {
        if response.status() != StatusCode::OK {
            return Err(Error::Status { host: host(url), status: response.status().as_u16() });
        }
        let limits = &self.policy.limits;
        limits.check_bytes(response.content_length().unwrap_or(0))?;
        let mut body = BytesMut::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| failed(url, &error))?;
            limits.check_bytes((body.len() + chunk.len()) as u64)?;
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }
}

fn client(policy: &Arc<FetchPolicy>, resolver: Arc<dyn Resolver>) -> reqwest::Result<Client> {
    let checked = CheckedResolver { policy: Arc::clone(policy), inner: resolver };
    Client::builder()
        .user_agent(concat!("candlepower/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(Arc::new(checked))
        // A proxy would resolve names itself, behind the check.
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        .connect_timeout(policy.timeout)
        // Compressed bytes would be counted before they are decompressed.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate()
        .pool_max_idle_per_host(0)
        .build()
}

/// The host of a URL, as its parser writes it.
fn host(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

/// Our error for one of the client's, whose words may hold addresses and are not repeated.
fn failed(url: &Url, error: &reqwest::Error) -> Error {
    let host = host(url);
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Refused(reason)) = error.downcast_ref() {
            return Error::AddressNotAllowed { host, reason };
        }
        cause = error.source();
    }
    let problem = match error {
        error if error.is_connect() => "it has no address or does not accept the connection",
        error if error.is_body() || error.is_decode() => {
            "the connection ended before the image did"
        }
        _ => "it gives no valid answer",
    };
    Error::Unreachable { host, problem }
}
