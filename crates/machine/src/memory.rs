//! Main memory: its size, the amount that this process may still allocate, and the cause of that limit.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::gib;

/// Main memory, as this process may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Bytes in total: the machine's, or the limit of this process's control group if that is less.
    pub total_bytes: u64,
    /// Bytes that may still be allocated: the amount that the kernel reports as available, or the rest of the limit,
    /// whichever is less.
    pub available_bytes: u64,
    /// Cause of the limit.
    pub limited_by: MemoryLimit,
}

/// Source of `available_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLimit {
    /// The machine itself.
    Machine,
    /// A limit of control groups, version 2.
    CgroupV2,
    /// A limit of control groups, version 1.
    CgroupV1,
}

/// Bytes that this process may still allocate; `None` if the system does not report it.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    Memory::probe().map(|memory| memory.available_bytes)
}

impl Memory {
    pub(crate) fn probe() -> Option<Self> {
        Self::read(Path::new("/"))
    }

    /// Reads `proc` and `sys` under `root`.
    fn read(root: &Path) -> Option<Self> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let (total_bytes, available_bytes) = machine(&meminfo)?;
        let mut memory = Self { total_bytes, available_bytes, limited_by: MemoryLimit::Machine };
        // Each group counts by itself: one that allows more in total may have less left than its parent.
        for limit in Limit::all(root) {
            memory.total_bytes = memory.total_bytes.min(limit.max);
            if limit.left() < memory.available_bytes {
                memory.available_bytes = limit.left();
                memory.limited_by = limit.kind;
            }
        }
        Some(memory)
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, available) = (gib(self.total_bytes), gib(self.available_bytes));
        write!(f, "{total} of memory, {available} of it free")?;
        match self.limited_by {
            MemoryLimit::Machine => Ok(()),
            MemoryLimit::CgroupV2 => f.write_str(" (limited by a control group)"),
            MemoryLimit::CgroupV1 => f.write_str(" (limited by a control group, version 1)"),
        }
    }
}

/// Total and available bytes, from the text of Linux's `/proc/meminfo`.
fn machine(meminfo: &str) -> Option<(u64, u64)> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

/// The limit of one control group.
struct Limit {
    kind: MemoryLimit,
    max: u64,
    /// Bytes in use, without file pages that were not touched recently, since the kernel frees those by itself.
    used: u64,
}

/// File names of a version of control groups.
struct Layout {
    kind: MemoryLimit,
    mount: PathBuf,
    max: &'static str,
    usage: &'static str,
    inactive_file: &'static str,
}

impl Limit {
    fn left(&self) -> u64 {
        self.max.saturating_sub(self.used)
    }

    /// The limits of this process's control groups and of all groups above them, for both versions.
    ///
    /// A container with version 1 sees its own group at the mount, but under a path of the host. So the mount itself
    /// is read, even if the path does not exist.
    fn all(root: &Path) -> Vec<Self> {
        let Ok(own) = fs::read_to_string(root.join("proc/self/cgroup")) else { return Vec::new() };
        let mut limits = Vec::new();
        for line in own.lines() {
            // A line is `hierarchy:controllers:path`. Version 2 has no controllers in its line, and a path may
            // have colons.
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let layout = if controllers.is_empty() {
                Layout::v2(root)
            } else if controllers.split(',').any(|name| name == "memory") {
                Layout::v1(root)
            } else {
                continue;
            };
            // An absolute path would replace the mount in `join`.
            let own = layout.mount.join(path.trim_start_matches('/'));
            let to_the_mount =
                own.ancestors().take_while(|folder| folder.starts_with(&layout.mount));
            limits.extend(to_the_mount.filter_map(|folder| layout.read(folder)));
        }
        limits
    }
}

impl Layout {
    fn v2(root: &Path) -> Self {
        Self {
            kind: MemoryLimit::CgroupV2,
            mount: root.join("sys/fs/cgroup"),
            max: "memory.max",
            usage: "memory.current",
            inactive_file: "inactive_file ",
        }
    }

    fn v1(root: &Path) -> Self {
        Self {
            kind: MemoryLimit::CgroupV1,
            mount: root.join("sys/fs/cgroup/memory"),
            max: "memory.limit_in_bytes",
            usage: "memory.usage_in_bytes",
            inactive_file: "total_inactive_file ",
        }
    }

    /// The limit of the group in `folder`, if it has one.
    fn read(&self, folder: &Path) -> Option<Limit> {
        let number =
            |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let inactive = stat.lines().find_map(|line| line.strip_prefix(self.inactive_file));
        let inactive = inactive.and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        // The value is `max` where version 2 has no limit. It does not parse, so the group is left out.
        let used = number(self.usage)?.saturating_sub(inactive);
        Some(Limit { kind: self.kind, max: number(self.max)?, used })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       24576000 kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n";

    /// A temporary folder that stands for the root of a machine.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = std::env::temp_dir()
                .join(format!("candlepower-memory-{}-{name}", std::process::id()));
            for (path, text) in files {
                let path = folder.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(folder)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn memory(total_bytes: u64, available_bytes: u64, limited_by: MemoryLimit) -> Option<Memory> {
        Some(Memory { total_bytes, available_bytes, limited_by })
    }

    #[test]
    fn a_machine_without_limits_says_what_it_has() {
        let root = Root::new("none", &[("proc/meminfo", MEMINFO)]);
        assert_eq!(Memory::read(&root.0), memory(24_576_000 << 10, 1 << 30, MemoryLimit::Machine));
        assert_eq!(Memory::read(&root.0.join("nowhere")), None);
        assert_eq!(machine("nonsense"), None);
    }

    #[test]
    fn the_tightest_group_of_version_2_limits() {
        let root = Root::new(
            "v2",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
                ("sys/fs/cgroup/outer/inner/memory.current", "700\n"),
                ("sys/fs/cgroup/outer/memory.max", "1000\n"),
                ("sys/fs/cgroup/outer/memory.current", "800\n"),
                ("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100\n"),
            ],
        );
        assert_eq!(Memory::read(&root.0), memory(1000, 300, MemoryLimit::CgroupV2));
    }

    #[test]
    fn a_container_of_version_1_finds_its_limit_at_the_mount() {
        let root = Root::new(
            "v1",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n"),
            ],
        );
        assert_eq!(Memory::read(&root.0), memory(2000, 1500, MemoryLimit::CgroupV1));
    }

    #[test]
    fn no_limit_of_version_1_is_a_very_large_number() {
        let root = Root::new(
            "v1-none",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "4:memory:/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n"),
            ],
        );
        assert_eq!(Memory::read(&root.0), memory(24_576_000 << 10, 1 << 30, MemoryLimit::Machine));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }
}
