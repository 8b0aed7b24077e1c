//! Downloads a file: in several concurrent segments, with a resume after an interruption, and verified before it gets
//! its name.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::cache::at;
use crate::config::HubConfig;
use crate::digest::{Digest, Hasher};
use crate::listing::{Asked, RemoteFile, is_passing, root_cause};
use crate::progress::FileProgress;
use crate::{Error, Result};

/// Bytes of one request. A segment stays in memory until those before it are written.
const SEGMENT_BYTES: u64 = 16 << 20;
/// Most segments in memory, over all files.
const MAX_SEGMENTS: usize = 8;
/// Concurrent segments of one file.
const SEGMENTS_OF_A_FILE: usize = 4;
/// Most failures of a request in a row without a new byte.
const MAX_ATTEMPTS: u32 = 5;
/// The wait after the first failure. It doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait that the hub may request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Number of times that a damaged file is downloaded.
const MAX_DOWNLOADS: u32 = 2;
const MAX_REDIRECTS: usize = 10;

/// HTTP clients for the bytes of files.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Sends the token.
    hub: Client,
    /// Sends no token, for the hosts that the hub redirects to.
    elsewhere: Client,
    silence: Duration,
    segments: Arc<Semaphore>,
}

/// A file that is being downloaded.
pub(crate) struct Download<'a> {
    pub(crate) asked: Asked<'a>,
    pub(crate) file: &'a RemoteFile,
    /// URL at the hub.
    pub(crate) url: String,
    /// Path of the download.
    pub(crate) path: PathBuf,
    pub(crate) progress: &'a FileProgress,
    /// The last redirect target. It is forgotten once it stops working.
    pub(crate) location: Mutex<Option<Url>>,
}

/// The reason that a request returned no bytes.
enum Fault {
    /// A retry may succeed, after a wait if one was requested. The cause is text.
    Passing { cause: String, wait: Option<Duration> },
    /// A retry is useless.
    Final(Error),
}

