//! Marks of commits in the cache that are in use, so that nobody removes their files meanwhile.
//!
//! `.locks/models--OWNER--NAME/COMMIT.candlepower.lock` is locked as shared by each process that uses the commit, and as exclusive by
//! one that removes it. Its text is the time of the last use, in seconds since 1970. The hub's own tools leave the file alone.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::sleep;

/// Interval of the checks whether a removal has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Most bytes of a time.
const MAX_TIME: u64 = 32;

/// A shared or exclusive lock on a commit in the cache, held until it is dropped.
///
/// It has no file if the cache cannot be written: then this user cannot remove anything from it either.
#[derive(Debug)]
pub struct InUse {
    file: Option<File>,
}

/// The file with the lock of a commit. `folder_name` is the name of the model's folder in the cache.
pub(crate) fn lock_path(root: &Path, folder_name: &str, commit: &str) -> PathBuf {
    root.join(".locks").join(folder_name).join(format!("{commit}.candlepower.lock"))
}

impl InUse {
    /// Marks a commit as in use. Waits while another process removes it.
    pub(crate) async fn mark(lock: &Path) -> Self {
        let Some(file) = open(lock) else { return Self { file: None } };
        let mut is_logged = false;
        loop {
            match file.try_lock_shared() {
                Err(TryLockError::WouldBlock) => {
                    if !is_logged {
                        tracing::info!("waiting for another process that removes this model");
                    }
                    is_logged = true;
                    sleep(LOOK_AGAIN).await;
                }
                // A file system without locks has no way to mark.
                Ok(()) | Err(TryLockError::Error(_)) => return Self { file: Some(file) },
            }
        }
    }

    /// Locks a commit for its removal; `None` if it is in use.
    pub(crate) fn exclude(lock: &Path) -> Option<Self> {
        let Some(file) = open(lock) else { return Some(Self { file: None }) };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Ok(()) | Err(TryLockError::Error(_)) => Some(Self { file: Some(file) }),
        }
    }

    /// Records the present time as that of the last use.
    pub fn record_time(&self) {
        let Some(mut file) = self.file.as_ref() else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        // The time is only shown to users, so a full disk must not keep a model from being served.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(now.to_string().as_bytes()));
    }
}

fn open(lock: &Path) -> Option<File> {
    std::fs::create_dir_all(lock.parent()?).ok()?;
    OpenOptions::new().create(true).truncate(false).read(true).write(true).open(lock).ok()
}

/// The time of the last use in a lock's file, in seconds since 1970.
pub(crate) fn last_use(lock: &Path) -> Option<u64> {
    let mut text = String::new();
    File::open(lock).ok()?.take(MAX_TIME).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
