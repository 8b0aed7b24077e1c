//! The folder of a deployment, written by its supervisor and read by every client.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use candlepower_api::clip;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::control::SOCKET;
use super::identity::Identity;
use super::log::{NUM_FILES, file_name};
use crate::error::{Error, Result};
use crate::spec::Spec;
use crate::status::{Event, Framework, Phase, State};

/// The files with the spec, the record and the events.
const SPEC: &str = "spec.json";
const RECORD: &str = "state.json";
const EVENTS: &str = "events";
const REPORT: &str = "report.json";
const NEXT_REPORT: &str = "report.next.json";
const LOCK: &str = "lock";
/// Number of events that are kept, the newest ones.
const MAX_EVENTS: usize = 200;

/// The folder of one deployment.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    path: PathBuf,
}

/// The supervisor's record of its deployment: `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) state: State,
    pub(crate) phase: Phase,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) url: String,
    /// Seconds since 1970, as all times here.
    pub(crate) created_at: f64,
    #[serde(default)]
    pub(crate) updated_at: f64,
    /// Start time of the supervisor, from which GPU seconds count.
    #[serde(default)]
    pub(crate) started_at: f64,
    /// Time at which the supervisor last wrote the record.
    #[serde(default)]
    pub(crate) written_at: f64,
    #[serde(default)]
    pub(crate) bytes_done: u64,
    #[serde(default)]
    pub(crate) bytes_total: u64,
    #[serde(default)]
    pub(crate) restarts: u32,
    pub(crate) exit_code: Option<i32>,
    #[serde(default)]
    pub(crate) num_gpus: u32,
    /// UUIDs of the GPUs.
    #[serde(default)]
    pub(crate) gpus: Vec<String>,
    /// GPU seconds before the last update.
    #[serde(default)]
    pub(crate) gpu_seconds_before: f64,
    pub(crate) supervisor: Identity,
    pub(crate) server: Option<Identity>,
}

/// `$XDG_STATE_HOME/candlepower/deployments`.
///
/// # Errors
/// The user has no home folder.
pub(crate) fn root() -> Result<PathBuf> {
    let variable =
        // The XDG specification says that relative paths are to be ignored.
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

    /// The names of all deployments, sorted; empty if the folder does not exist.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn names(root: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: Vec<Option<String>> = names.collect::<io::Result<_>>()?;
        let names = names.into_iter().flatten();
        let mut names: Vec<String> = names.filter(|name| crate::check::is_label(name)).collect();
        names.sort();
        Ok(names)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    pub(crate) fn report(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    /// The report file of the server that takes over, or of the one that has.
    pub(crate) fn next_report(&self) -> PathBuf {
        self.path.join(NEXT_REPORT)
    }

    /// The spec; `None` if there is no deployment, or none yet.
    ///
    /// # Errors
    /// The file cannot be read, or this version does not understand it.
    pub(crate) fn spec(&self) -> io::Result<Option<Spec>> {
        self.read(SPEC)
    }

    /// The supervisor's record; `None` if there is none, or none yet.
    ///
    /// # Errors
    /// The file cannot be read, or this version does not understand it.
    pub(crate) fn record(&self) -> io::Result<Option<Record>> {
        self.read(RECORD)
    }

    /// Framework and model of a spec that this version does not understand as a whole.
    pub(crate) fn outline(&self) -> (Framework, String) {
        let found = self.read::<serde_json::Value>(SPEC).ok().flatten().unwrap_or_default();
        let framework = serde_json::from_value(found["framework"].clone());
        let model = found["model"].as_str().unwrap_or_default().to_owned();
        (framework.unwrap_or(Framework::Blaze), model)
    }

    pub(crate) fn write_spec(&self, spec: &Spec) -> io::Result<()> {
        self.write(SPEC, &serde_json::to_vec_pretty(spec)?)
    }

    pub(crate) fn write_record(&self, record: &Record) -> io::Result<()> {
        self.write(RECORD, &serde_json::to_vec_pretty(record)?)
    }

    /// The events, oldest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        let text = fs::read_to_string(self.path.join(EVENTS)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(crate) fn add_event(&self, event: Event) -> io::Result<()> {
        let mut events = self.events();
        events.push(event);
        let skip = events.len().saturating_sub(MAX_EVENTS);
        let lines: Result<Vec<String>, _> =
            events.iter().skip(skip).map(serde_json::to_string).collect();
        // The file is small and written whole, so that readers never see half a line.
        self.write(EVENTS, (lines?.join("\n") + "\n").as_bytes())
    }

    /// Takes the deployment's lock, which is held while the file is open; `None` if another process holds it.
    ///
    /// # Errors
    /// The folder cannot be created or read.
    pub(crate) fn claim(&self) -> io::Result<Option<File>> {
        // Specs and logs may be private.
        let root = DirBuilder::new().recursive(true).mode(0o700).create(&self.root);
        root.map_err(|error| self.not_writable(&error))?;
        loop {
            match DirBuilder::new().mode(0o700).create(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(self.not_writable(&error));
                }
                _ => {}
            }
            let lock = self.path.join(LOCK);
            let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&lock);
            let file = match opened {
                // It was deleted in between.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return Ok(None),
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
            // The previous holder may have deleted the file before it released the lock. A lock on a deleted file
            // excludes no process.
            let is_same = fs::metadata(&lock).is_ok_and(|named| {
                file.metadata()
                    .is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
            });
            if is_same {
                return Ok(Some(file));
            }
        }
    }

    /// The error of the system, with the folder and the way out.
    fn not_writable(&self, error: &io::Error) -> io::Error {
        let root = self.root.display();
        let said =
            format!("{root} cannot be written: {error}; set XDG_STATE_HOME to another folder");
        io::Error::new(error.kind(), said)
    }

    /// Removes everything; the caller must hold the lock. The spec goes first, so that no reader takes the rest for a
    /// damaged deployment.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let _ = fs::remove_file(self.path.join(SPEC));
        if fs::symlink_metadata(&self.path).is_ok_and(|folder| folder.is_symlink()) {
            self.remove_linked()?;
        }
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Removes the deployment's files from the target of a symbolic link of the user's, and the target if it is empty
    /// then.
    fn remove_linked(&self) -> io::Result<()> {
        // Users may link the folder to a larger disk. `remove_dir_all` would remove the link alone, and leave logs
        // and state.
        let log = self.log();
        let logs = (0..NUM_FILES).map(|age| file_name(&log, age));
        let others =
            [RECORD, EVENTS, REPORT, NEXT_REPORT, LOCK, SOCKET].map(|name| self.path.join(name));
        for path in others.into_iter().chain(logs) {
            for path in [new_name(&path), path] {
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        // Other files of the user may be there. They stay, and so does the folder.
        let _ = fs::canonicalize(&self.path).and_then(fs::remove_dir);
        Ok(())
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let wrong = |error| io::Error::other(format!("{name}: {error}"));
        match fs::read(self.path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(wrong(error)),
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                // The error quotes the text it has found, which may be long and have line breaks.
                let reason = error.to_string().replace(char::is_control, " ");
                wrong(io::Error::other(clip(&reason)))
            }),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        replace(&self.path.join(name), bytes)
    }
}

