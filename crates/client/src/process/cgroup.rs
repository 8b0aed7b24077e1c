//! A memory limit for the server, by a control group of version 2, if this user may create one.
//!
//! A limit of the address space (RLIMIT_AS) would work for every user. But CUDA reserves far more addresses than it
//! uses memory, and would fail under such a limit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Mount point of control groups, if only version 2 is in use.
const MOUNT: &str = "/sys/fs/cgroup";

/// The control group of a server. It is removed with the deployment.
#[derive(Debug)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a group beside the group of this process, or below it.
    ///
    /// # Errors
    /// The system has no control groups of version 2, or this user may not create one with a memory limit.
    pub(super) fn new(name: &str, memory_bytes: u64) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
        let own = own.ok_or(io::ErrorKind::Unsupported)?;
        let mount = Path::new(MOUNT);
        if !mount.join("cgroup.controllers").exists() {
            return Err(io::Error::other("the system has no control groups of version 2"));
        }
        let below = mount.join(own);
        let beside = below.parent().filter(|parent| parent.starts_with(mount));
        // A group with processes cannot pass the memory controller on to groups below it. So the place beside comes
        // first.
        let places = beside.into_iter().chain([below.as_path()]);
        let mut last = io::ErrorKind::Unsupported.into();
        for place in places {
            match Self::make(place, name, memory_bytes) {
                Ok(made) => return Ok(made),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn make(place: &Path, name: &str, memory_bytes: u64) -> io::Result<Self> {
        let path = place.join(format!("candlepower-{name}-{}", std::process::id()));
        match fs::create_dir(&path) {
            // An earlier supervisor with the same pid may have left the group. Its limit is written again.
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let made = Self(path);
        // The file is missing if the controller is not enabled for the group.
        match fs::write(made.0.join("memory.max"), memory_bytes.to_string()) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.remove();
                Err(error)
            }
        }
    }

    /// The file that takes the ids of processes.
    pub(super) fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// Whether the kernel's out-of-memory killer has ended a process of the group.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        let events = fs::read_to_string(self.0.join("memory.events")).unwrap_or_default();
        events.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count != "0"))
    }

    /// Removes the group, which must be empty.
    pub(super) fn remove(&self) {
        // An empty group that remains does no harm.
        let _ = fs::remove_dir(&self.0);
    }
}
