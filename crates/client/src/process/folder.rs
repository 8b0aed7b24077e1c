//! The folder of a deployment: what its supervisor writes and every client reads.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::identity::Identity;
use crate::error::{Error, Result};
use crate::spec::Spec;
use crate::status::{Event, Phase, State};

/// Newest events that are kept.
const MAX_EVENTS: usize = 200;

/// The folder of one deployment.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    path: PathBuf,
}

/// What a supervisor says of its deployment: `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) state: State,
    pub(crate) phase: Phase,
    pub(crate) message: String,
    pub(crate) url: String,
    /// Seconds since 1970, as all times here.
    pub(crate) created_at: f64,
    pub(crate) updated_at: f64,
    /// When the supervisor began, which is when GPUs are taken.
    pub(crate) started_at: f64,
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
    pub(crate) restarts: u32,
    pub(crate) exit_code: Option<i32>,
    pub(crate) num_gpus: u32,
    pub(crate) supervisor: Identity,
    pub(crate) server: Option<Identity>,
}

/// `$XDG_STATE_HOME/candlepower/deployments`.
///
/// # Errors
/// There is no home.
pub(crate) fn root() -> Result<PathBuf> {
    let variable =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME")
        .or_else(|| Some(variable("HOME")?.join(".local/state")))
        .ok_or_else(|| {
            Error::backend("no folder for deployments", "set XDG_STATE_HOME (or HOME)")
        })?;
    Ok(state.join("candlepower/deployments"))
}

impl Folder {
    pub(crate) fn new(root: &Path, name: &str) -> Self {
        Self { root: root.to_owned(), path: root.join(name) }
    }

    /// The names of all deployments, sorted.
    pub(crate) fn names(root: &Path) -> Vec<String> {
        let entries = fs::read_dir(root).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter(|name| crate::check::check_name(name).is_ok()).collect();
        names.sort();
        names
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    pub(crate) fn report(&self) -> PathBuf {
        self.path.join("report.json")
    }

    /// What is run here; `None` where there is no deployment, or not yet.
    pub(crate) fn spec(&self) -> Option<Spec> {
        self.read("spec.json")
    }

    /// What its supervisor says; `None` where there is none, or not yet.
    pub(crate) fn record(&self) -> Option<Record> {
        self.read("state.json")
    }

    pub(crate) fn write_spec(&self, spec: &Spec) -> io::Result<()> {
        self.write("spec.json", &serde_json::to_vec_pretty(spec)?)
    }

    pub(crate) fn write_record(&self, record: &Record) -> io::Result<()> {
        self.write("state.json", &serde_json::to_vec_pretty(record)?)
    }

    /// What has happened, the oldest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        let text = fs::read_to_string(self.path.join("events")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(crate) fn add_event(&self, event: Event) -> io::Result<()> {
        let mut events = self.events();
        events.push(event);
        let skip = events.len().saturating_sub(MAX_EVENTS);
        let lines: Result<Vec<String>, _> =
            events.iter().skip(skip).map(serde_json::to_string).collect();
        self.write("events", (lines?.join("\n") + "\n").as_bytes())
    }

    /// Takes the deployment's lock, which is held as long as the file is open; `None` if another process has it.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub(crate) fn claim(&self) -> io::Result<Option<File>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        loop {
            match DirBuilder::new().mode(0o700).create(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let lock = self.path.join("lock");
            let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&lock);
            let file = match opened {
                // Deleted since.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return Ok(None),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
            // Whoever had the lock may have deleted the file before letting go of it.
            let is_same = fs::metadata(&lock).is_ok_and(|named| {
                file.metadata()
                    .is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
            });
            if is_same {
                return Ok(Some(file));
            }
        }
    }

    /// Removes everything; whoever does holds the lock.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.path.join(name)).ok()?).ok()
    }

    /// Readers see the old text or the new, never a part.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = self.path.join(format!("{name}.new"));
        let mut file =
            OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        fs::rename(new, self.path.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_has_a_folder() {
        let root = std::env::temp_dir().join(format!("candlepower-folder-{}", std::process::id()));
        let folder = Folder::new(&root, "a");
        let first = folder.claim().unwrap().unwrap();
        assert!(folder.claim().unwrap().is_none());
        folder.remove().unwrap();
        // The lock of a folder that is gone locks nobody out.
        let second = folder.claim().unwrap().unwrap();
        drop((first, second));
        assert!(folder.claim().unwrap().is_some());
        assert_eq!(Folder::names(&root), ["a"]);
        fs::remove_dir_all(root).unwrap();
    }
}
