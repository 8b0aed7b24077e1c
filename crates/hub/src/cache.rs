//! A model's part of the cache that the hub's own tools use.
//!
//! `models--OWNER--NAME/` has three folders: `blobs/DIGEST` (the bytes), `snapshots/COMMIT/NAME` (links to blobs) and
//! `refs/REVISION` (a commit id). A blob gets its name only after it is complete and verified. Until then it is
//! `DIGEST.incomplete`, which is written by the holder of the lock `.locks/models--OWNER--NAME/DIGEST.lock`. Other
//! tools take that lock, too.
//!
//! Source: "Understand caching" in huggingface_hub's documentation, and its file_download.py.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use crate::digest::Digest;
use crate::in_use::lock_path;
use crate::listing::RemoteFile;
use crate::{Error, ModelId, Result};

/// One model's part of the cache.
#[derive(Debug)]
pub(crate) struct ModelCache {
    /// The cache of all models.
    root: PathBuf,
    folder_name: String,
    repo: CacheRepo,
}

/// Held while a blob is being downloaded.
#[derive(Debug)]
pub(crate) struct BlobLock {
    _file: File,
}

impl ModelCache {
    pub(crate) fn new(root: &Path, id: &ModelId) -> Self {
        let repo = Repo::new(id.as_str().to_owned(), RepoType::Model);
        Self {
            root: root.to_owned(),
            folder_name: repo.folder_name(),
            repo: Cache::new(root.to_owned()).repo(repo),
        }
    }

    /// The cache of all models.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder with the files of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.repo.pointer_path(commit)
    }

    /// The file whose lock says that a commit is in use.
    pub(crate) fn use_lock(&self, commit: &str) -> PathBuf {
        lock_path(&self.root, &self.folder_name, commit)
    }

    /// The last known commit of a revision.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.ref_path(revision)).ok()?.trim().to_owned();
        is_commit(&commit).then_some(commit)
    }

    /// Records the commit of a revision.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.ref_path(revision);
        // Other tools read the reference at any time. The rename gives them the old or the new id, never half of one.
        let unfinished = unfinished(path.as_os_str().to_owned());
        create_parent(&path)?;
        fs::write(&unfinished, commit).map_err(at(&unfinished))?;
        fs::rename(&unfinished, &path).map_err(at(&path))
    }

    /// Whether a file of a commit is there in full length, linked or copied.
    pub(crate) fn has(&self, commit: &str, file: &RemoteFile) -> bool {
        has_length(&self.snapshot(commit).join(&file.name), file.size)
    }

    /// Whether the blob exists, perhaps from another commit.
    pub(crate) fn has_blob(&self, file: &RemoteFile) -> bool {
        has_length(&self.blob(&file.digest), file.size)
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.repo.blob_path(digest.as_str())
    }

    /// The path of a download that is not complete.
    pub(crate) fn incomplete(&self, digest: &Digest) -> PathBuf {
        let mut path = self.blob(digest).into_os_string();
        path.push(".incomplete");
        path.into()
    }

    /// Bytes of a file that an earlier download has left.
    pub(crate) fn incomplete_bytes(&self, file: &RemoteFile) -> u64 {
        let len = fs::metadata(self.incomplete(&file.digest)).map_or(0, |found| found.len());
        len.min(file.size)
    }

    /// Takes the lock for a blob's download; `None` while another process holds it.
    pub(crate) fn try_lock(&self, digest: &Digest) -> Result<Option<BlobLock>> {
        let name = format!("{}.lock", digest.as_str());
        let path = self.root.join(".locks").join(&self.folder_name).join(name);
        create_parent(&path)?;
        // The holder of the lock writes the download beside the blob, in a folder that a new cache lacks.
        create_parent(&self.blob(digest))?;
        let file = OpenOptions::new()
            .create(true)
            // The lock file belongs to huggingface_hub, too, so its bytes stay.
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(BlobLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            // The file system has no locks. Two downloads at once are harmless, since the digest is verified.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Ok(Some(BlobLock { _file: file }))
            }
            Err(TryLockError::Error(error)) => Err(at(&path)(error)),
        }
    }

    /// Gives a verified blob its final name.
    pub(crate) fn complete(&self, digest: &Digest) -> Result<()> {
        let (from, to) = (self.incomplete(digest), self.blob(digest));
        fs::rename(from, &to).map_err(at(&to))
    }

    /// Makes a blob a file of a commit.
    pub(crate) fn link(&self, commit: &str, file: &RemoteFile) -> Result<()> {
        let path = self.snapshot(commit).join(&file.name);
        create_parent(&path)?;
        let mut target = PathBuf::new();
        // Number of folders between the link and the model's folder: snapshots, the commit, and the folders in the
        // file's name.
        target.extend(
            (0..Path::new(&file.name).components().count() + 1).map(|_| Component::ParentDir),
        );
        target.push("blobs");
        target.push(file.digest.as_str());
        // Another process may create the same link now. A rename replaces it, so that readers always find one of the
        // two.
        let name = file.name.replace('/', "-");
        // The file is hidden since it lies in the model's own folder.
        let unfinished = unfinished(self.snapshot(commit).join(format!(".{name}")).into());
        // A killed process with the same id may have left the name, and `symlink` replaces nothing.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(at(&unfinished)(error));
            }
            _ => {}
        }
        std::os::unix::fs::symlink(&target, &unfinished).map_err(at(&unfinished))?;
        fs::rename(&unfinished, &path).map_err(at(&path))
    }

    /// Free bytes of the cache's file system; `None` if they are not known.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        // The cache itself may not exist before the first download.
        let existing = self.root.ancestors().find(|folder| folder.exists())?;
        let found = rustix::fs::statvfs(existing).ok()?;
        // `f_bfree` would count blocks that are reserved for root.
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn ref_path(&self, revision: &str) -> PathBuf {
        self.root.join(&self.folder_name).join("refs").join(revision)
    }
}

