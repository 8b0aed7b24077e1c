//! Removes models from the cache: a whole repository, one commit, or the files of one GGUF model.
//!
//! Only files of the repository's own folder are removed. A blob that another commit links to stays. A commit that a process uses is
//! not removed: its lock and the processes of this user tell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::users::users_of;
use super::{StoredCommit, StoredFile, StoredRepo};
use crate::in_use::InUse;
use crate::model::gguf::choose;
use crate::model_id::GgufName;

/// The reason that the cache cannot be read, or that something cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// The part is not in the cache.
    #[error("{0} is not downloaded; `candlepower models` lists what is")]
    NotStored(String),
    /// A process uses the files.
    #[error("{name} is in use{}: stop that first", users(by))]
    InUse {
        /// The model.
        name: String,
        /// Processes, as far as they are visible.
        by: Vec<String>,
    },
    /// A process downloads the model.
    #[error("{0} is being downloaded by another process: stop that first, or wait for its end")]
    Downloading(String),
    /// The repository's folder is a link.
    #[error("{} is a link out of the cache: remove the link, or what it leads to, by hand", .0.display())]
    Linked(PathBuf),
    /// A file or folder cannot be read or removed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn users(by: &[String]) -> String {
    if by.is_empty() { String::new() } else { format!(" by {}", by.join(", ")) }
}

/// The files that a removal deletes.
#[derive(Debug)]
pub struct Removal {
    /// The removed part, by its name.
    pub name: String,
    /// Bytes that become free.
    pub bytes: u64,
    /// Commits that lose files, each with its branches and tags.
    pub commits: Vec<(String, Vec<String>)>,
    /// Whether nothing of the repository stays.
    pub is_whole: bool,
    repo: StoredRepo,
    /// Links and copies in the folders of commits.
    entries: Vec<PathBuf>,
    /// Blobs that no other commit links to.
    blobs: BTreeSet<PathBuf>,
}

impl StoredRepo {
    /// Plans a removal: of all commits or of one revision (a branch, a tag or a commit), and of all files or those of a GGUF model.
    ///
    /// # Errors
    /// The cache does not have this part, or its folder is a link.
    pub fn removal(
        self,
        gguf: Option<&GgufName>,
        revision: Option<&str>,
    ) -> Result<Removal, StoredError> {
        if self.folder.is_symlink() {
            return Err(StoredError::Linked(self.folder));
        }
        let is_meant = |commit: &StoredCommit| match revision {
            Some(revision) => {
                commit.id == revision || commit.revisions.iter().any(|name| name == revision)
            }
            None => true,
        };
        let (mut entries, mut lost, mut kept) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let mut commits = Vec::new();
        for commit in &self.commits {
            let names: BTreeSet<String> = match gguf {
                _ if !is_meant(commit) => BTreeSet::new(),
                None => commit.files.keys().cloned().collect(),
                Some(gguf) => {
                    let names = choose(gguf, commit.files.keys().map(String::as_str));
                    names.unwrap_or_default().into_iter().collect()
                }
            };
            for (name, StoredFile { target, bytes }) in &commit.files {
                if names.contains(name) {
                    entries.push(commit.folder.join(name));
                    lost.insert(target.clone(), *bytes);
                } else {
                    kept.insert(target.clone());
                }
            }
            if is_meant(commit) && (gguf.is_none() || !names.is_empty()) {
                commits.push((commit.id.clone(), commit.revisions.clone()));
            }
        }
        let name = match gguf {
            Some(gguf) => format!("{} ({gguf})", self.id),
            None => self.id.to_string(),
        };
        let is_whole = gguf.is_none() && commits.len() == self.commits.len();
        if commits.is_empty() && !(is_whole && revision.is_none()) {
            return Err(StoredError::NotStored(name));
        }
        // A link may lead out of the cache, and its target is not ours.
        let is_own = |target: &Path| target.starts_with(&self.folder);
        lost.retain(|target, _| is_own(target) && !kept.contains(target));
        let bytes = if is_whole { self.bytes() } else { lost.values().sum() };
        Ok(Removal {
            name,
            bytes,
            commits,
            is_whole,
            repo: self,
            entries,
            blobs: lost.into_keys().collect(),
        })
    }
}

impl Removal {
    /// Removes the files.
    ///
    /// # Errors
    /// A process uses or downloads the files, or the system refuses.
    pub fn run(&self) -> Result<(), StoredError> {
        // The locks are held to the end. A server that starts meanwhile waits, and then downloads again.
        let _locks = self.lock()?;
        let folder = &self.repo.folder;
        let gone = |path: &Path, removed: io::Result<()>| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoredError::Io { path: path.to_owned(), source: error })
            }
            _ => Ok(()),
        };
        if self.is_whole {
            // References go first, so that an interrupted removal leaves no model that looks complete.
            let refs = folder.join("refs");
            gone(&refs, fs::remove_dir_all(&refs))?;
            // It does not follow links.
            return gone(folder, fs::remove_dir_all(folder));
        }
        for path in self.entries.iter().chain(&self.blobs) {
            gone(path, fs::remove_file(path))?;
        }
        for (commit, revisions) in &self.commits {
            let snapshot = folder.join("snapshots").join(commit);
            if remove_empty_folders(&snapshot) {
                for revision in revisions {
                    let path = folder.join("refs").join(revision);
                    gone(&path, fs::remove_file(&path))?;
                }
            }
        }
        Ok(())
    }

    fn lock(&self) -> Result<Vec<InUse>, StoredError> {
        let mut locks = Vec::new();
        for (commit, _) in &self.commits {
            match InUse::exclude(&self.repo.lock_path(commit)) {
                Some(lock) => locks.push(lock),
                None => return Err(self.in_use()),
            }
        }
        // Other programs that use this cache take no such lock.
        if !users_of(&self.targets()).is_empty() {
            return Err(self.in_use());
        }
        if self.is_whole {
            let folder = self.repo.root.join(".locks").join(self.repo.folder_name());
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let is_download = !entry.file_name().to_string_lossy().contains("candlepower");
                if is_download && InUse::exclude(&entry.path()).is_none() {
                    return Err(StoredError::Downloading(self.name.clone()));
                }
            }
        }
        Ok(locks)
    }

    fn in_use(&self) -> StoredError {
        let locks = self.commits.iter().map(|(commit, _)| self.repo.lock_path(commit));
        // A server on the CPU has copied the weights, and has only the lock open.
        let by = users_of(&self.targets().into_iter().chain(locks).collect());
        StoredError::InUse { name: self.name.clone(), by }
    }

    /// All files with bytes that the removed commits name, whether or not they stay.
    fn targets(&self) -> BTreeSet<PathBuf> {
        let is_meant = |commit: &&StoredCommit| self.commits.iter().any(|(id, _)| *id == commit.id);
        let commits = self.repo.commits.iter().filter(is_meant);
        let entries: BTreeSet<&PathBuf> = self.entries.iter().collect();
        commits
            .flat_map(|commit| {
                let removed = commit
                    .files
                    .iter()
                    .filter(|(name, _)| entries.contains(&commit.folder.join(name)));
                removed.map(|(_, file)| file.target.clone()).collect::<Vec<_>>()
            })
            .collect()
    }
}

/// Removes a folder if nothing but empty folders is in it. Returns whether it is gone.
fn remove_empty_folders(folder: &Path) -> bool {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty_folders(&entry.path());
        }
    }
    // A folder with files stays.
    fs::remove_dir(folder).is_ok()
}
