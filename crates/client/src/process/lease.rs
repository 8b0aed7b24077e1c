//! Locks of GPUs. Each deployment holds a lock for each of its GPUs, which the kernel releases when its supervisor
//! ends.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use candlepower_machine::Gpus;

/// Pause between two attempts, because a client that lists free GPUs holds each lock for a moment.
const AGAIN: Duration = Duration::from_millis(20);
const ATTEMPTS: u32 = 25;

/// The GPUs of this machine that no deployment holds. `root` is the folder of all deployments.
pub(crate) fn free_gpus(root: &Path) -> Gpus {
    free_gpus_with(root, &[])
}

/// The same, plus the caller's own GPUs, all of whose memory counts as free.
pub(crate) fn free_gpus_with(root: &Path, own: &[String]) -> Gpus {
    let is_held = |uuid: &str| matches!(try_take(root, uuid), Ok(None));
    let mut found =
        without_held(Gpus::probe(), |uuid| !own.iter().any(|own| own == uuid) && is_held(uuid));
    for gpu in found.devices.iter_mut().filter(|gpu| own.contains(&gpu.uuid)) {
        // The caller's server ends before the next one starts.
        gpu.memory_free_bytes = gpu.memory_total_bytes;
    }
    found
}

fn without_held(mut found: Gpus, is_held: impl Fn(&str) -> bool) -> Gpus {
    let before = found.devices.len();
    found.devices.retain(|gpu| !is_held(&gpu.uuid));
    let held = before - found.devices.len();
    if held > 0 && found.devices.is_empty() {
        found.reason = Some(format!("other deployments hold all {held}"));
    }
    found
}

/// Locks a GPU while the file is open; `None` if another deployment holds it.
///
/// # Errors
/// The lock file cannot be created.
pub(super) async fn take(root: &Path, uuid: &str) -> io::Result<Option<File>> {
    for _ in 0..ATTEMPTS {
        if let Some(lease) = try_take(root, uuid)? {
            return Ok(Some(lease));
        }
        tokio::time::sleep(AGAIN).await;
    }
    Ok(None)
}

fn try_take(root: &Path, uuid: &str) -> io::Result<Option<File>> {
    // The folder is not below `root`, whose entries are all deployments.
    let folder = root.with_file_name("gpus");
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(folder.join(uuid))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use candlepower_machine::{ComputeCapability, Gpu};

    use super::*;

    #[test]
    fn a_gpu_is_held_by_one_deployment() {
        let root = std::env::temp_dir().join(format!("candlepower-lease-{}", std::process::id()));
        let deployments = root.join("deployments");
        let lease = try_take(&deployments, "GPU-1").unwrap().unwrap();
        assert!(try_take(&deployments, "GPU-1").unwrap().is_none());
        assert!(try_take(&deployments, "GPU-2").unwrap().is_some());
        drop(lease);
        assert!(try_take(&deployments, "GPU-1").unwrap().is_some());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn gpus_that_are_held_are_not_offered() {
        let gpu = Gpu {
            name: "GPU".into(),
            uuid: "GPU-1".into(),
            memory_total_bytes: 1,
            memory_free_bytes: 1,
            compute_capability: ComputeCapability { major: 9, minor: 0 },
        };
        let found = Gpus { devices: vec![gpu], ..Gpus::default() };
        assert_eq!(without_held(found.clone(), |_| false), found);
        let held = without_held(found, |uuid| uuid == "GPU-1");
        assert_eq!(held.reason.as_deref(), Some("other deployments hold all 1"));
    }
}