impl Transfer {
    pub(crate) fn new(config: &HubConfig) -> Result<Self> {
        let failed = |error: reqwest::Error| Error::Client(root_cause(&error));
        let client = |headers| {
            Client::builder()
                .user_agent(concat!("candlepower/", env!("CARGO_PKG_VERSION")))
                .default_headers(headers)
                // `follow` decides for each redirect which client may go on, so the library must not.
                .redirect(Policy::none())
                .connect_timeout(config.silence)
                .build()
                .map_err(failed)
        };
        let mut headers = HeaderMap::new();
        if let Some(token) = &config.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.secret()))
                .map_err(|_| Error::UnusableToken { origin: token.origin().to_owned() })?;
            // Otherwise the token could appear in debug output of the library.
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(Self {
            hub: client(headers)?,
            elsewhere: client(HeaderMap::new())?,
            silence: config.silence,
            segments: Arc::new(Semaphore::new(MAX_SEGMENTS)),
        })
    }

    /// Downloads and verifies a file. An interrupted download is resumed.
    pub(crate) async fn fetch(&self, download: &Download<'_>) -> Result<()> {
        for attempt in 1..=MAX_DOWNLOADS {
            let partial = Partial::open(&download.path, download.file).await?;
            download.progress.set_bytes(partial.len);
            let segments = segments(partial.len..download.file.size);
            let partial = stream::iter(segments)
                .map(|range| self.segment(download, range))
                // `buffered` keeps the order, in which the hasher needs the bytes. It also takes the permits in that
                // order, and the semaphore is fair. So the segment that is written next never waits for one behind
                // it.
                .buffered(SEGMENTS_OF_A_FILE)
                .try_fold(partial, |partial, segment| partial.append(segment))
                .await?;
            if partial.verify().await? {
                return Ok(());
            }
            tracing::warn!("{} arrived damaged (attempt {attempt})", download.file.name);
        }
        Err(Error::Damaged {
            file: download.file.name.clone(),
            digest: match download.file.digest {
                Digest::Sha256(_) => "SHA-256",
                Digest::GitSha1(_) => "git SHA-1",
            },
            attempts: MAX_DOWNLOADS,
        })
    }

    /// A part of a file. It is not verified, and stays in memory.
    pub(crate) async fn part(&self, download: &Download<'_>, range: Range<u64>) -> Result<Bytes> {
        Ok(self.segment(download, range).await?.bytes)
    }

    /// A part of a file. Interruptions do not matter as long as each attempt brings new bytes.
    async fn segment(&self, download: &Download<'_>, range: Range<u64>) -> Result<Segment> {
        // The segment keeps the permit until it is written, so the limit covers finished segments in memory as well.
        let permit = Arc::clone(&self.segments)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let mut bytes = BytesMut::with_capacity((range.end - range.start) as usize);
        let mut failures = 0;
        loop {
            let arrived = bytes.len();
            let fault = match self.read(download, &range, &mut bytes).await {
                Ok(()) => return Ok(Segment { bytes: bytes.freeze(), _permit: permit }),
                Err(Fault::Final(error)) => return Err(error),
                Err(Fault::Passing { cause, wait }) => (cause, wait),
            };
            // A slow line that breaks often still makes progress, so only failures without a new byte count together.
            failures = if bytes.len() > arrived { 1 } else { failures + 1 };
            let (cause, wait) = fault;
            if failures == MAX_ATTEMPTS {
                return Err(Error::ConnectionLost {
                    file: download.file.name.clone(),
                    done: download.progress.bytes_done(),
                    total: download.file.size,
                    cause,
                    attempts: MAX_ATTEMPTS,
                });
            }
            tracing::debug!("{}: {cause}; trying again", download.file.name);
            // The hub's own wait is limited, too: a faulty mirror could request days.
            sleep(wait.unwrap_or(FIRST_WAIT * 2_u32.pow(failures - 1)).min(LONGEST_WAIT)).await;
        }
    }

    /// Appends bytes of `range` to `bytes`, as many as arrive.
    async fn read(
        &self,
        download: &Download<'_>,
        range: &Range<u64>,
        bytes: &mut BytesMut,
    ) -> Result<(), Fault> {
        let missing = range.start + bytes.len() as u64..range.end;
        let mut response = self.request(download, missing.clone()).await?;
        let starts_over = response.status() != StatusCode::PARTIAL_CONTENT;
        if starts_over && missing.start > 0 {
            // The server has ignored the range and sends the whole file. That works if the range begins at 0.
            if range.start > 0 {
                let (hub, file) = (download.asked.hub.to_owned(), download.file.name.clone());
                return Err(Fault::Final(Error::NoRanges { hub, file }));
            }
            bytes.clear();
            download.progress.set_bytes(0);
        }
        let wanted = (range.end - range.start) as usize;
        while bytes.len() < wanted {
            // The limit is for each chunk. A limit for the whole segment would fail on a slow line.
            let chunk = match timeout(self.silence, response.chunk()).await {
                Err(_) => return Err(self.silent()),
                Ok(Err(error)) => return Err(Fault::passing(root_cause(&error))),
                Ok(Ok(None)) => return Err(Fault::passing("it ended early".to_owned())),
                Ok(Ok(Some(chunk))) => chunk,
            };
            // A server that ignores the range sends the rest of the file, too.
            let used = chunk.len().min(wanted - bytes.len());
            bytes.extend_from_slice(&chunk[..used]);
            download.progress.add_bytes(used as u64);
        }
        Ok(())
    }

    /// A successful answer to the request for a part of a file.
    async fn request(&self, download: &Download<'_>, range: Range<u64>) -> Result<Response, Fault> {
        let mut location = download.location.lock().await;
        if let Some(url) = location.clone() {
            drop(location);
            // The lock is released before, so that the segments run side by side.
            let (response, _) = self.follow(download, url, range).await?;
            if response.status().is_client_error() {
                // Redirect targets are signed for a limited time only.
                *download.location.lock().await = None;
                return Err(Fault::passing("its address has expired".to_owned()));
            }
            return download.check(response);
        }
        // The lock makes the other segments wait, so that only one request to the hub fetches the target.
        let hub = Url::parse(&download.url)
            .map_err(|error| Fault::Final(Error::Client(format!("{}: {error}", download.url))))?;
        let (response, url) = self.follow(download, hub.clone(), range).await?;
        let response = download.check(response)?;
        if url.origin() != hub.origin() {
            *location = Some(url);
        }
        Ok(response)
    }

    /// Follows redirects. Returns the last answer and its URL.
    async fn follow(
        &self,
        download: &Download<'_>,
        mut url: Url,
        range: Range<u64>,
    ) -> Result<(Response, Url), Fault> {
        for _ in 0..MAX_REDIRECTS {
            let is_hub = download.is_at_hub(&url);
            let client = if is_hub { &self.hub } else { &self.elsewhere };
            let mut request = client.get(url.clone());
            // A whole file needs no range. So small files also come from a server without range requests.
            if range != (0..download.file.size) {
                request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
            }
            let response = match timeout(self.silence, request.send()).await {
                Err(_) => return Err(self.silent()),
                Ok(Err(error)) => return Err(Fault::passing(root_cause(&error))),
                Ok(Ok(response)) => response,
            };
            match redirection(&response) {
                Some(next) => url = next,
                None => return Ok((response, url)),
            }
        }
        Err(Fault::passing("too many redirects".to_owned()))
    }

    fn silent(&self) -> Fault {
        Fault::passing(format!("nothing came for {} s", self.silence.as_secs()))
    }
}

