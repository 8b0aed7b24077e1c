//! The processes of this user that have files open or mapped, as Linux lists them in `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Processes that have one of these files open or mapped, each as `NAME (PID)`. Processes of other users are not visible.
pub(super) fn users_of(files: &BTreeSet<PathBuf>) -> Vec<String> {
    let own = std::process::id();
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut users: Vec<u32> =
        pids.filter(|pid| *pid != own && (maps(*pid, files) || opens(*pid, files))).collect();
    users.sort_unstable();
    users.into_iter().map(described).collect()
}

fn maps(pid: u32, files: &BTreeSet<PathBuf>) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    // A path is the last column, and begins with the line's first slash.
    maps.lines()
        .filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])))
        .any(|path| files.contains(path))
}

fn opens(pid: u32, files: &BTreeSet<PathBuf>) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| files.contains(&path))
}

fn described(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} ({pid})", name.trim().escape_debug())
}