/// A temporary name beside a path. Neither another process nor another thread has the same.
fn unfinished(mut path: OsString) -> PathBuf {
    static NUM_NAMES: AtomicU64 = AtomicU64::new(0);
    let number = NUM_NAMES.fetch_add(1, Ordering::Relaxed);
    path.push(format!(".{}.{number}.tmp", std::process::id()));
    path.into()
}

/// Whether a revision is a full commit id.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Checks that a revision can be part of a path.
pub(crate) fn check_revision(revision: &str) -> Result<()> {
    let is_name = |part| matches!(part, Component::Normal(_));
    if revision.is_empty() || !Path::new(revision).components().all(is_name) {
        return Err(Error::BadRevision(revision.to_owned()));
    }
    Ok(())
}

/// Adds the path to an error of the system.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Cache { path, source }
}

fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().expect("every path in the cache is below its root");
    fs::create_dir_all(parent).map_err(at(parent))
}

fn has_length(path: &Path, len: u64) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_stay_in_the_cache() {
        for revision in ["main", "v1.0", "refs/pr/3", "0123456789012345678901234567890123456789"] {
            check_revision(revision).unwrap();
        }
        // A revision comes from the user and becomes a file below `refs`.
        for revision in ["", "/etc", "../x", "a/../b"] {
            assert!(matches!(check_revision(revision), Err(Error::BadRevision(_))), "{revision}");
        }
    }

    #[test]
    fn similar_names_do_not_meet_before_they_are_complete() {
        let root = std::env::temp_dir().join(format!("candlepower-names-{}", std::process::id()));
        let cache = ModelCache::new(&root, &"owner/name".parse().unwrap());
        let digest = Digest::GitSha1("ce013625030ba8dba906f756967f9e9ca394464a".into());
        let at_once = |act: &(dyn Fn(usize, usize) + Sync)| {
            std::thread::scope(|scope| {
                for place in 0..2 {
                    scope.spawn(move || (0..300).for_each(|round| act(place, round)));
                }
            });
        };
        let commit = |place: usize, round: usize| format!("{place}{round:039}");
        at_once(&|place, round| {
            let revision = ["v1.0", "v1.1"][place];
            cache.set_commit(revision, &commit(place, round)).unwrap();
            assert_eq!(cache.commit(revision), Some(commit(place, round)));
        });
        at_once(&|place, _| {
            let file =
                RemoteFile { name: ["a/b", "a-b"][place].into(), size: 6, digest: digest.clone() };
            cache.link(&commit(0, 0), &file).unwrap();
        });
        let names = fs::read_dir(root.join("models--owner--name/refs")).unwrap();
        let mut names = names.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        names.sort();
        assert_eq!(names, ["v1.0", "v1.1"]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_file_in_a_folder_is_linked_to_its_blob() {
        let root = std::env::temp_dir().join(format!("candlepower-cache-{}", std::process::id()));
        let cache = ModelCache::new(&root, &"owner/name".parse().unwrap());
        let commit = "0123456789012345678901234567890123456789";
        let digest = Digest::GitSha1("ce013625030ba8dba906f756967f9e9ca394464a".into());
        let lock = cache.try_lock(&digest).unwrap();
        assert!(lock.is_some());
        fs::write(cache.incomplete(&digest), "hello\n").unwrap();
        cache.complete(&digest).unwrap();
        for name in ["config.json", "1_Pooling/config.json"] {
            let file = RemoteFile { name: name.into(), size: 6, digest: digest.clone() };
            assert!(!cache.has(commit, &file) && cache.has_blob(&file));
            cache.link(commit, &file).unwrap();
            assert!(cache.has(commit, &file));
            assert_eq!(fs::read(cache.snapshot(commit).join(name)).unwrap(), b"hello\n");
        }
        assert_eq!(cache.commit("refs/pr/1"), None);
        cache.set_commit("refs/pr/1", commit).unwrap();
        assert_eq!(cache.commit("refs/pr/1").as_deref(), Some(commit));
        assert!(cache.free_bytes().is_some_and(|free| free > 0));
        fs::remove_dir_all(root).unwrap();
    }
}
