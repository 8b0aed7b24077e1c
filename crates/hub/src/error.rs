//! Why a model could not be had from the hub: one line each, with what to do.

use std::path::PathBuf;

use candlepower_checkpoint::Bytes;

/// Result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A model that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no folder to put the cache in.
    #[error("no folder for downloaded models: set HF_HOME (or HOME)")]
    NoHome,
    /// `HF_ENDPOINT` is no address.
    #[error("HF_ENDPOINT `{0}` is not an address such as https://hub.example")]
    BadEndpoint(String),
    /// `HF_HUB_DOWNLOAD_TIMEOUT` is no number.
    #[error("HF_HUB_DOWNLOAD_TIMEOUT `{0}` is not a number of seconds between 1 and 3600")]
    BadTimeout(String),
    /// A revision that could name nothing.
    #[error("`{0}` cannot be a revision: give a branch, a tag or a commit")]
    BadRevision(String),
    /// The token cannot be sent.
    #[error("the token from {origin} holds characters that no token has: copy it again")]
    UnusableToken {
        /// Where it was found.
        origin: String,
    },
    /// Gated, and no token was sent.
    #[error(
        "`{id}` is gated: accept its licence at {page}, then set HF_TOKEN to a token of the account that did"
    )]
    GatedWithoutToken {
        /// The model.
        id: String,
        /// Its page.
        page: String,
    },
    /// Gated, and the token's account has no access.
    #[error(
        "`{id}` is gated and the account of the token from {token} has no access: ask for it at {page}"
    )]
    GatedWithoutAccess {
        /// The model.
        id: String,
        /// Its page.
        page: String,
        /// Where the token was found.
        token: String,
    },
    /// The hub does not know the token.
    #[error(
        "the hub refuses the token from {token}: it is wrong or has expired; make a new one at {hub}/settings/tokens"
    )]
    TokenRefused {
        /// The hub's address.
        hub: String,
        /// Where the token was found.
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
        /// Where the token was found.
        token: String,
    },
    /// The token may not do this.
    #[error(
        "the token from {token} may not read {page}: give it the right to, or use another token"
    )]
    Forbidden {
        /// The model's page.
        page: String,
        /// Where the token was found, or that there was none.
        token: String,
    },
    /// There is no such branch, tag or commit.
    #[error("`{id}` has no revision `{revision}`: its branches and tags are listed at {page}")]
    NoRevision {
        /// The model.
        id: String,
        /// What was asked for.
        revision: String,
        /// The model's page.
        page: String,
    },
    /// The model has no weights that can be read.
    #[error(
        "`{id}` has no safetensors weights{found}: choose a variant of it that has, see {page}"
    )]
    NoSafetensors {
        /// The model.
        id: String,
        /// What it has instead, in words.
        found: String,
        /// Its page.
        page: String,
    },
    /// It is not clear which of the repository's GGUF files is meant.
    #[error(
        "`{id}` {problem}: name one as {id}/FILE, or by how its name ends, as {id}:Q4_K_M; there are {names}"
    )]
    WhichGguf {
        /// The model.
        id: String,
        /// What is wrong, in words.
        problem: String,
        /// The files.
        names: String,
    },
    /// A GGUF file is named, and the repository has none.
    #[error("`{id}` has no GGUF files: leave out what stands behind its name, or see {page}")]
    NoGguf {
        /// The model.
        id: String,
        /// Its page.
        page: String,
    },
    /// A file that every model has is not there.
    #[error("`{id}` has no {file}: it is no model in the form that transformers saves, see {page}")]
    NoFile {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// The model's page.
        page: String,
    },
    /// The hub may not be asked, and the cache does not have it all.
    #[error(
        "HF_HUB_OFFLINE is set, and {place} does not have {missing} of `{id}`: unset it for one start, or copy the model there"
    )]
    OfflineNotCached {
        /// The model.
        id: String,
        /// What is missing.
        missing: String,
        /// The cache.
        place: PathBuf,
    },
    /// Nobody answers, and the cache does not have it all.
    #[error(
        "cannot reach the hub at {hub} ({cause}), and {place} does not have {missing} of `{id}`: check the network, or HF_ENDPOINT"
    )]
    Unreachable {
        /// The hub's address.
        hub: String,
        /// What the connection said.
        cause: String,
        /// The model.
        id: String,
        /// What is missing.
        missing: String,
        /// The cache.
        place: PathBuf,
    },
    /// The weights do not fit the disk.
    #[error("`{id}` needs {} more in {}, where {} are free: make room, or set HF_HUB_CACHE to a folder on a larger disk", Bytes(*needed), place.display(), Bytes(*free))]
    DiskTooSmall {
        /// The model.
        id: String,
        /// Bytes that are still to be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The cache.
        place: PathBuf,
    },
    /// The connection broke and could not be made again.
    #[error("the connection was lost at {} of {} of {file} ({cause}), and {attempts} attempts to go on failed: start again, what has arrived is kept", Bytes(*done), Bytes(*total))]
    ConnectionLost {
        /// The file.
        file: String,
        /// Bytes that have arrived.
        done: u64,
        /// Bytes of the file.
        total: u64,
        /// What the connection said.
        cause: String,
        /// How often it was tried without a byte arriving.
        attempts: u32,
    },
    /// The bytes are not those that the hub promises.
    #[error(
        "{file} arrived damaged {attempts} times, its {digest} is not what the hub says: start again later, or use another HF_ENDPOINT"
    )]
    Damaged {
        /// The file.
        file: String,
        /// The kind of the digest.
        digest: &'static str,
        /// How often it was downloaded.
        attempts: u32,
    },
    /// A proxy or mirror that cannot continue a file.
    #[error(
        "the hub at {hub} gives {file} only from its beginning: it must support range requests"
    )]
    NoRanges {
        /// The hub's address.
        hub: String,
        /// The file.
        file: String,
    },
    /// The list of a repository's files goes on and on.
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
    /// The hub's description of a repository lacks something.
    #[error("the hub at {hub} does not give {what} of `{id}`: is it a hub of models?")]
    Incomplete {
        /// The hub's address.
        hub: String,
        /// The model.
        id: String,
        /// What is missing.
        what: String,
    },
    /// Any other answer.
    #[error("the hub answered {status} to the request for {what}{message}")]
    Answer {
        /// The HTTP status.
        status: u16,
        /// What was asked for.
        what: String,
        /// The hub's own words, if any, after a colon.
        message: String,
    },
    /// The cache cannot be used.
    #[error("cannot write {}: {source}; set HF_HUB_CACHE to a folder that can be written", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The TLS library or the like could not be set up.
    #[error("cannot prepare to ask the hub: {0}")]
    Client(String),
    /// The index of the weights cannot be understood.
    #[error(transparent)]
    Checkpoint(#[from] candlepower_checkpoint::Error),
}