/// Writes a file that only its owner can read. Readers see the old text or the new one, never a part.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = new_name(path);
    let mut file =
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    fs::rename(new, path)
}

/// The name under which a file is written before it replaces the old one.
fn new_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
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
        // A lock on the deleted folder excludes no process.
        let second = folder.claim().unwrap().unwrap();
        drop((first, second));
        assert!(folder.claim().unwrap().is_some());
        assert_eq!(Folder::names(&root).unwrap(), ["a"]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        // Nobody can make a folder below a file, whatever the user's rights.
        let root = std::env::temp_dir().join(format!("candlepower-file-{}", std::process::id()));
        fs::write(&root, "").unwrap();
        let error = Folder::new(&root.join("deployments"), "a").claim().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} cannot", root.join("deployments").display())));
        assert!(error.ends_with("; set XDG_STATE_HOME to another folder"), "{error}");
        fs::remove_file(root).unwrap();
    }

    #[test]
    fn of_a_linked_folder_the_deployments_files_are_removed_and_no_others() {
        let root = std::env::temp_dir().join(format!("candlepower-link-{}", std::process::id()));
        let [links, target] = ["links", "target"].map(|name| root.join(name));
        fs::create_dir_all(&links).unwrap();
        fs::create_dir(&target).unwrap();
        std::os::unix::fs::symlink(&target, links.join("a")).unwrap();
        let folder = Folder::new(&links, "a");
        let fill = || {
            let lock = folder.claim().unwrap().unwrap();
            for name in [SPEC, RECORD, EVENTS, REPORT, "events.new", "log", "log.4", SOCKET] {
                fs::write(target.join(name), "").unwrap();
            }
            lock
        };
        let lock = fill();
        fs::write(target.join("thesis"), "").unwrap();
        folder.remove().unwrap();
        assert_eq!(Folder::names(&links).unwrap(), [""; 0]);
        let left: Vec<_> = fs::read_dir(&target).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["thesis"]);
        drop(lock);

        fs::remove_file(target.join("thesis")).unwrap();
        std::os::unix::fs::symlink(&target, links.join("a")).unwrap();
        let _lock = fill();
        folder.remove().unwrap();
        assert!(!target.exists() && !links.join("a").is_symlink());
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn files_are_for_their_owner_alone() {
        let path = std::env::temp_dir().join(format!("candlepower-mode-{}", std::process::id()));
        replace(&path, b"{}").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_missing_is_not_what_cannot_be_read() {
        let root = std::env::temp_dir().join(format!("candlepower-damage-{}", std::process::id()));
        assert_eq!(Folder::names(&root).unwrap(), [""; 0]);
        let folder = Folder::new(&root, "a");
        assert!(folder.record().unwrap().is_none());
        let _lock = folder.claim().unwrap().unwrap();
        for text in ["", "{}", "[", r#"{"state": "Dreaming"}"#] {
            fs::write(folder.path().join(RECORD), text).unwrap();
            let error = folder.record().unwrap_err().to_string();
            assert!(error.starts_with("state.json: "), "{error}");
        }
        // Another version may lack a field, or have more.
        let supervisor = serde_json::to_value(Identity::of(std::process::id())).unwrap();
        let least = serde_json::json!({
            "state": "Running", "phase": "ready", "created_at": 1.5, "supervisor": supervisor,
        });
        fs::write(folder.path().join(RECORD), least.to_string()).unwrap();
        assert_eq!(folder.record().unwrap().unwrap().created_at, 1.5);
        fs::write(folder.path().join(SPEC), r#"{"framework": "prism", "model": "demo"}"#).unwrap();
        assert!(folder.spec().is_err());
        assert_eq!(folder.outline(), (Framework::Prism, "demo".into()));
        fs::remove_dir_all(&root).unwrap();
        fs::write(&root, "").unwrap();
        assert!(Folder::names(&root).is_err());
        fs::remove_file(root).unwrap();
    }
}
