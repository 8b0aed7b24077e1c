//! Progress of a download, for progress bars, the log and `/health`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Progress of a download. The download writes it, and any thread may read it at any time.
#[derive(Debug, Default)]
pub struct DownloadProgress {
    files: Mutex<Vec<Arc<FileProgress>>>,
}

/// Progress of one file.
#[derive(Debug)]
pub struct FileProgress {
    name: String,
    bytes_total: u64,
    bytes_done: AtomicU64,
    is_done: AtomicBool,
    waits: AtomicBool,
}

impl DownloadProgress {
    /// All files of the download, in the order of their start.
    pub fn files(&self) -> Vec<Arc<FileProgress>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes that have arrived, and bytes in all.
    pub fn bytes(&self) -> (u64, u64) {
        let add = |(done, total), file: &Arc<FileProgress>| {
            (done + file.bytes_done(), total + file.bytes_total)
        };
        self.files().iter().fold((0, 0), add)
    }

    pub(crate) fn add(&self, name: &str, bytes_total: u64) -> Arc<FileProgress> {
        let file = Arc::new(FileProgress {
            name: name.to_owned(),
            bytes_total,
            bytes_done: AtomicU64::new(0),
            is_done: AtomicBool::new(false),
            waits: AtomicBool::new(false),
        });
        self.files.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&file));
        file
    }
}

impl FileProgress {
    /// Name in the repository.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size in bytes.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Bytes that have arrived.
    pub fn bytes_done(&self) -> u64 {
        // Relaxed loads suffice here and below, since the values are only displayed and order no other memory.
        self.bytes_done.load(Ordering::Relaxed)
    }

    /// Whether the file is complete and verified.
    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    /// Whether another process is downloading the file, and this one waits for it.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bytes(&self, bytes_done: u64) {
        self.bytes_done.store(bytes_done, Ordering::Relaxed);
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Ordering::Relaxed);
    }

    pub(crate) fn set_done(&self) {
        self.set_waits(false);
        self.set_bytes(self.bytes_total);
        self.is_done.store(true, Ordering::Relaxed);
    }
}
