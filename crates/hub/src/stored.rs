//! The models in the cache: their commits, files and sizes.

mod removal;
mod users;
mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

pub use removal::{Removal, StoredError};
pub use variants::StoredModel;

use crate::cache::is_commit;
use crate::in_use::{last_use, lock_path};
use crate::model_id::ModelId;

/// Depth of folders that are searched in a commit and among references.
const MAX_DEPTH: usize = 8;

/// A repository in the cache.
#[derive(Clone, Debug)]
pub struct StoredRepo {
    /// Its id on the hub.
    pub id: ModelId,
    /// Commits, in the order of their ids.
    pub commits: Vec<StoredCommit>,
    root: PathBuf,
    folder: PathBuf,
}

/// A commit of a repository in the cache.
#[derive(Clone, Debug)]
pub struct StoredCommit {
    /// The full id.
    pub id: String,
    /// Branches and tags that are at this commit.
    pub revisions: Vec<String>,
    /// The folder with the files.
    pub folder: PathBuf,
    /// Time of the last use by candlepower, in seconds since 1970.
    pub last_used: Option<u64>,
    files: BTreeMap<String, StoredFile>,
}

/// A file of a commit: a link to a blob, or a copy.
#[derive(Clone, Debug)]
struct StoredFile {
    /// The file with the bytes.
    target: PathBuf,
    bytes: u64,
}

/// The repositories of models in a cache, in the order of their ids. A cache that does not exist has none.
///
/// # Errors
/// The folder cannot be read.
pub fn stored(cache: &Path) -> Result<Vec<StoredRepo>, StoredError> {
    let failed = |source| StoredError::Io { path: cache.to_owned(), source };
    let entries = match fs::read_dir(cache) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    // The cache itself may be a link to a larger disk.
    let root = cache.canonicalize().map_err(failed)?;
    let mut repos = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        // Neither the owner nor the name of a repository has two hyphens in a row.
        let id = name.to_str().and_then(|name| name.strip_prefix("models--"));
        let Some(Ok(id)) = id.map(|id| id.replacen("--", "/", 1).parse::<ModelId>()) else {
            continue;
        };
        repos.push(StoredRepo::read(id, &root, root.join(&name)));
    }
    repos.sort_by(|a, b| a.id.as_str().cmp(b.id.as_str()));
    Ok(repos)
}

impl StoredRepo {
    fn read(id: ModelId, root: &Path, folder: PathBuf) -> Self {
        let revisions = revisions(&folder);
        let snapshots = fs::read_dir(folder.join("snapshots")).into_iter().flatten().flatten();
        let folder_name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut commits: Vec<StoredCommit> = snapshots
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
            .filter(|(commit, path)| is_commit(commit) && path.is_dir())
            .map(|(commit, path)| StoredCommit {
                revisions: revisions.get(&commit).cloned().unwrap_or_default(),
                last_used: last_use(&lock_path(root, &folder_name, &commit)),
                files: files(&path),
                folder: path,
                id: commit,
            })
            .collect();
        commits.sort_by(|a, b| a.id.cmp(&b.id));
        Self { id, commits, root: root.to_owned(), folder }
    }

    /// Bytes on the disk. Files that several commits share count once, and downloads that are not complete count too.
    pub fn bytes(&self) -> u64 {
        let blobs = fs::read_dir(self.folder.join("blobs")).into_iter().flatten().flatten();
        let mut targets: BTreeMap<PathBuf, u64> =
            blobs.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len()))).collect();
        targets.extend(self.commits.iter().flat_map(StoredCommit::targets));
        targets.values().sum()
    }

    fn folder_name(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn lock_path(&self, commit: &str) -> PathBuf {
        lock_path(&self.root, &self.folder_name(), commit)
    }
}

impl StoredCommit {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.targets().collect::<BTreeMap<_, _>>().values().sum()
    }

    fn targets(&self) -> impl Iterator<Item = (PathBuf, u64)> {
        self.files.values().map(|file| (file.target.clone(), file.bytes))
    }
}

/// The branches and tags of each commit.
fn revisions(folder: &Path) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let refs = folder.join("refs");
    for path in paths_below(&refs, MAX_DEPTH) {
        let name = path.strip_prefix(&refs).ok().map(|name| name.to_string_lossy().into_owned());
        let commit = fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
        if let Some(name) = name.filter(|name| !name.ends_with(".tmp")) {
            found.entry(commit).or_default().push(name);
        }
    }
    for names in found.values_mut() {
        names.sort();
    }
    found
}

/// The files of a commit by their names. Links without a target are left out.
fn files(folder: &Path) -> BTreeMap<String, StoredFile> {
    let file = |path: PathBuf| {
        let name = path.strip_prefix(folder).ok()?.to_str()?.to_owned();
        let (target, bytes) = (path.canonicalize().ok()?, fs::metadata(&path).ok()?.len());
        Some((name, StoredFile { target, bytes }))
    };
    paths_below(folder, MAX_DEPTH).into_iter().filter_map(file).collect()
}

/// Files and links below a folder. Links to folders are not followed.
fn paths_below(folder: &Path, depth: usize) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => {
                found.extend(paths_below(&entry.path(), depth - 1));
            }
            Ok(kind) if !kind.is_dir() => {
                found.insert(entry.path());
            }
            _ => {}
        }
    }
    found
}
