//! Errors of the hub. Each is one line that also says what to do.

use std::path::PathBuf;

use candlepower_checkpoint::Bytes;

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the hub, or of a download.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no folder for the cache.
    #[error("no folder for downloaded models: set HF_HOME (or HOME)")]
    NoHome,
    /// `HF_ENDPOINT` is no URL.
    #[error("HF_ENDPOINT `{0}` is not an address such as https://hub.example")]
    BadEndpoint(String),
    /// `HF_HUB_DOWNLOAD_TIMEOUT` is no number in its range.
    #[error("HF_HUB_DOWNLOAD_TIMEOUT `{0}` is not a number of seconds between 1 and 3600")]
    BadTimeout(String),
    /// The revision cannot be a name in git.
    #[error("`{0}` cannot be a revision: give a branch, a tag or a commit")]
    BadRevision(String),
    /// The token has characters that cannot be sent.
    #[error("the token from {origin} holds characters that no token has: copy it again")]
    UnusableToken {
        /// Origin of the token.
        origin: String,
    },
    /// The model is gated, and no token was sent.
    #[error(
        "`{id}` is gated: accept its licence at {page}, then set HF_TOKEN to a token of the account that did"
    )]
    GatedWithoutToken {
        /// The model.
        id: String,
        /// Its page.
        page: String,
    },
    /// The model is gated, and the token's account has no access.
    #[error(
        "`{id}` is gated and the account of the token from {token} has no access: ask for it at {page}"
    )]
    GatedWithoutAccess {
        /// The model.
        id: String,
        /// Its page.
        page: String,
        /// Origin of the token.
        token: String,
    },
    /// The hub does not accept the token.
    #[error(
        "the hub refuses the token from {token}: it is wrong or has expired; make a new one at {hub}/settings/tokens"
    )]
    TokenRefused {
        /// The hub's address.
        hub: String,
        /// Origin of the token.
        token: String,
    },
    /// There is no such model, or it is private.
    #[error(
        "there is no model at {page}, or it is private: check the name, or set HF_TOKEN to a token that may read it"
    )]
    NotFoundWithoutToken {
        /// The model's page.
        page: String,
    },
    /// There is no such model, or the token may not read it.
    #[error(
        "there is no model at {page} that the token from {token} may read: check the name, or use another token"
    )]
    NotFoundWithToken {
        /// The model's page.
        page: String,
        /// Origin of the token.
        token: String,
    },
    /// The token has no permission for this.
    #[error(
        "the token from {token} may not read {page}: give it the right to, or use another token"
    )]
    Forbidden {
        /// The model's page.
        page: String,
        /// Origin of the token, or a note that there was none.
        token: String,
    },
    /// There is no such branch, tag or commit.
    #[error("`{id}` has no revision `{revision}`: its branches and tags are listed at {page}")]
    NoRevision {
        /// The model.
        id: String,
        /// The requested revision.
        revision: String,
        /// The model's page.
        page: String,
    },
    /// The repository has no weights in a supported format.
    #[error(
        "`{id}` has no safetensors weights{found}: choose a variant of it that has, see {page}"
    )]
    NoSafetensors {
        /// The model.
        id: String,
        /// The formats that it has instead, as text.
        found: String,
        /// Its page.
        page: String,
    },
    /// The name fits none or several of the repository's GGUF files.
    #[error(
        "`{id}` {problem}: name one as {id}/FILE, or by the end of its name, as {id}:ENDING; there are {names}"
    )]
    WhichGguf {
        /// The model.
        id: String,
        /// The problem, as text.
        problem: String,
        /// The files.
        names: String,
    },
    /// The name is that of a GGUF file, but the repository has none.
    #[error("`{id}` has no GGUF files: leave out the part after its name, or see {page}")]
    NoGguf {
        /// The model.
        id: String,
        /// Its page.
        page: String,
    },
    /// A required file is missing.
    #[error("`{id}` has no {file}: it is no model in the form that transformers saves, see {page}")]
    NoFile {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// The model's page.
        page: String,
    },
    /// The client is offline, and the cache is not complete.
    #[error(
        "HF_HUB_OFFLINE is set, and {place} does not have {missing} of `{id}`: unset it for one start, or copy the model there"
    )]
    OfflineNotCached {
        /// The model.
        id: String,
        /// The part that is missing.
        missing: String,
        /// The cache.
        place: PathBuf,
    },
    /// The hub cannot be reached, and the cache is not complete.
    #[error(
        "cannot reach the hub at {hub} ({cause}), and {place} does not have {missing} of `{id}`: check the network, or HF_ENDPOINT"
    )]
    Unreachable {
        /// The hub's address.
        hub: String,
        /// The error of the connection.
        cause: String,
        /// The model.
        id: String,
        /// The part that is missing.
        missing: String,
        /// The cache.
        place: PathBuf,
    },
    /// The weights do not fit on the disk.
    #[error("`{id}` needs {} more in {}, where {} are free: make room, or set HF_HUB_CACHE to a folder on a larger disk", Bytes(*needed), place.display(), Bytes(*free))]
    DiskTooSmall {
        /// The model.
        id: String,
        /// Bytes that still have to be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The cache.
        place: PathBuf,
    },
    /// The connection was lost, and could not be restored.
    #[error("the connection was lost at {} of {} of {file} ({cause}), and {attempts} attempts to go on failed: start again, what has arrived is kept", Bytes(*done), Bytes(*total))]
    ConnectionLost {
        /// The file.
        file: String,
        /// Bytes that have arrived.
        done: u64,
        /// Bytes of the file.
        total: u64,
        /// The error of the connection.
        cause: String,
        /// Number of attempts in a row without a new byte.
        attempts: u32,
    },
    /// The digest of the download is not the one that the hub lists.
    #[error(
        "{file} arrived damaged {attempts} times, its {digest} is not what the hub says: start again later, or use another HF_ENDPOINT"
    )]
    Damaged {
        /// The file.
        file: String,
        /// The kind of the digest.
        digest: &'static str,
        /// Number of downloads.
        attempts: u32,
    },
    /// A proxy or mirror cannot continue a file.
    #[error(
        "the hub at {hub} gives {file} only from its beginning: it must support range requests"
    )]
    NoRanges {
        /// The hub's address.
        hub: String,
        /// The file.
        file: String,
    },
    /// The list of a repository's files is too long.
    #[error(
        "the hub at {hub} gives more than {} as the list of files of `{id}`: use another HF_ENDPOINT, or name a folder that has the model", Bytes(*limit)
    )]
    ListingTooLong {
        /// The hub's address.
        hub: String,
        /// The model.
        id: String,
        /// Most bytes that are read.
        limit: u64,
    },
    /// The hub's description of a repository lacks a field.
    #[error("the hub at {hub} does not give {what} of `{id}`: is it a hub of models?")]
    Incomplete {
        /// The hub's address.
        hub: String,
        /// The model.
        id: String,
        /// The field that is missing.
        what: String,
    },
    /// Any other failure status.
    #[error("the hub answered {status} to the request for {what}{message}")]
    Answer {
        /// The HTTP status.
        status: u16,
        /// The requested file or list.
        what: String,
        /// The hub's own message after a colon; may be empty.
        message: String,
    },
    /// The cache cannot be written.
    #[error("cannot write {}: {source}; set HF_HUB_CACHE to a folder that can be written", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The HTTP or TLS library could not be set up.
    #[error("cannot prepare to ask the hub: {0}")]
    Client(String),
    /// The index of the weights cannot be parsed.
    #[error(transparent)]
    Checkpoint(#[from] candlepower_checkpoint::Error),
}
