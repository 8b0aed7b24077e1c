//! The listing of a repository at a revision. One request returns its commit and the size and digest of every file.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::time::{Duration, SystemTime};

use hf_hub::api::tokio::Api;
use hf_hub::{Repo, RepoType};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName};
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use crate::config::Token;
use crate::digest::Digest;
use crate::{Error, ModelId, Result};

/// Number of requests before the hub counts as unreachable.
const ATTEMPTS: u32 = 3;
/// Most bytes of a listing, enough for some hundred thousand files. Without a limit, a faulty or hostile mirror could
/// fill the memory with an endless list.
const MAX_BYTES: usize = 64 << 20;

/// A repository at a revision.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    /// The full commit id.
    pub(crate) commit: String,
    /// All files, by their paths in the repository.
    pub(crate) files: BTreeMap<String, RemoteFile>,
}

/// A file on the hub.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    /// Size in bytes.
    pub(crate) size: u64,
    pub(crate) digest: Digest,
}

/// The requested repository, and the token.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) id: &'a ModelId,
    pub(crate) revision: &'a str,
    pub(crate) token: Option<&'a Token>,
    pub(crate) hub: &'a str,
}

/// The reason that there is no listing.
pub(crate) enum NoListing {
    /// The hub does not answer, or not correctly, with the cause as text. The cache may still suffice.
    Unreachable(String),
    /// The hub has answered with an error.
    Refused(Error),
}

impl Listing {
    /// Sends a request to the hub, which must send something within `silence`.
    pub(crate) async fn fetch(
        api: &Api,
        asked: Asked<'_>,
        silence: Duration,
    ) -> Result<Self, NoListing> {
        let repo = Repo::with_revision(
            asked.id.as_str().to_owned(),
            RepoType::Model,
            asked.revision.to_owned(),
        );
        // The TLS library panics if the clock is before 1970.
        if asked.hub.starts_with("https://") && SystemTime::now() < SystemTime::UNIX_EPOCH {
            let cause = "the clock of this machine is before 1970: set it".to_owned();
            return Err(NoListing::Unreachable(cause));
        }
        let mut attempt = 1;
        loop {
            // Without `blobs`, the hub leaves out sizes and digests.
            let request = api.repo(repo.clone()).info_request().query(&[("blobs", "true")]);
            let cause = match timeout(silence, request.send()).await {
                Err(_) => format!("no answer within {} s", silence.as_secs()),
                Ok(Err(error)) => root_cause(&error),
                Ok(Ok(response)) if is_passing(response.status()) => {
                    format!("it answers {}", response.status().as_u16())
                }
                Ok(Ok(response)) => {
                    return asked.read(response, silence).await;
                }
            };
            if attempt == ATTEMPTS {
                return Err(NoListing::Unreachable(cause));
            }
            sleep(Duration::from_millis(250 << attempt)).await;
            attempt += 1;
        }
    }
}