impl Fault {
    fn passing(cause: String) -> Self {
        Self::Passing { cause, wait: None }
    }
}

impl Download<'_> {
    /// Whether a URL is the hub's own. The token must not reach any other host.
    fn is_at_hub(&self, url: &Url) -> bool {
        Url::parse(&self.url).is_ok_and(|hub| hub.origin() == url.origin())
    }

    /// The answer, if it is a success.
    fn check(&self, response: Response) -> Result<Response, Fault> {
        let (status, headers) = (response.status(), response.headers());
        if status.is_success() {
            return Ok(response);
        }
        if !is_passing(status) {
            return Err(Fault::Final(self.asked.refusal(status, headers, &self.file.name)));
        }
        let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Err(Fault::Passing {
            cause: format!("the hub answers {}", status.as_u16()),
            wait: seconds.map(Duration::from_secs),
        })
    }
}

/// The target of a redirect.
fn redirection(response: &Response) -> Option<Url> {
    if !response.status().is_redirection() {
        return None;
    }
    response.url().join(response.headers().get(LOCATION)?.to_str().ok()?).ok()
}

/// Splits a range into segments.
fn segments(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(SEGMENT_BYTES as usize).map(move |at| at..(at + SEGMENT_BYTES).min(end))
}

/// A part of a file in memory, with its permit.
struct Segment {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

/// A file on the disk that is not complete.
struct Partial {
    path: PathBuf,
    file: File,
    len: u64,
    hasher: Hasher,
    digest: Digest,
}

impl Partial {
    /// Opens the remains of an earlier download, or an empty file.
    async fn open(path: &Path, remote: &RemoteFile) -> Result<Self> {
        let (path, size, digest) = (path.to_owned(), remote.size, remote.digest.clone());
        blocking(move || {
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&path)
                .map_err(at(&path))?;
            let mut len = file.metadata().map_err(at(&path))?.len();
            let mut hasher = digest.hasher(size);
            if len > size || size <= SEGMENT_BYTES {
                // The remains belong to another file, or are too short to be worth a resume.
                file.set_len(0).map_err(at(&path))?;
                len = 0;
            }
            // The digest covers the whole file, so the remains are read again. The position is then at the end, where
            // `append` writes.
            let mut rest = (&mut file).take(len);
            let mut buffer = vec![0; 1 << 20];
            loop {
                match rest.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => hasher.update(&buffer[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(at(&path)(error)),
                }
            }
            Ok(Self { path, file, len, hasher, digest })
        })
        .await
    }

    async fn append(mut self, segment: Segment) -> Result<Self> {
        blocking(move || {
            self.file.write_all(&segment.bytes).map_err(at(&self.path))?;
            self.hasher.update(&segment.bytes);
            self.len += segment.bytes.len() as u64;
            Ok(self)
        })
        .await
    }

    /// Verifies the digest, and removes a file that fails.
    async fn verify(self) -> Result<bool> {
        blocking(move || {
            if self.hasher.matches(&self.digest) {
                // The bytes are flushed before the file gets its name. So a crash cannot leave a complete name with
                // missing bytes.
                self.file.sync_all().map_err(at(&self.path))?;
                return Ok(true);
            }
            // A resume from damaged remains would fail again.
            std::fs::remove_file(&self.path).map_err(at(&self.path))?;
            Ok(false)
        })
        .await
    }
}

/// Runs blocking work on a thread that may wait for the disk.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            // A panic in the work must not look like a failed download.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::Client(format!("the program is ending: {error}"))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_the_range() {
        assert_eq!(segments(0..0).count(), 0);
        let all: Vec<_> = segments(5..SEGMENT_BYTES * 2 + 6).collect();
        assert_eq!(
            all,
            [
                5..SEGMENT_BYTES + 5,
                SEGMENT_BYTES + 5..SEGMENT_BYTES * 2 + 5,
                SEGMENT_BYTES * 2 + 5..SEGMENT_BYTES * 2 + 6
            ]
        );
    }
}
