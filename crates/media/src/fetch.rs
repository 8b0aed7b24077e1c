//! URLs become encoded bytes: `data:` always, `http(s):` from allowed domains, `file:` below an allowed folder.
//!
//! Clients choose the URLs, and the server stands inside of somebody's network. Therefore an address is refused unless it
//! is public, the check is made on the very addresses that are connected to, and every redirect is checked as the first URL.

mod address;
mod data_url;
mod domain;
mod file;
mod http;
mod resolver;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Error, Format, Limits, Result};
pub use address::address_refusal;
pub use domain::AllowedDomain;
pub use resolver::{Resolver, SystemResolver};

/// Longest URL that is not a `data:` URL, in bytes.
const MAX_URL_BYTES: usize = 8 << 10;

/// Bytes of an encoded image, whose format is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    bytes: Bytes,
    format: Format,
}

impl Encoded {
    /// Checks the number of bytes, their format, and the media type where one is given.
    ///
    /// # Errors
    /// [`Error::TooManyBytes`], [`Error::UnknownFormat`], [`Error::UnsupportedMediaType`] or [`Error::MediaTypeDiffers`].
    pub fn new(bytes: Bytes, media_type: Option<&str>, limits: &Limits) -> Result<Self> {
        limits.check_bytes(bytes.len() as u64)?;
        let said = media_type.map(Format::of_media_type).transpose()?.flatten();
        let format = Format::of(&bytes)?;
        match said {
            Some(said) if said != format => {
                Err(Error::MediaTypeDiffers { said: said.media_type(), found: format.media_type() })
            }
            _ => Ok(Self { bytes, format }),
        }
    }

    /// Decodes base64, as in an `image` block with the source `base64`. The number of bytes is checked before decoding.
    ///
    /// # Errors
    /// [`Error::BadBase64`], and those of [`Self::new`].
    pub fn from_base64(text: &str, media_type: Option<&str>, limits: &Limits) -> Result<Self> {
        Self::new(data_url::base64_bytes(text, limits)?.into(), media_type, limits)
    }

    /// Decodes a `data:` URL.
    ///
    /// # Errors
    /// [`Error::BadUrl`] without `;base64,`, and those of [`Self::from_base64`].
    pub fn from_data_url(url: &str, limits: &Limits) -> Result<Self> {
        let (media_type, text) = data_url::split(url)?;
        Self::from_base64(text, media_type, limits)
    }

    /// The encoded bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }
}

/// The rules of an operator for image URLs. The default allows `data:` URLs alone.
#[derive(Clone, Debug)]
pub struct FetchPolicy {
    /// Hosts of `http:` and `https:` URLs.
    pub domains: Vec<AllowedDomain>,
    /// The folder of `file:` URLs.
    pub local_root: Option<PathBuf>,
    /// Addresses that are connected to although they are not public. Outside of tests there are none.
    pub trusted_addresses: Vec<IpAddr>,
    /// Limits on one image.
    pub limits: Limits,
    /// Longest time for one image, with all its redirects: ten seconds.
    pub timeout: Duration,
}

impl Default for FetchPolicy {
    fn default() -> Self {
        Self {
            domains: Vec::new(),
            local_root: None,
            trusted_addresses: Vec::new(),
            limits: Limits::default(),
            timeout: Duration::from_secs(10),
        }
    }
}

/// Fetches images by the rules of one [`FetchPolicy`].
#[derive(Debug)]
pub struct Fetcher {
    policy: Arc<FetchPolicy>,
    client: http::HttpClient,
}

impl Fetcher {
    /// A fetcher whose host names are resolved by `resolver`.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn new(policy: FetchPolicy, resolver: Arc<dyn Resolver>) -> Result<Self> {
        let policy = Arc::new(policy);
        let client = http::HttpClient::new(Arc::clone(&policy), resolver)?;
        Ok(Self { policy, client })
    }

    /// Fetches the image of a URL.
    ///
    /// # Errors
    /// - [`Error::BadUrl`]: no URL, another scheme, a password in it, or too long.
    /// - [`Error::HostNotAllowed`], [`Error::AddressNotAllowed`], [`Error::Redirect`], [`Error::NoFiles`],
    ///   [`Error::FileNotAllowed`]: the policy.
    /// - [`Error::Unreachable`], [`Error::Status`], [`Error::TimedOut`]: the host.
    /// - Those of [`Encoded::new`].
    pub async fn fetch(&self, url: &str) -> Result<Encoded> {
        let limits = self.policy.limits;
        // A data URL may have megabytes, of which no other parser makes a copy.
        if data_url::is_data_url(url) {
            data_url::check_length(url, &limits)?;
            // Decoding megabytes of base64 takes milliseconds, which is too long between two awaits.
            let url = url.to_owned();
            return blocking(move || Encoded::from_data_url(&url, &limits)).await;
        }
        if url.len() > MAX_URL_BYTES {
            return Err(Error::BadUrl("is longer than 8 KiB"));
        }
        let url = url::Url::parse(url)
            .map_err(|_| Error::BadUrl("is no URL: send data:, https: or http:"))?;
        match url.scheme() {
            "http" | "https" => {
                let bytes = tokio::time::timeout(self.policy.timeout, self.client.get(url));
                let seconds = self.policy.timeout.as_secs_f64();
                let bytes = bytes.await.unwrap_or(Err(Error::TimedOut { seconds }))?;
                // The media type that a web server sends is often wrong, and the bytes say what they are.
                Encoded::new(bytes, None, &limits)
            }
            "file" => {
                let root = self.policy.local_root.clone().ok_or(Error::NoFiles)?;
                let bytes = blocking(move || file::read(&url, &root, &limits)).await?;
                Encoded::new(bytes.into(), None, &limits)
            }
            _ => Err(Error::BadUrl("has a scheme that is not read: send data:, https: or http:")),
        }
    }
}

/// Runs what computes or reads files off the async threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    // The thread ends early only when the runtime shuts down, or by a panic, which the image caused.
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Error::Damaged))
}