impl Asked<'_> {
    /// URL of the model's page, for users.
    pub(crate) fn page(&self) -> String {
        format!("{}/{}", self.hub, self.id)
    }

    async fn read(
        &self,
        response: reqwest::Response,
        silence: Duration,
    ) -> Result<Listing, NoListing> {
        if !response.status().is_success() {
            let refusal = self.refusal(response.status(), response.headers(), "its files");
            return Err(NoListing::Refused(refusal));
        }
        let body = timeout(silence, self.read_body(response)).await.unwrap_or_else(|_| {
            let cause = format!("it was not whole within {} s", silence.as_secs());
            Err(NoListing::Unreachable(cause))
        })?;
        self.parse(&body).map_err(NoListing::Refused)
    }

    /// Reads a body with a size limit, since its length is not known.
    async fn read_body(&self, mut response: reqwest::Response) -> Result<Vec<u8>, NoListing> {
        let broken = |error| NoListing::Unreachable(root_cause(&error));
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(broken)? {
            // The check is before the copy, so the memory holds one chunk more than the limit at most.
            if body.len() + chunk.len() > MAX_BYTES {
                let (hub, id) = (self.hub.to_owned(), self.id.to_string());
                return Err(NoListing::Refused(Error::ListingTooLong {
                    hub,
                    id,
                    limit: MAX_BYTES as u64,
                }));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    fn parse(&self, body: &[u8]) -> Result<Listing> {
        let missing = |what: &str| Error::Incomplete {
            hub: self.hub.to_owned(),
            id: self.id.to_string(),
            what: what.to_owned(),
        };
        let info: Info =
            serde_json::from_slice(body).map_err(|_| missing("the list of the files"))?;
        // Both become parts of paths, so they are checked.
        if !is_hex(&info.sha, 40) {
            return Err(missing("the commit"));
        }
        let mut files = BTreeMap::new();
        for sibling in info.siblings {
            let name = sibling.rfilename;
            // A name with `..` or a leading `/` would leave the cache. The file is left out, since no model needs it.
            if !Path::new(&name).components().all(|part| matches!(part, Component::Normal(_))) {
                continue;
            }
            let digest = match (sibling.lfs, sibling.blob_id) {
                // For an LFS file, `blobId` is the id of its pointer and not of its bytes.
                (Some(lfs), _) if is_hex(&lfs.sha256, 64) => Digest::Sha256(lfs.sha256),
                (None, Some(id)) if is_hex(&id, 40) => Digest::GitSha1(id),
                _ => return Err(missing(&format!("the digest of {name}"))),
            };
            let size = sibling.size.ok_or_else(|| missing(&format!("the size of {name}")))?;
            files.insert(name.clone(), RemoteFile { name, size, digest });
        }
        Ok(Listing { commit: info.sha, files })
    }

    /// The error for a failed request for `what`.
    ///
    /// Source: `hf_raise_for_status` in huggingface_hub.
    pub(crate) fn refusal(&self, status: StatusCode, headers: &HeaderMap, what: &str) -> Error {
        let header = |name: &'static str| {
            headers.get(HeaderName::from_static(name)).and_then(|value| value.to_str().ok())
        };
        // The status does not suffice. The hub answers 401 for an unknown model, too, if the request has no token.
        let code = header("x-error-code").unwrap_or_default();
        let message = header("x-error-message").unwrap_or_default();
        let (id, page) = (self.id.to_string(), self.page());
        let token = self.token.map(|token| token.origin().to_owned());
        let is_token_refused = message.to_lowercase().contains("invalid credentials");
        match (status.as_u16(), code, token) {
            (_, "RevisionNotFound", _) => {
                Error::NoRevision { id, revision: self.revision.to_owned(), page }
            }
            (_, "EntryNotFound", _) => Error::NoFile { id, file: what.to_owned(), page },
            (_, "GatedRepo", None) => Error::GatedWithoutToken { id, page },
            (_, "GatedRepo", Some(token)) => Error::GatedWithoutAccess { id, page, token },
            // With `RepoNotFound`, a valid token only lacks access to this model.
            (401, _, Some(token)) if is_token_refused || code != "RepoNotFound" => {
                Error::TokenRefused { hub: self.hub.to_owned(), token }
            }
            (401 | 404, _, None) => Error::NotFoundWithoutToken { page },
            (401 | 404, _, Some(token)) => Error::NotFoundWithToken { page, token },
            (403, _, token) => {
                let token = token.unwrap_or_else(|| "nowhere (HF_TOKEN is not set)".to_owned());
                Error::Forbidden { page, token }
            }
            (status, _, _) => {
                let message = if message.is_empty() {
                    String::new()
                } else {
                    // Errors are one line, and the length of this header is up to the server.
                    format!(": {}", message.chars().take(200).collect::<String>())
                };
                Error::Answer { status, what: format!("{what} of `{id}`"), message }
            }
        }
    }
}

/// Whether a retry may succeed.
pub(crate) fn is_passing(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

/// The innermost cause of a failed request.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The fields that are read of the hub's answer.
#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}
