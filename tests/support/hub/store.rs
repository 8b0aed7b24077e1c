//! The repositories of the fake hub: commits, revisions, access, faults.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::body::Bytes;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::faults::{Fault, Spot, Times};
use super::files::Files;

/// Larger files are kept in the large file storage; weights always are.
const LFS_THRESHOLD: usize = 1 << 20;

/// The users who may read a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Public,
    /// Everybody may list its files, but only members may download them.
    Gated,
    /// For non-members it does not exist.
    Private,
}

/// One repository.
#[derive(Debug)]
pub(super) struct Repository {
    pub(super) access: Access,
    commits: BTreeMap<String, Snapshot>,
    /// Branches and tags.
    refs: BTreeMap<String, String>,
    faults: Vec<(Spot, Fault, Times)>,
}

/// The files of one commit, by path.
pub(super) type Snapshot = BTreeMap<String, StoredFile>;

impl Repository {
    pub(super) fn new() -> Self {
        Self {
            access: Access::Public,
            commits: BTreeMap::new(),
            refs: BTreeMap::new(),
            faults: Vec::new(),
        }
    }

    pub(super) fn claim_size(&mut self, path: &str, size: u64) {
        let commit = &self.refs["main"];
        let files = self.commits.get_mut(commit).expect("a branch is a commit");
        files.get_mut(path).unwrap().size = size;
    }

    /// Adds a commit with these files and moves the branch to it.
    pub(super) fn commit(&mut self, branch: &str, files: &Files) -> String {
        let files: Snapshot = files
            .0
            .iter()
            .map(|(path, bytes)| (path.clone(), StoredFile::new(path, bytes)))
            .collect();
        // The parent is part of the contents, so equal files in a new commit have another id.
        let mut contents = format!("{branch} {:?}\n", self.refs.get(branch));
        for (path, file) in &files {
            writeln!(contents, "{path} {}", file.blob_id).expect("a string grows");
        }
        let commit = git_id("commit", contents.as_bytes());
        self.commits.insert(commit.clone(), files);
        self.point(branch, &commit);
        commit
    }

    /// Points a branch or a tag to this commit.
    pub(super) fn point(&mut self, name: &str, commit: &str) {
        assert!(self.commits.contains_key(commit), "{commit} is no commit");
        self.refs.insert(name.into(), commit.into());
    }

    /// Commit and files of a branch, a tag or a full commit id.
    pub(super) fn revision(&self, name: &str) -> Option<(&str, &Snapshot)> {
        let commit = self.refs.get(name).map_or(name, String::as_str);
        self.commits.get_key_value(commit).map(|(commit, files)| (commit.as_str(), files))
    }

    /// Contents in the large file storage.
    pub(super) fn lfs_object(&self, sha256: &str) -> Option<Bytes> {
        let mut files = self.commits.values().flat_map(Snapshot::values);
        let found = files.find(|file| file.lfs.as_ref().is_some_and(|lfs| lfs.sha256 == sha256));
        found.map(|file| file.bytes.clone())
    }

    pub(super) fn inject(&mut self, spot: Spot, fault: Fault, times: Times) {
        self.faults.push((spot, fault, times));
    }

    pub(super) fn heal(&mut self) {
        self.faults.clear();
    }

    /// The fault for an answer at this spot, if any.
    pub(super) fn take_fault(&mut self, spot: &Spot) -> Option<Fault> {
        let at = self.faults.iter().position(|(known, ..)| known == spot)?;
        let (_, fault, times) = &mut self.faults[at];
        let fault = *fault;
        match times {
            Times::Always => {}
            Times::Next(count) if *count > 1 => *count -= 1,
            Times::Next(_) => {
                self.faults.remove(at);
            }
        }
        Some(fault)
    }
}

/// A file in a commit.
#[derive(Debug)]
pub(super) struct StoredFile {
    pub(super) bytes: Bytes,
    /// The size that the hub reports.
    pub(super) size: u64,
    /// The git id of the object in git: the contents, or the pointer to them.
    pub(super) blob_id: String,
    pub(super) lfs: Option<Lfs>,
}

/// The location of a file's contents in the large file storage.
#[derive(Debug)]
pub(super) struct Lfs {
    pub(super) sha256: String,
    pub(super) pointer_size: usize,
}

impl StoredFile {
    fn new(path: &str, bytes: &[u8]) -> Self {
        let contents = Bytes::copy_from_slice(bytes);
        // The hub keeps weights of any size in the large file storage.
        let weights = [".safetensors", ".gguf"].iter().any(|end| path.ends_with(end));
        if bytes.len() <= LFS_THRESHOLD && !weights {
            return Self {
                bytes: contents,
                size: bytes.len() as u64,
                blob_id: git_id("blob", bytes),
                lfs: None,
            };
        }
        let sha256 = hex(&Sha256::digest(bytes));
        let size = bytes.len();
        let pointer = format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
        );
        let lfs = Lfs { sha256, pointer_size: pointer.len() };
        Self {
            bytes: contents,
            size: size as u64,
            blob_id: git_id("blob", pointer.as_bytes()),
            lfs: Some(lfs),
        }
    }

    /// The ETag that the hub sends: the file's name in a client's cache.
    pub(super) fn etag(&self) -> &str {
        self.lfs.as_ref().map_or(&self.blob_id, |lfs| &lfs.sha256)
    }
}

/// The id that git computes for an object.
pub(super) fn git_id(kind: &str, contents: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("{kind} {}\0", contents.len()));
    hash.update(contents);
    hex(&hash.finalize())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string grows");
        text
    })
}
