//! Processes as described by Linux in `/proc`.

use std::fs;

/// The child processes of a server.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(path).unwrap().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let children = children.flatten().collect::<Vec<_>>().join(" ");
    children.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Clock ticks of CPU time of a process; `None` once it is gone.
pub(crate) fn ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    // A zombie is gone, too.
    fields.next().filter(|state| *state != "Z")?;
    // The state was the third field, and CPU time in user mode is the 14th.
    fields.nth(10)?.parse().ok()
}

/// A field of a process's `status`: `VmRSS` and `VmHWM`, its current and peak memory in bytes; `Threads`. 0 once it
/// is gone.
pub(crate) fn status(pid: u32, field: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let mut words = value.unwrap_or_default().split_whitespace();
    let number = words.next().map_or(0, |number| number.parse().unwrap());
    if words.next() == Some("kB") { number << 10 } else { number }
}

/// Number of files and connections that a process has open.
pub(crate) fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}
